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
#       the provider, for each private ABI of libibverbs that was built; each takes
#       the place of rdma-core's own vmw_pvrdma provider by dpkg-divert, because two
#       providers for one device cannot be ordered.  It depends on the releases of
#       libibverbs that these are for: with another one the stock provider would
#       quietly serve instead.
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
lock_folder "$out"

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

# The providers of this build: "ABI FIRST LAST" lines, in the order of releases.
abis=$build/guest/provider.abis
[ -s "$abis" ] || die "no provider: run guest-provider/build.sh first"
libdir=usr/lib/$multiarch/libibverbs
targets=$(awk -v dir="/$libdir" '
    { printf "%s%s/libvmw_pvrdma-rdmav%s.so", (NR > 1 ? " " : ""), dir, $1 }' "$abis")
# The releases from the first to the last but for the gaps between them.
libibverbs=$(awk '
    NR == 1 { d = "libibverbs1 (>= " $2 ")" }
    NR > 1 && $2 > last + 1 {
        d = d ", libibverbs1 (<< " last + 1 "~) | libibverbs1 (>= " $2 ")"
    }
    { last = $3 }
    END { print d ", libibverbs1 (<< " last + 1 "~)" }' "$abis")

# subst FILE: a template with this build's values.
subst()
{
    sed -e "s,@VERSION@,$version,g" -e "s,@REVISION@,$revision,g" \
        -e "s,@ARCH@,$arch,g" -e "s,@TARGETS@,$targets,g" \
        -e "s,@LIBDIR@,/$libdir,g" -e "s;@LIBIBVERBS@;$libibverbs;g" \
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
mkdir -p "$src/include/pvrdma" "$tree/pvrdma-dkms/usr/lib/modprobe.d" \
    "$tree/pvrdma-dkms/usr/lib/udev/rules.d"
cp "$repo"/guest-driver/*.c "$repo"/guest-driver/*.h "$repo/guest-driver/Kbuild" "$src/"
cp "$repo"/include/pvrdma/abi.h "$repo"/include/pvrdma/ext.h \
    "$repo"/include/pvrdma/uverbs.h "$src/include/pvrdma/"
size=
subst "$here/dkms.conf" > "$src/dkms.conf"
mkdir -p "$tree/pvrdma-dkms/usr/share/pvrdma-dkms"
subst "$here/build-module" > "$tree/pvrdma-dkms/usr/share/pvrdma-dkms/build-module"
chmod 755 "$tree/pvrdma-dkms/usr/share/pvrdma-dkms/build-module"
# Links, which nobody configures: removed with the package and not only by a purge.
for hooks in postinst.d header_postinst.d; do
    mkdir -p "$tree/pvrdma-dkms/etc/kernel/$hooks"
    ln -s /usr/share/pvrdma-dkms/build-module "$tree/pvrdma-dkms/etc/kernel/$hooks/pvrdma-dkms"
done
cp "$here/modprobe.conf" "$tree/pvrdma-dkms/usr/lib/modprobe.d/pvrdma-dkms.conf"
cp "$here/udev.rules" "$tree/pvrdma-dkms/usr/lib/udev/rules.d/75-pvrdma-dkms.rules"
pack pvrdma-dkms all

# ---- the provider
mkdir -p "$tree/ibverbs-provider-pvrdma/$libdir"
for target in $targets; do
    objcopy --strip-debug --strip-unneeded "$build/guest/$(basename "$target")" \
        "$tree/ibverbs-provider-pvrdma$target"
    chmod 644 "$tree/ibverbs-provider-pvrdma$target"
done
pack ibverbs-provider-pvrdma "$arch"
rm -rf "$tree"
