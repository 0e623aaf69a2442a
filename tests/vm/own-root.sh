# SPDX-License-Identifier: GPL-2.0-or-later
#
# own-root.sh - to be sourced: own_root LOWER DIR, a root file system of one's own
#
# For process 1 of new namespaces of mounts and processes.  An overlay over LOWER at
# DIR/root, into which it changes; what is written there is in DIR/upper.  It has /proc and
# /sys (read-only) of these namespaces, devices that are nobody's, and an empty /run.

own_root() {
    mkdir -p "$2/root" "$2/upper" "$2/work"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
    cd "$2/root"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t tmpfs -o mode=755 dev dev
    for node in null zero full random urandom tty; do
        : >"dev/$node"
        mount --bind "/dev/$node" "dev/$node"
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
    mount -t tmpfs -o mode=1777 shm dev/shm
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs -o mode=755 run run
}
