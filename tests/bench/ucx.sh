#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# ucx.sh TRANSPORT TEST BYTES COUNT - run ucx_perftest (Debian: ucx-utils) between two
# processes of this host, on processors 0 and 1 like worker and guest; TRANSPORT: posix,
# shared memory, or tcp, over loopback.  Prints one line: median latency in us, MB/s,
# messages/s.  Nothing if UCX is missing.  Only loopback is used for the set-up.
set -eu

port=${PORT:-13347}

[ -z "${BENCH_NO_UCX:-}" ] || exit 0
command -v ucx_perftest >/dev/null || exit 0

UCX_TLS=$1,self
export UCX_TLS
shift
case $UCX_TLS in tcp*) export UCX_NET_DEVICES=lo ;; esac

run()
{
    cpu=$1
    shift
    # Never in a real-time class, if the caller is: two that poll would leave nobody else
    # a processor, not timeout either.
    chrt -o 0 timeout 60 taskset -c "$cpu" ucx_perftest -p "$port" -c "$cpu" "$@" 2>/dev/null
}

run 0 >/dev/null &
server=$!
sleep 0.5
# iterations, p50, average, overall; MB/s twice; messages/s twice
run 1 127.0.0.1 -t "$1" -s "$2" -n "$3" | awk '$1 == "Final:" { print $3, $7, $9 }'
wait "$server" || true
