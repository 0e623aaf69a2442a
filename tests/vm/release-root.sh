#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# release-root.sh BUILDDIR SUITE - a minimal Debian of another release, to chroot into
#
# usage: as root; debootstrap must be there.  BUILDDIR/debian/SUITE is made once (a
# minute or two) and kept: tests work in copies.  It has the suite's libibverbs, its
# providers and ibv_devices, and none of our packages.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
[ $# -eq 2 ] || { echo "usage: ${0##*/} BUILDDIR SUITE" >&2; exit 2; }
mkdir -p "$1/debian"
work=$(cd "$1/debian" && pwd -P)
suite=$2
root=$work/$suite

prefix=release-root
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

exec 9>"$work/$suite.lock"
flock 9
log=$work/$suite.log
if [ -f "$root/complete" ]; then
    exit 0
fi
: > "$log"

. "$repo/scripts/private-apt.bash"
. "$repo/scripts/in-root.bash"

[ "$(id -u)" -eq 0 ] || die "debootstrap needs root"
command -v debootstrap >/dev/null || die "missing: debootstrap"
mirror=$(debian_mirror)
[ -n "$mirror" ] || die "apt knows no Debian mirror"
rm -rf "$root"
say "installing a minimal $suite (takes a minute or two)"
bootstrap "$suite" "$root" "$mirror" --variant=minbase \
    --include=ibverbs-utils,ibverbs-providers
shrink_root "$root"
touch "$root/complete"
say "done: $root"
