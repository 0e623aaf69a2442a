#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# peers.sh - the peer of the benchmarks: UCX over POSIX shared memory between two
# processes of this host, pinned to processors 0 and 1 as worker and guest are.
#
# Prints latency (one way, us) and rate (messages/s, MB/s) of tagged messages.
# Exit status 77, which means skipped, if ucx_perftest (Debian: ucx-utils) is
# missing.  Bounded in count and time; only loopback is used for the set-up.
set -eu

port=${PORT:-13347}

command -v ucx_perftest >/dev/null || {
    echo "ucx_perftest is missing: apt-get install ucx-utils"
    exit 77
}

# one TEST BYTES COUNT LABEL
one()
{
    UCX_TLS=posix,self timeout 60 taskset -c 0 ucx_perftest -p "$port" -c 0 \
        >/dev/null 2>&1 &
    server=$!
    sleep 1
    UCX_TLS=posix,self timeout 60 taskset -c 1 ucx_perftest 127.0.0.1 \
        -p "$port" -c 1 -t "$1" -s "$2" -n "$3" 2>/dev/null |
        awk -v what="$4" '$1 == "Final:" {
            # iterations, p50, average, overall; MB/s twice; messages/s twice
            printf "UCX %-22s p50 %8.3f us  overall %8.3f us  %10.2f MB/s  %10.0f /s\n",
                   what, $3, $5, $7, $9
        }'
    wait "$server" || true
    port=$((port + 1))
}

one tag_lat 8 1000000 "tag_lat 8 B"
one tag_bw 8 5000000 "tag_bw 8 B"
one tag_bw 65536 200000 "tag_bw 64 KiB"
one tag_bw 1048576 20000 "tag_bw 1 MiB"
