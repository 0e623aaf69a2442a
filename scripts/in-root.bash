# SPDX-License-Identifier: GPL-2.0-or-later
#
# Commands in the root file systems of tests and guests; sourced by scripts that make
# these.  The caller sources common.sh, whose quiet() these go through, and downloads.sh,
# and is root.

# in_root DIR COMMAND...: chroot with /proc, in a mount namespace of its own; our
# TMPDIR is not there.
in_root()
{
    local dir=$1
    shift
    DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        unshare -m -- env -u TMPDIR sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' \
        "$dir" "$@"
}

# install_in_root DIR PACKAGE...: none of their services starts, there or later.
install_in_root()
{
    local dir=$1
    shift
    printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d"
    chmod 755 "$dir/usr/sbin/policy-rc.d"
    local apt=(in_root "$dir" apt-get -y --no-install-recommends install "$@")
    local archives=$dir/var/cache/apt/archives
    quiet in_root "$dir" apt-get update
    take_downloads "$archives" "$(downloads_of "${apt[@]}")" || :
    quiet "${apt[@]}"
    keep_download "$archives"/*.deb
    shrink_root "$dir"
}

# shrink_root DIR: without what can be fetched again.
shrink_root()
{
    rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*_*
}
