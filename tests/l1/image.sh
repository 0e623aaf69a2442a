#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# image.sh BUILDDIR SERIES - the guest image with another kernel of this machine's Debian
#
# usage: tests/l1/image.sh build 6.12
#
# BUILDDIR/l1/SERIES gets vmlinuz, vmlinux, initramfs and image.info as BUILDDIR/images has
# them: the programs are that image's, the kernel is the newest of SERIES that apt knows.
# Its own modules only: neither siw nor vmw_pvrdma is among them.  Nothing is installed, and
# no root rights are needed.  Does nothing if that was done before of the same image and the
# same kernel.
#
# Exit status 3: the kernel cannot be had here; 1: anything else went wrong.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { sed -n '4,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
images=$1/images
series=$2
mkdir -p "$1/l1/$series"
out=$(cd "$1/l1/$series" && pwd)
log=$out/build.log
PATH=$PATH:/usr/sbin:/sbin
prefix=image-$series
. "$here/../../scripts/common.sh"
. "$here/../../scripts/downloads.sh"
. "$here/../../scripts/guest-kernel.sh"
lock_folder "$out"
[ -f "$images/initramfs" ] || die "no guest image in $images: run images/build-image.sh"

die_status=3
apt_lists
# The names of meta packages and of variants (rt, cloud) do not match.
kernel=$(apt-cache search --names-only "^linux-image-$series\\.[0-9]+([+]deb[0-9]+|-[0-9]+)?-amd64\$" |
         cut -d' ' -f1 | sort -V | tail -n 1)
[ -n "$kernel" ] || die "apt knows no kernel $series"
version=$(apt-cache show --no-all-versions "$kernel" | sed -n 's/^Version: //p')
release=${kernel#linux-image-}

stamp="$kernel $version $(cat "$0" "$here/../../scripts/guest-kernel.sh" "$images/initramfs" |
                          sha256sum | cut -d' ' -f1)"
if [ "$(cat "$out/stamp" 2> /dev/null)" = "$stamp" ]; then
    say "up to date: $out/initramfs"
    exit 0
fi
: > "$log"
rm -rf "$out/stamp" "$out/work"
mkdir -p "$out/work/root"

say "downloading kernel $release (100 MB) ..."
status=0
fetch "$out/work/debs" apt-get -o APT::Sandbox::User=root download "$kernel=$version" || status=$?
[ $status -eq 2 ] || [ $status -eq 0 ] || die "cannot fetch $kernel, see $log"
die_status=1
[ $status -eq 0 ] || die "what was downloaded is not what apt's lists promise, see $log"

krn=$out/work/kernel
root=$out/work/root
mkdir "$krn"
dpkg-deb --fsys-tarfile "$out/work/debs"/*.deb | tar x -C "$krn" ./boot ./lib/modules ||
    die "cannot unpack $kernel"
quiet depmod -b "$krn" "$release"
say "packing the initramfs ..."
(cd "$root" && cpio -idm --quiet --no-preserve-owner 2>> "$log") < "$images/initramfs" ||
    die "cannot unpack the image, see $log"
rm -rf "$root/usr/lib/modules"
collect_modules "$krn" "$release" "$root" \
    virtio_pci virtio_console virtio_net ib_core ib_uverbs rdma_cm rdma_ucm rdma_rxe crc32_generic
(cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet) > "$out/initramfs.tmp"
mv "$out/initramfs.tmp" "$out/initramfs"
cp "$krn/boot/vmlinuz-$release" "$out/vmlinuz"
unpack_kernel "$out/vmlinuz" "$out/vmlinux" ||
    say "cannot unpack the kernel here: guests unpack it, which takes seconds"
{ echo "kernel $release $version"; sed 1d "$images/image.info"; } > "$out/image.info"
rm -rf "$out/work"
echo "$stamp" > "$out/stamp"
say "done: $out/initramfs, $(($(stat -c %s "$out/initramfs") / 1048576)) MB, kernel $release"
