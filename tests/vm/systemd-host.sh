#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# systemd-host.sh DIR - this machine's file system and systemd as a host of its own, until
# it is killed
#
# Runs as process 1 of namespaces of its own (mounts, processes, host name, IPC, network
# and control groups; see test_systemd.py), so that whatever systemd starts ends with it.
# What it writes is in memory, mounted at DIR.  DIR/add must have what is put over the
# file system.  Only units of basic.target and those that are asked for are started.

set -euo pipefail
. "$(dirname "$0")/own-root.sh"

dir=$1

mount --make-rprivate /
mkdir "$dir/new"
mount -t tmpfs -o mode=755 tmpfs "$dir/new"
own_root / "$dir/new"
cp -rT "$dir/add" .
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmp tmp
# What is about the machine itself.
for unit in systemd-udevd systemd-udev-trigger systemd-sysctl systemd-modules-load; do
    ln -sf /dev/null "etc/systemd/system/$unit.service"
done

pivot_root . mnt
exec /usr/sbin/chroot . /usr/bin/env -i container=test LC_ALL=C.UTF-8 \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -c '
        umount -l /mnt
        systemd-sysusers
        exec /lib/systemd/systemd --unit=basic.target --log-target=journal'
