#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# fetch-runtime.sh [BUILDDIR [SUITE...]] - libibverbs of other Debian releases, for
# tests [trixie testing]
#
# Unpacks a suite's libibverbs, its programs and the libraries they need into
# BUILDDIR/guest-provider/runtime-SUITE, as a small root folder to chroot into: the
# tests that our provider serves other releases use it.  The file `abi` there holds
# the number of the private ABI.  Nothing is installed.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
builddir=${1:-$repo/build}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- ${PVRDMA_RDMA_CORE_SUITES:-trixie testing}
packages=(libc6 libibverbs1 ibverbs-providers ibverbs-utils
          libnl-3-200 libnl-route-3-200)

prefix=runtime
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

mkdir -p "$builddir/guest-provider"
work=$(cd "$builddir/guest-provider" && pwd -P)
log=$work/runtime.log
lock_folder "$work"
: > "$log"

. "$repo/scripts/private-apt.bash"

fetch_runtime()
{
    local suite=$1 name stock
    local root=$work/runtime-$suite from=$work/unpacked apt=$work/apt-$suite
    local private_apt_ready= lib=usr/lib/x86_64-linux-gnu
    if [ -f "$root/complete" ]; then
        say "already there: $root"
        return
    fi
    rm -rf "$root" "$from"
    private_apt_setup "deb $suite"
    private_apt_unpack "$from" "${packages[@]}"

    # Only what the programs need, with the names the loader looks for.
    mkdir -p "$root"/{usr/bin,usr/lib64,etc/libibverbs.d,$lib/libibverbs}
    cp -L "$from"/usr/bin/ibv_{devinfo,rc_pingpong} "$root/usr/bin/"
    for name in libc.so.6 libibverbs.so.1 libnl-3.so.200 libnl-route-3.so.200; do
        cp -L "$(find "$from" -name "$name" | head -n 1)" "$root/$lib/"
    done
    cp -L "$(find "$from" -name ld-linux-x86-64.so.2 -not -path '*/share/*' |
             head -n 1)" "$root/usr/lib64/"
    cp "$from/etc/libibverbs.d/vmw_pvrdma.driver" "$root/etc/libibverbs.d/"
    stock=$(find "$from/$lib/libibverbs" -name 'libvmw_pvrdma-rdmav*.so')
    [ -n "$stock" ] || die "$suite has no provider for the device"
    cp -L "$stock" "$root/$lib/libibverbs/"
    stock=${stock##*-rdmav}
    echo "${stock%.so}" >"$root/abi"
    rm -rf "$from" "$apt"
    touch "$root/complete"
    say "done: $root (provider ABI $(cat "$root/abi"))"
}

# One that cannot be had must not end the build; its tests fail.
for suite in "$@"; do
    fetch_runtime "$suite" &
    wait $! || say "WARNING: no libibverbs of $suite"
done
