#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# unpaced.sh COMMAND... - run it with a loopback interface of its own, whose TCP does not
# pace, like the daemon's between VMs of one host (BBR, which may be the machine's, has
# senders wait for timers).  Where no network namespace can be had, on the machine's, with
# a warning.
set -eu

if unshare -rn true 2>/dev/null; then
    exec unshare -rn sh -c '
        ip link set lo up
        echo reno >/proc/sys/net/ipv4/tcp_congestion_control
        exec "$@"' sh "$@"
fi
echo "no network namespace: the peers keep to the congestion control of the machine, \
$(cat /proc/sys/net/ipv4/tcp_congestion_control)" >&2
exec "$@"
