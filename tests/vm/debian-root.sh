#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# debian-root.sh [BUILDDIR] - a Debian guest's disk with our packages installed
#
# usage: as root, after `make deb`; debootstrap and e2fsprogs must be there.  Does
# nothing if the image was made of the same packages.
#
# BUILDDIR/debian/root.img is an ext4 image: a minimal Debian of this machine's
# suite with dkms, the kernel of the guest image and its headers, ibverbs and
# perftest, in which both .deb files were installed by dpkg, so that DKMS built
# the module there.  vmw_pvrdma.ko of the guest image is added, as a distribution
# that ships it would have it: the packages must keep it from loading.  Also in
# BUILDDIR/debian: ext4's modules, for a guest that is to mount the image, and
# stock.sha256, the sum of the provider before the packages came.
#
# The Debian without our packages is kept in BUILDDIR/debian/base.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
builddir=$(cd "${1:-$repo/build}" && pwd -P)
work=$builddir/debian
base=$work/base
root=$work/root
provider=/usr/lib/x86_64-linux-gnu/libibverbs/libvmw_pvrdma-rdmav34.so
packages=dkms,kmod,ibverbs-utils,ibverbs-providers,perftest,libc6-dev

prefix=debian-root
. "$repo/scripts/common.sh"

mkdir -p "$work"
apt=$work/apt
log=$work/build.log
lock_folder "$work"
: > "$log"

. "$repo/scripts/private-apt.bash"

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

[ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root"
for tool in debootstrap mke2fs unshare; do
    command -v $tool >/dev/null || die "missing: $tool"
done
shopt -s nullglob
debs=("$builddir"/deb/*.deb)
[ ${#debs[@]} -eq 2 ] || die "no packages in $builddir/deb: run 'make deb'"
info=$builddir/images/image.info
[ -f "$info" ] || die "no guest image: run images/build-image.sh"
read -r _ release version <"$info"
[ -f "$builddir/images/initramfs" ] || die "no guest image"

# ---- Debian without our packages ----------------------------------------------

make_base()
{
    local mirror codename depends dir
    mirror=$(debian_mirror)
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$mirror" ] && [ -n "$codename" ] || die "apt knows no Debian mirror"
    rm -rf "$base" "$work/debs"
    mkdir -p "$work/debs"
    say "installing a minimal $codename (takes minutes)"
    quiet debootstrap --variant=minbase \
        --include="$packages" "$codename" "$base" "$mirror"
    say "adding kernel $release and its headers"
    depends=$(apt-cache show "linux-headers-$release=$version" |
              sed -n 's/^Depends: //p' | head -n 1)
    # The newest of each may be in a suite that debootstrap did not look at.
    (cd "$work/debs" && quiet apt-get -o APT::Sandbox::User=root \
        download "linux-image-$release=$version" \
        "linux-headers-$release=$version" \
        "$(sed -n 's/.*\(linux-headers-[^ ,]*-common\).*/\1/p' <<<"$depends")=$version" \
        "$(sed -n 's/.*\(linux-kbuild-[^ ,]*\).*/\1/p' <<<"$depends")")
    # The kernel needs no initramfs of its own here: only unpacked.
    dpkg-deb --fsys-tarfile "$work"/debs/linux-image-*.deb |
        tar -x -C "$base" ./lib/modules
    rm "$work"/debs/linux-image-*.deb
    mkdir -p "$base/tmp/debs"
    mv "$work"/debs/*.deb "$base/tmp/debs/"
    quiet in_root "$base" sh -c \
        'apt-get update && apt-get -y --no-install-recommends install /tmp/debs/*.deb'
    rm -rf "$base/tmp/debs" "$base"/var/cache/apt/archives/*.deb
    dir=$base/lib/modules/$release/extra
    mkdir -p "$dir" "$work/unpack"
    (cd "$work/unpack" && cpio -idm --quiet \
        "*/vmw_pvrdma.ko" <"$builddir/images/initramfs")
    find "$work/unpack" -name vmw_pvrdma.ko -exec cp {} "$dir/" \;
    rm -rf "$work/unpack"
    [ -f "$dir/vmw_pvrdma.ko" ] || die "no vmw_pvrdma.ko in the guest image"
    quiet in_root "$base" depmod "$release"
    echo "$release $version" >"$base/complete"
}

# ---- our packages, the image -----------------------------------------------------

install_packages()
{
    rm -rf "$root"
    cp -a "$base" "$root"
    (cd "$root" && sha256sum ".$provider") | cut -d' ' -f1 >"$work/stock.sha256"
    mkdir -p "$root/tmp/debs"
    cp "${debs[@]}" "$root/tmp/debs/"
    say "installing the packages; DKMS builds the module"
    quiet in_root "$root" sh -c 'dpkg -i /tmp/debs/*.deb'
    [ -f "$root/lib/modules/$release/updates/dkms/pvrdma.ko" ] ||
        die "DKMS made no pvrdma.ko for $release, see $log"
}

make_image()
{
    local name
    mkdir -p "$work/modules"
    for name in crc16 mbcache jbd2 ext4; do
        find "$root/lib/modules/$release" -name "$name.ko" \
            -exec cp {} "$work/modules/" \;
    done
    say "making the image"
    rm -f "$work/root.img"
    quiet mke2fs -q -t ext4 -O ^has_journal,^metadata_csum \
        -d "$root" "$work/root.img.tmp" 2G
    mv "$work/root.img.tmp" "$work/root.img"
    rm -rf "$root"
}

stamp=$(cat "${debs[@]}" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)-$version
if [ -f "$work/root.img" ] && [ "$(cat "$work/stamp" 2>/dev/null)" = "$stamp" ]; then
    say "up to date: $work/root.img"
    exit 0
fi
rm -f "$work/stamp"
[ "$(cat "$base/complete" 2>/dev/null)" = "$release $version" ] || make_base
install_packages
make_image
echo "$stamp" >"$work/stamp"
say "done: $work/root.img"
