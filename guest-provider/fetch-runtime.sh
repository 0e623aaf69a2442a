#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# fetch-runtime.sh [BUILDDIR] - libibverbs of another Debian release, for tests
#
# Unpacks trixie's libibverbs (rdma-core 56), its programs and the libraries they
# need into BUILDDIR/guest-provider/runtime, as a small root folder to chroot
# into: the test that one build of our provider serves both releases uses it.
# Nothing is installed.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
builddir=${1:-$repo/build}
suite=trixie
packages=(libc6 libibverbs1 ibverbs-providers ibverbs-utils
          libnl-3-200 libnl-route-3-200)

prefix=runtime
. "$repo/scripts/common.sh"

mkdir -p "$builddir/guest-provider"
work=$(cd "$builddir/guest-provider" && pwd -P)
apt=$work/apt-$suite
log=$work/runtime.log
: > "$log"
root=$work/runtime

. "$repo/scripts/private-apt.bash"

if [ -f "$root/complete" ]; then
    say "already there: $root"
    exit 0
fi
rm -rf "$root" "$work/unpacked"
private_apt_setup "deb $suite"
for package in "${packages[@]}"; do
    private_apt_unpack "$package" "$work/unpacked"
done

# Only what the programs need, with the names the loader looks for.
lib=usr/lib/x86_64-linux-gnu
from=$work/unpacked
mkdir -p "$root"/{usr/bin,usr/lib64,etc/libibverbs.d,$lib/libibverbs}
cp -L "$from"/usr/bin/ibv_{devinfo,rc_pingpong} "$root/usr/bin/"
for name in libc.so.6 libibverbs.so.1 libnl-3.so.200 libnl-route-3.so.200; do
    cp -L "$(find "$from" -name "$name" | head -n 1)" "$root/$lib/"
done
cp -L "$(find "$from" -name ld-linux-x86-64.so.2 -not -path '*/share/*' |
         head -n 1)" "$root/usr/lib64/"
cp "$from/etc/libibverbs.d/vmw_pvrdma.driver" "$root/etc/libibverbs.d/"
cp -L "$from/$lib/libibverbs"/libvmw_pvrdma-rdmav*.so "$root/$lib/libibverbs/"
rm -rf "$from"
touch "$root/complete"
say "done: $root"
