#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# host.sh ROOT DIR QEMU NAME [ADDRESS NAME]... - a host with libvirtd, until it is killed
#
# Runs as process 1 of namespaces of its own (mounts, processes, host name, IPC; see
# libvirt_hosts.py), so that whatever libvirtd starts ends with it, and stays there as
# the one that collects what its children leave.  What it writes is in an overlay over
# ROOT, below DIR.  In its root
#   /run/pvrdma   DIR/pvrdma: the daemon's sockets
#   /run/guests   DIR/guests: what the guests' QEMUs and the test share
#   /var/log/libvirt/qemu   DIR/log: what the guests' QEMUs say
#   /opt/qemu     QEMU, the folder that it was built in
# libvirtd needs a root of its mount namespace: with chroot alone the namespaces that it
# makes for QEMU see other files than it does.

set -euo pipefail
. "$(dirname "$0")/../vm/own-root.sh"

lower=$1 dir=$2 qemu=$3 name=$4
shift 4

mount --make-rprivate /
hostname "$name"
mkdir -p "$dir/pvrdma" "$dir/guests" "$dir/log"
own_root "$lower" "$dir"
mkdir -p run/pvrdma run/guests opt/qemu
mount --bind "$dir/pvrdma" run/pvrdma
mount --bind "$dir/guests" run/guests
mount --bind "$dir/log" var/log/libvirt/qemu
mount --bind -o ro "$qemu" opt/qemu

echo "127.0.0.1 localhost" >etc/hosts
while [ $# -gt 0 ]; do
    echo "$1 $2" >>etc/hosts
    shift 2
done
# Two hosts of one UUID would not migrate to one another, and the machine's own may
# be unreadable.
cat >etc/libvirt/libvirtd.conf <<END
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
host_uuid = "$(cat /proc/sys/kernel/random/uuid)"
END

pivot_root . mnt
exec /usr/sbin/chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 /bin/bash -c '
        umount -l /mnt
        virtlogd &
        libvirtd --listen &
        wait'
