#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# iperf.sh BYTES SECONDS PROCESSOR - run iperf3 (Debian: iperf3) over loopback between two
# processes of this host, one stream, BYTES a write: who receives on processor 0, who sends
# on PROCESSOR.  Prints the sender's report, JSON.  Nothing if iperf3 is missing.
set -eu

port=${PORT:-13348}

[ -z "${BENCH_NO_IPERF:-}" ] || exit 0
command -v iperf3 >/dev/null || exit 0

timeout 60 iperf3 -s -1 -B 127.0.0.1 -p "$port" -A 0 >/dev/null 2>&1 &
server=$!
sleep 0.3
timeout 60 iperf3 -c 127.0.0.1 -p "$port" -A "$3" -l "$1" -t "$2" -J 2>/dev/null || true
wait "$server" || true
