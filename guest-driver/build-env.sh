#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# build-env.sh - build pvrdma.ko for another Debian release's kernel
#
# usage: guest-driver/build-env.sh [--boot] SUITE [BUILDDIR]   (default build)
#
# Run as root.  SUITE is trixie, testing or the like.  Its kernel may need a
# compiler that this machine has not, so a minimal Debian of that suite with gcc
# and the kernel's headers is installed into BUILDDIR/guest-driver/SUITE/root by
# debootstrap, once, and the module is built there; the machine's own packages
# are not touched.  Result: BUILDDIR/guest-driver/SUITE/pvrdma.ko.
#
# --boot also makes SUITE/images: that kernel, and the guest image with that
# kernel's modules and pvrdma.ko, for PVRDMA_IMAGES of tests/vm.  It needs the
# guest image of images/build-image.sh.
#
# Exit status 3: the suite's Debian cannot be had here (no root, no debootstrap,
# packages that cannot be fetched); 1: anything else went wrong.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
boot=
suite=
build=
for arg; do
    case $arg in
        --boot) boot=1 ;;
        -h|--help) sed -n '5,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "build-env.sh: unknown option $arg" >&2; exit 2 ;;
        *) if [ -z "$suite" ]; then suite=$arg; else build=$arg; fi ;;
    esac
done
case $suite in
    ''|*[!a-z]*) echo "build-env.sh: SUITE must be a name, such as bookworm" >&2; exit 2 ;;
esac
[ -n "$build" ] || build=$here/../build
mkdir -p "$build/guest-driver/$suite"
build=$(cd "$build" && pwd)
work=$build/guest-driver/$suite
root=$work/root
log=$work/build.log
PATH=$PATH:/usr/sbin:/sbin
: > "$log"

prefix=$suite
. "$here/../scripts/common.sh"
. "$here/../scripts/downloads.sh"
# While Debian is fetched.
die_status=3

# Run a command in the suite's Debian, with /proc, which objtool wants.
inside()
{
    DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        unshare -m -- sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' \
        "$root" "$@"
}

[ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root"
for tool in debootstrap unshare objcopy depmod xz cpio; do
    command -v $tool > /dev/null 2>&1 || die "missing: $tool"
done

if [ ! -f "$work/installed" ]; then
    # The main archive, as this machine's apt knows it.
    mirror=$(apt-cache policy |
             sed -n 's,^ *[0-9]* \([a-z]*://[^ ]*\) [^ ]*/main .*,\1,p' |
             grep -v -e security -e updates | grep 'debian/*$' | head -n 1)
    [ -n "$mirror" ] || die "apt knows no Debian mirror"
    rm -rf "$root"
    say "installing a minimal Debian ..."
    bootstrap "$suite" "$root" "$mirror" --variant=minbase --include=gcc,make,libc6-dev
    say "installing the kernel's headers ..."
    # Signatures are checked; a mirror may be older than a testing suite's
    # Release file says that it may be.
    quiet inside apt-get -o Acquire::Check-Valid-Until=false update
    quiet inside apt-get -y --no-install-recommends install linux-headers-amd64
    : > "$work/installed"
fi

die_status=1
kdir=$(cd "$root" && ls -d usr/src/linux-headers-*-amd64 | sort -V | tail -n 1)
[ -n "$kdir" ] || die "no kernel headers in $root"
release=${kdir#usr/src/linux-headers-}
say "building pvrdma.ko for kernel $release ..."
rm -rf "$root/build/pvrdma"
mkdir -p "$root/build/pvrdma/include"
cp "$here"/*.c "$here"/*.h "$here/Kbuild" "$root/build/pvrdma/"
cp -r "$here/../include/pvrdma" "$root/build/pvrdma/include/"
quiet inside make -C "/$kdir" M=/build/pvrdma modules
if grep -q '^[^ ]*\.[ch]:[0-9].*\(warning\|error\): ' "$log"; then
    grep '\(warning\|error\): ' "$log" >&2
    die "the build has warnings or errors"
fi
objcopy --strip-debug "$root/build/pvrdma/pvrdma.ko" "$work/pvrdma.ko"
say "done: $work/pvrdma.ko"
[ -n "$boot" ] || exit 0

# ------------------------------------------------------------ a guest's image

[ -f "$build/images/initramfs" ] || die "no guest image: run images/build-image.sh"
if [ ! -f "$work/kernel/$release" ]; then
    say "downloading the kernel ..."
    die_status=3
    rm -rf "$work/kernel"
    mkdir -p "$work/kernel"
    # Later releases have image, modules and lists in packages of their own.
    names=linux-image-$release
    for part in base binary modules; do
        if inside apt-cache show --no-all-versions "linux-$part-$release" > /dev/null 2>&1; then
            names="$names linux-$part-$release"
        fi
    done
    quiet inside sh -c "cd /build && apt-get -o APT::Sandbox::User=root download $names"
    die_status=1
    for deb in "$root"/build/linux-*.deb; do
        quiet dpkg-deb -x "$deb" "$work/kernel"
    done
    rm -f "$root"/build/linux-*.deb
    if [ -d "$work/kernel/usr/lib/modules" ]; then
        mkdir -p "$work/kernel/lib"
        ln -s ../usr/lib/modules "$work/kernel/lib/modules"
    fi
    vmlinuz=$(find "$work/kernel" -name "vmlinuz*" -type f | head -n 1)
    [ -n "$vmlinuz" ] || die "no kernel image in the packages"
    cp "$vmlinuz" "$work/kernel/vmlinuz"
    : > "$work/kernel/$release"
fi
mods=$work/kernel/lib/modules/$release
quiet depmod -b "$work/kernel" "$release"
tree=$work/tree
rm -rf "$tree" "$work/images"
mkdir -p "$tree/usr/lib/modules/$release" "$work/images"
for m in virtio_pci virtio_net virtio_console vmxnet3 ib_core ib_uverbs \
         ib_umad rdma_cm rdma_ucm; do
    # A module may be part of the kernel in one release and not in another.
    modprobe -d "$work/kernel" -S "$release" --show-depends "$m" 2>> "$log" ||
        die "the kernel $release has no module $m"
done > "$work/modules.deps"
# What only some tests want: soft-RoCE and disks.
for m in rdma_rxe crc32_generic crc32c_generic virtio_blk ext4; do
    modprobe -d "$work/kernel" -S "$release" --show-depends "$m" 2>> "$log" || :
done >> "$work/modules.deps"
sed -n 's,^insmod \([^ ]*\).*,\1,p' "$work/modules.deps" | sort -u > "$work/modules.list"
while read -r file; do
    to=$tree/usr/lib/modules/$release/${file#*/"$release"/}
    mkdir -p "$(dirname "$to")"
    case $file in
        *.xz) xz -dc "$file" > "${to%.xz}" ;;
        *) cp "$file" "$to" ;;
    esac
done < "$work/modules.list"
cp "$mods"/modules.order "$mods"/modules.builtin "$mods"/modules.builtin.modinfo \
   "$tree/usr/lib/modules/$release/"
ln -s usr/lib "$tree/lib"
quiet depmod -b "$tree" "$release"
rm "$tree/lib"
cp "$work/kernel/vmlinuz" "$work/images/vmlinuz"
cp "$build/images/initramfs" "$work/images/initramfs"
# The kernel unpacks one archive after the other; each starts at 4 bytes.
size=$(stat -c %s "$work/images/initramfs")
truncate -s $(((size + 511) / 512 * 512)) "$work/images/initramfs"
(cd "$tree" && find usr | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet) \
    >> "$work/images/initramfs"
say "done: $work/images"
