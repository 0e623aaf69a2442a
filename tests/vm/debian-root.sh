#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# debian-root.sh [BUILDDIR [packages|suites [SUITE]]] - a Debian guest's disk
#
# usage: as root; debootstrap and e2fsprogs must be there.  Does nothing if the image
# was made of the same things.
#
# Both disks are ext4 images that begin with a minimal Debian of this machine's suite
# with dkms, the kernel of the guest image and its headers, ibverbs and perftest.  That
# is kept in BUILDDIR/debian/base.  vmw_pvrdma.ko of the guest image is added, as a
# distribution that ships it would have it.  In BUILDDIR/debian/modules are ext4's
# modules, for a guest that is to mount an image.
#
# packages (after `make deb`): BUILDDIR/debian/root.img, in which both .deb files were
# installed by dpkg, so that DKMS built the module there; they must keep vmw_pvrdma
# from loading.  Beside it stock.sha256, the sum of the provider before they came.
#
# suites: BUILDDIR/debian/suites.img, with other people's RDMA programs and suites, with
# mpiring.c, compiled for each MPI, and with libfabric's fabtests if the release's
# source of libfabric has them and can be had.  Our driver and provider are not in it:
# the tests bring them, so that the image outlives a change of ours.  With SUITE, such
# as trixie: the same of that release, BUILDDIR/debian/suites-SUITE.img, without a
# kernel's modules; the guest image that boots it has them (guest-driver/build-env.sh).

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
builddir=$(cd "${1:-$repo/build}" && pwd -P)
work=$builddir/debian
base=$work/base
root=$work/root${3:+-$3}
provider=/usr/lib/x86_64-linux-gnu/libibverbs/libvmw_pvrdma-rdmav34.so
packages=dkms,kmod,ibverbs-utils,ibverbs-providers,perftest,libc6-dev
suite_packages=(python3-pyverbs rdma-core ibverbs-utils rdmacm-utils perftest qperf
    ucx-utils libfabric-bin openmpi-bin libopenmpi-dev mpich libmpich-dev nvme-cli fio
    nfs-kernel-server nfs-common open-iscsi iproute2 procps e2fsprogs busybox-static
    libiscsi-bin qemu-utils qemu-block-extra qemu-system-x86)
what=${2:-packages}
suite=${3:-}

prefix=debian-root
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

mkdir -p "$work"
apt=$work/apt
log=$work/build${3:+-$3}.log
lock_folder "$work"
: > "$log"

. "$repo/scripts/private-apt.bash"
. "$repo/scripts/in-root.bash"

[ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root"
for tool in debootstrap mke2fs unshare; do
    command -v $tool >/dev/null || die "missing: $tool"
done
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
    bootstrap "$codename" "$base" "$mirror" --variant=minbase --include="$packages"
    say "adding kernel $release and its headers"
    depends=$(apt-cache show "linux-headers-$release=$version" |
              sed -n 's/^Depends: //p' | head -n 1)
    # The newest of each may be in a suite that debootstrap did not look at.
    fetch "$work/debs" apt-get -o APT::Sandbox::User=root \
        download "linux-image-$release=$version" \
        "linux-headers-$release=$version" \
        "$(sed -n 's/.*\(linux-headers-[^ ,]*-common\).*/\1/p' <<<"$depends")=$version" \
        "$(sed -n 's/.*\(linux-kbuild-[^ ,]*\).*/\1/p' <<<"$depends")" ||
        die "cannot fetch the kernel, see $log"
    # The kernel needs no initramfs of its own here: only unpacked.
    dpkg-deb --fsys-tarfile "$work"/debs/linux-image-*.deb |
        tar -x -C "$base" ./lib/modules
    rm "$work"/debs/linux-image-*.deb
    mkdir -p "$base/tmp/debs"
    mv "$work"/debs/*.deb "$base/tmp/debs/"
    quiet in_root "$base" sh -c \
        'apt-get update && apt-get -y --no-install-recommends install /tmp/debs/*.deb'
    rm -rf "$base/tmp/debs"
    shrink_root "$base"
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
    (cd "$root" && sha256sum ".$provider") | cut -d' ' -f1 >"$work/stock.sha256"
    mkdir -p "$root/tmp/debs"
    cp "${debs[@]}" "$root/tmp/debs/"
    say "installing the packages; DKMS builds the module"
    quiet in_root "$root" sh -c 'dpkg -i /tmp/debs/*.deb'
    [ -f "$root/lib/modules/$release/updates/dkms/pvrdma.ko" ] ||
        die "DKMS made no pvrdma.ko for $release, see $log"
}

# ---- other people's programs -------------------------------------------------------

install_suites()
{
    local mpi
    say "installing other people's RDMA programs (takes minutes)"
    install_in_root "$root" "${suite_packages[@]}"
    # The suite of pyverbs lies in the documentation, most of it compressed, and runs
    # only as a folder of its own.
    cp -r "$root/usr/share/doc/rdma-core/tests" "$root/opt/pyverbs-tests"
    gunzip -r "$root/opt/pyverbs-tests"
    [ -f "$root/opt/pyverbs-tests/run_tests.py" ] || die "pyverbs brought no suite"
    # Those of other vendors' own interfaces.
    rm "$root"/opt/pyverbs-tests/test_{mlx5,efa,cuda}*.py
    # It looks for the interface of a device where only a device of one function has it;
    # the tests of rdma_cm are skipped else.
    sed -i 's,/sys/class/infiniband/{}/device/net/,/tmp/rdma-net/{}/,' \
        "$root/opt/pyverbs-tests/base.py"
    cp "$repo/tests/vm/mpiring.c" "$root/opt/"
    for mpi in openmpi mpich; do
        quiet in_root "$root" "mpicc.$mpi" -O2 -o "/opt/mpiring.$mpi" /opt/mpiring.c
    done
    add_fabtests
}

# libfabric's own tests, which no package has, are in its source: built in the root
# with the release's library.  A mirror may list a source and not have it.
add_fabtests()
{
    local codename uri sum dir=$work/fabtests apt=$work/apt-source private_apt_ready=
    codename=$(. "$root/etc/os-release" && echo "$VERSION_CODENAME")
    private_apt_setup "deb-src $codename"
    read -r uri sum < <(private_apt apt-get -q source --print-uris \
                            --only-source libfabric 2>/dev/null |
        awk '/\.orig\.tar\.[a-z0-9]+'\''/ { gsub("'\''", "", $1); print $1, $NF; exit }') ||
        true
    rm -rf "$dir"
    mkdir -p "$dir"
    if ! [ -n "${uri:-}" ] || ! /usr/lib/apt/apt-helper -o "APT::Sandbox::User=$(id -un)" \
            download-file "$uri" "$dir/orig.tar" "$sum" >>"$log" 2>&1; then
        say "WARNING: no fabtests: cannot fetch the source of libfabric in $codename"
        return
    fi
    tar -C "$dir" --strip-components=1 -xf "$dir/orig.tar" --wildcards '*/fabtests'
    say "building fabtests"
    mkdir -p "$root/opt/fabtests"
    cp -r "$dir/fabtests/." "$root/opt/fabtests/"
    install_in_root "$root" autoconf automake libtool gcc make libfabric-dev
    quiet in_root "$root" sh -ec "cd /opt/fabtests
        ./autogen.sh
        ./configure
        make -j2 install
        make clean"
    rm -rf "$dir"
}

# ---- the image ---------------------------------------------------------------------

# make_image NAME SIZE: of $root, which is used up.
make_image()
{
    local name
    mkdir -p "$work/modules"
    # Tests that have a disk already may read these just now.
    [ -n "$suite" ] || for name in crc16 mbcache jbd2 ext4; do
        find "$root/lib/modules/$release" -name "$name.ko" \
            -exec cp {} "$work/modules/$name.tmp" \;
        mv "$work/modules/$name.tmp" "$work/modules/$name.ko"
    done
    say "making the image"
    rm -f "$work/$1.img"
    quiet mke2fs -q -t ext4 -O ^has_journal,^metadata_csum \
        -d "$root" "$work/$1.img.tmp" "$2"
    mv "$work/$1.img.tmp" "$work/$1.img"
    rm -rf "$root"
}

# make_disk NAME SIZE INSTALL INPUT...: BUILDDIR/debian/NAME.img, by the function
# INSTALL, unless the INPUTs are those that it was made of.
make_disk()
{
    local name=$1 size=$2 install=$3 stamp
    shift 3
    stamp=$(cat "$@" "${BASH_SOURCE[0]}" | sha256sum | cut -d' ' -f1)-$version
    if [ -f "$work/$name.img" ] && [ "$(cat "$work/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
        say "up to date: $work/$name.img"
        return
    fi
    rm -f "$work/$name.stamp"
    if [ -n "$suite" ]; then
        "$repo/tests/vm/release-root.sh" "$builddir" "$suite"
        base=$work/$suite
    else
        [ "$(cat "$base/complete" 2>/dev/null)" = "$release $version" ] || make_base
    fi
    rm -rf "$root"
    cp -a "$base" "$root"
    $install
    make_image "$name" "$size"
    echo "$stamp" >"$work/$name.stamp"
    say "done: $work/$name.img"
}

case $what in
    packages)
        shopt -s nullglob
        debs=("$builddir"/deb/*.deb)
        [ ${#debs[@]} -eq 2 ] || die "no packages in $builddir/deb: run 'make deb'"
        make_disk root 2G install_packages "${debs[@]}"
        ;;
    suites)
        [ -z "$suite" ] || version=$suite
        make_disk "suites${suite:+-$suite}" 4G install_suites "$repo/tests/vm/mpiring.c"
        ;;
    *) die "no such disk: $what" ;;
esac
