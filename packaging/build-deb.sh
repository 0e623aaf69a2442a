#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# build-deb.sh - make the Debian packages for guests
#
# usage: packaging/build-deb.sh [BUILDDIR]              (default build)
#
# Results in BUILDDIR/deb:
#   pvrdma-dkms_VERSION_all.deb
#       the kernel driver's source for DKMS; keeps vmw_pvrdma from loading, else
#       two modules would race for the device
#   ibverbs-provider-pvrdma_VERSION_ARCH.deb
#       the provider; takes the place of rdma-core's own vmw_pvrdma provider by
#       dpkg-divert, because two providers for one device cannot be ordered
#
# Both hold few files and no generated ones, so dpkg-deb packs them as they are.
# Removing a package, even without --purge, brings the stock state back.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/.." && pwd)
build=${1:-$repo/build}
mkdir -p "$build/deb"
build=$(cd "$build" && pwd)
out=$build/deb
tree=$out/tree
umask 022
prefix=deb
. "$repo/scripts/common.sh"

for tool in dpkg-deb dpkg-architecture gzip objcopy; do
    command -v $tool > /dev/null || die "missing: $tool (dpkg-dev, binutils)"
done
version=$(sed -n "s/^ *version: '\([0-9.]*\)'.*/\1/p" "$repo/meson.build" | head -n 1)
[ -n "$version" ] || die "no version in meson.build"
revision=$version-1
arch=$(dpkg-architecture -qDEB_HOST_ARCH)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    # The same sources give the same files, whatever was committed elsewhere.
    SOURCE_DATE_EPOCH=$(git -C "$repo" log -1 --format=%ct -- guest-driver \
        guest-provider include/pvrdma packaging 2> /dev/null) || SOURCE_DATE_EPOCH=
    [ -n "$SOURCE_DATE_EPOCH" ] || SOURCE_DATE_EPOCH=$(date +%s)
fi
export SOURCE_DATE_EPOCH

# The provider of this build; its name carries libibverbs' private ABI number.
provider=
for f in "$build"/guest/libvmw_pvrdma-rdmav*.so; do
    [ -f "$f" ] && provider=$f
done
[ -n "$provider" ] || die "no provider: run guest-provider/build.sh first"
soname=$(basename "$provider")
libdir=usr/lib/$multiarch/libibverbs

# subst FILE: a template with this build's values.
subst()
{
    sed -e "s,@VERSION@,$version,g" -e "s,@REVISION@,$revision,g" \
        -e "s,@ARCH@,$arch,g" -e "s,@TARGET@,/$libdir/$soname,g" \
        -e "s,@SIZE@,$size,g" "$1"
}

# pack PACKAGE ARCH: control files from here, checksums, the .deb.
pack()
{
    root=$tree/$1
    doc=$root/usr/share/doc/$1
    mkdir -p "$doc" "$root/DEBIAN"
    {
        cat "$here/copyright"
        sed 's/^$/./; s/^/ /' "$repo/LICENSES/BSD-2-Clause.txt"
    } > "$doc/copyright"
    size=
    subst "$here/changelog" | sed "s/@PACKAGE@/$1/;
        s/@DATE@/$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")/" |
        gzip -9n > "$doc/changelog.Debian.gz"
    size=$(du -sk --exclude=DEBIAN "$root" | cut -f1)
    for f in "$here/$1"/*; do
        subst "$f" > "$root/DEBIAN/$(basename "$f")"
        case $f in
            */control) ;;
            *) chmod 755 "$root/DEBIAN/$(basename "$f")" ;;
        esac
    done
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
        > "$root/DEBIAN/md5sums"
    find "$root" -newermt "@$SOURCE_DATE_EPOCH" -print0 |
        xargs -0r touch -h -d "@$SOURCE_DATE_EPOCH"
    dpkg-deb -Zxz --root-owner-group --build "$root" \
        "$out/$1_${revision}_$2.deb" > "$out/$1.log" 2>&1 || {
        cat "$out/$1.log" >&2
        die "dpkg-deb failed"
    }
    echo "[deb] $out/$1_${revision}_$2.deb"
}

rm -rf "$tree" "$out"/*.deb

# ---- the driver
src=$tree/pvrdma-dkms/usr/src/pvrdma-$version
mkdir -p "$src/include/pvrdma" "$tree/pvrdma-dkms/usr/lib/modprobe.d"
cp "$repo"/guest-driver/*.c "$repo"/guest-driver/*.h "$repo/guest-driver/Kbuild" "$src/"
cp "$repo"/include/pvrdma/abi.h "$repo"/include/pvrdma/ext.h \
    "$repo"/include/pvrdma/uverbs.h "$src/include/pvrdma/"
size=
subst "$here/dkms.conf" > "$src/dkms.conf"
cp "$here/modprobe.conf" "$tree/pvrdma-dkms/usr/lib/modprobe.d/pvrdma-dkms.conf"
pack pvrdma-dkms all

# ---- the provider
mkdir -p "$tree/ibverbs-provider-pvrdma/$libdir"
objcopy --strip-debug --strip-unneeded "$provider" \
    "$tree/ibverbs-provider-pvrdma/$libdir/$soname"
chmod 644 "$tree/ibverbs-provider-pvrdma/$libdir/$soname"
pack ibverbs-provider-pvrdma "$arch"
rm -rf "$tree"
