#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# build-debug-kernel.sh [BUILDDIR] - the guest image with a kernel that looks hard
#
# Builds the distribution's kernel source (the release of the guest image) with a
# small configuration and what finds mistakes: lockdep, KASAN, sleeping in atomic
# context, lists and objects in use, and the checks of the DMA interface.  The
# result, BUILDDIR/debug, looks like a build folder of its own, so that
#
#     PVRDMA_BUILD=BUILDDIR/debug pytest-3 tests/vm -k 'debug or driver'
#
# runs the tests under that kernel: images/ and guest/ are its own, all else are
# links into BUILDDIR.  The kernel takes minutes and is built once (the stamp covers
# its version, its configuration and this script); the driver is built anew each time.
# Nothing is installed, no root needed; what the build wants is named if it is missing.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
repo=$(cd "$here/.." && pwd -P)
builddir=$(cd "${1:-$repo/build}" && pwd -P)
out=$builddir/debug
work=$out/work
jobs=${JOBS:-$(nproc)}
prefix=debug-kernel
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$work" "$out/images" "$out/guest"
log=$work/build.log
lock_folder "$out"
: >"$log"

missing=
for tool in apt-get:apt dpkg-deb:dpkg gcc:gcc make:make objcopy:binutils perl:perl \
            flex:flex bison:bison bc:bc depmod:kmod cpio:cpio xz:xz-utils; do
    command -v "${tool%%:*}" >/dev/null || missing+=" ${tool##*:}"
done
[ -e /usr/include/stdio.h ] || missing+=" libc6-dev"
[ -e /usr/include/libelf.h ] || missing+=" libelf-dev"
[ -z "$missing" ] || die "missing packages:$missing
    install them: apt-get install --no-install-recommends$missing"
[ -f "$builddir/images/image.info" ] || die "no guest image: run images/build-image.sh"
read -r _ release version <"$builddir/images/image.info"
series=$(sed 's/^\([0-9]*\.[0-9]*\).*/\1/' <<<"$release")
tree=$work/linux-source-$series

stamp=$(cat "${BASH_SOURCE[0]}" "$here/debug-kernel.config" | sha256sum | cut -d' ' -f1)-$version

# ---- the kernel -----------------------------------------------------------------

fetch_source()
{
    local package=linux-source-$series
    apt_lists
    apt-cache madison "$package" 2>/dev/null | grep -q " $version " &&
        package=$package=$version
    say "downloading $package (130 MB)"
    rm -f "$work/linux-source-$series"_*.deb
    fetch "$work" apt-get -o APT::Sandbox::User=root download "$package" ||
        die "cannot fetch it, see $log"
    rm -rf "$tree"
    dpkg-deb --fsys-tarfile "$work/linux-source-$series"_*.deb |
        tar xO "./usr/src/linux-source-$series.tar.xz" | xz -dc -T0 | tar x -C "$work"
    rm "$work/linux-source-$series"_*.deb
    printf '%s\n' "$version" >"$tree/complete"
}

# The DMA checks complain of memory that is mapped twice, as the same memory is by two
# memory regions of a program.  Where caches are coherent that is no mistake; and they
# would report nothing after it.
allow_overlaps()
{
    local file=$tree/kernel/dma/debug.c
    sed -i 's/if (entry->direction == DMA_TO_DEVICE)$/if (dev_is_dma_coherent(entry->dev))/' "$file"
    [ "$(grep -c 'if (dev_is_dma_coherent(entry->dev))$' "$file")" = 2 ] ||
        die "$file is not as expected: what are the places that track cache lines?"
}

build_kernel()
{
    [ "$(cat "$tree/complete" 2>/dev/null)" = "$version" ] || fetch_source
    allow_overlaps
    cp "$here/debug-kernel.config" "$tree/kernel/configs/pvrdma_debug.config"
    quiet make -C "$tree" tinyconfig pvrdma_debug.config
    # An option whose conditions changed would be dropped in silence.
    refused=$({ grep '^CONFIG_' "$here/debug-kernel.config" |
                    grep -vxFf "$tree/.config"
                sed -n 's/^# \(CONFIG_[^ ]*\) is not set$/^\1=/p' "$here/debug-kernel.config" |
                    grep -f - "$tree/.config"; } || true)
    [ -z "$refused" ] || die "the kernel refuses "$refused
    say "building kernel $series with its debugging options (6 minutes on two processors)"
    quiet make -C "$tree" -j"$jobs" CC="$(cached_cc gcc)" bzImage modules
    rm -rf "$work/modules"
    quiet make -C "$tree" INSTALL_MOD_PATH="$work/modules" INSTALL_MOD_STRIP=1 \
        modules_install
    cp "$tree/arch/x86/boot/bzImage" "$out/images/vmlinuz"
    printf '%s\n' "$stamp" >"$work/kernel.stamp"
}

# ---- the image: the other one's programs, this one's modules ---------------------

make_image()
{
    local root=$work/root kernel
    kernel=$(make -s -C "$tree" kernelrelease)
    rm -rf "$root"
    mkdir -p "$root"
    (cd "$root" && cpio -idm --quiet --no-preserve-owner <"$builddir/images/initramfs")
    rm -rf "$root/usr/lib/modules"
    mkdir -p "$root/usr/lib/modules"
    cp -r "$work/modules/lib/modules/$kernel" "$root/usr/lib/modules/"
    rm -f "$root/usr/lib/modules/$kernel/"{build,source}
    (cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet) >"$out/images/initramfs.tmp"
    mv "$out/images/initramfs.tmp" "$out/images/initramfs"
    echo "kernel $kernel $version-debug" >"$out/images/image.info"
    rm -rf "$root"
}

# ---- our driver -------------------------------------------------------------------

build_driver()
{
    say "building pvrdma.ko for it"
    rm -rf "$work/src"
    mkdir -p "$work/src/include"
    cp "$repo"/guest-driver/*.[ch] "$repo/guest-driver/Kbuild" "$work/src/"
    cp -r "$repo/guest-driver/selftest" "$work/src/"
    cp -r "$repo/include/pvrdma" "$work/src/include/"
    for dir in "$work/src" "$work/src/selftest"; do
        quiet make -C "$tree" M="$dir" modules
    done
    if grep -q '^[^ ]*\.[ch]:[0-9].*\(warning\|error\): ' "$log"; then
        die "the driver's build has warnings or errors, see $log"
    fi
    for ko in "$work/src/pvrdma.ko" "$work/src/selftest"/*.ko; do
        objcopy --strip-debug "$ko" "$out/guest/${ko##*/}"
    done
    ln -sf "$builddir"/guest/libvmw_pvrdma-rdmav*.so "$out/guest/"
}

if [ "$(cat "$work/kernel.stamp" 2>/dev/null)" != "$stamp" ]; then
    build_kernel
fi
make_image
build_driver
for name in backend tests qemu config.mak guest-provider deb; do
    [ ! -e "$builddir/$name" ] || ln -sfn "../$name" "$out/$name"
done
say "done: PVRDMA_BUILD=$out"
