#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# root.sh BUILDDIR - a minimal Debian of this machine's suite with libvirt
#
# usage: as root; debootstrap must be there.  BUILDDIR/libvirt/root is made once (two
# or three minutes), from the mirror that this machine's apt uses, and kept: tests put
# an overlay upon it (host.sh).  It has libvirtd, virsh, and the libraries that our QEMU
# is linked with, which comes from the build itself.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
[ $# -eq 1 ] || { echo "usage: ${0##*/} BUILDDIR" >&2; exit 2; }
mkdir -p "$1/libvirt"
work=$(cd "$1/libvirt" && pwd -P)
root=$work/root

prefix=libvirt-root
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

lock_folder "$work"
log=$work/root.log
packages=(libvirt-daemon-system libvirt-clients libslirp0 libpixman-1-0 libfdt1 seabios
    qemu-system-data)
stamp=$(echo "${packages[@]}" | cat - "${BASH_SOURCE[0]}" | sha256sum)
if [ "$(cat "$root/complete" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
: > "$log"

. "$repo/scripts/private-apt.bash"
. "$repo/scripts/in-root.bash"

# Whoever runs this says where the log is.
refuse()
{
    echo "$*" >>"$log"
    die "$*"
}

[ "$(id -u)" -eq 0 ] || refuse "debootstrap needs root"
command -v debootstrap >/dev/null || refuse "missing package: debootstrap"
mirror=$(debian_mirror)
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$mirror" ] && [ -n "$codename" ] || refuse "apt knows no Debian mirror"
rm -rf "$root"
say "installing a minimal $codename with libvirt (takes minutes)"
bootstrap "$codename" "$root" "$mirror" --variant=minbase
install_in_root "$root" "${packages[@]}"
echo "$stamp" >"$root/complete"
say "done: $root"
