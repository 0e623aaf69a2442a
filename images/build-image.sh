#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# build-image.sh - make the guest image that demo and tests boot
#
# usage: images/build-image.sh [--force] [OUTDIR]        (default build/images)
#
# Results in OUTDIR:
#   vmlinuz        the distribution's newest kernel
#   vmlinux        the same unpacked, which for an emulated guest is most of its boot
#   initramfs      busybox, rdma-core tools, perftest, their libraries and the
#                  modules they need, vmw_pvrdma.ko among them, and the agent
#   image.info     package versions
#
# Everything comes from the distribution's packages through apt, which checks
# their signatures; they are downloaded and unpacked below OUTDIR, nothing is
# installed on this machine and no root rights are needed.  The distribution's
# kernel leaves vmw_pvrdma and siw (soft-iWARP, to compare with) out, so these modules
# are built from the kernel's own source package.
#
# A stamp over this folder's files makes a second call do nothing; packages
# that were updated meanwhile are taken with --force.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
force=
out=
for arg; do
    case $arg in
        --force) force=1 ;;
        -h|--help) sed -n '5,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "build-image.sh: unknown option $arg" >&2; exit 2 ;;
        *) out=$arg ;;
    esac
done
[ -n "$out" ] || out=$here/../build/images
mkdir -p "$out"
out=$(cd "$out" && pwd)
log=$out/build.log
PATH=$PATH:/usr/sbin:/sbin
prefix=image
. "$here/../scripts/common.sh"
. "$here/../scripts/downloads.sh"
. "$here/../scripts/guest-kernel.sh"
lock_folder "$out"

stamp=$(cat "$here/build-image.sh" "$here/init" "$here/agent/guest-agent.c" |
        sha256sum | cut -d' ' -f1)
if [ -z "$force" ] && [ -f "$out/stamp" ] && [ -f "$out/initramfs" ] &&
   [ -f "$out/vmlinuz" ] && [ "$(cat "$out/stamp")" = "$stamp" ]; then
    say "up to date: $out/initramfs"
    exit 0
fi

case $out in
    *[[:space:]:]*) die "the kernel's build cannot work below '$out': no space or colon may be in the path" ;;
esac

missing=
need()
{
    command -v "$1" > /dev/null 2>&1 || missing="$missing $2"
}
need apt-get apt
need dpkg-deb dpkg
need gcc gcc
need make make
need readelf binutils
need depmod kmod
need cpio cpio
need xz xz-utils
[ -e /usr/lib/x86_64-linux-gnu/libelf.so.1 ] || missing="$missing libelf1"
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
if [ -n "$missing" ]; then
    die "missing packages:$missing
        install them: apt-get install --no-install-recommends$missing
        or all of the project's: ./configure --install-deps"
fi

: > "$log"
rm -f "$out/stamp"
rm -rf "$out/work" "$out/debs"
mkdir -p "$out/debs" "$out/work"

# ---------------------------------------------------------------- packages

apt_lists
kernel_pkg=$(apt-cache depends linux-image-amd64 2>/dev/null |
             sed -n 's/^ *Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | tail -n 1)
[ -n "$kernel_pkg" ] ||
    die "apt knows no package linux-image-amd64: run 'apt-get update' as root first"
release=${kernel_pkg#linux-image-}
series=$(echo "$release" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
version=$(apt-cache show --no-all-versions "$kernel_pkg" | sed -n 's/^Version: //p')
headers=linux-headers-$release
common=$(apt-cache show --no-all-versions "$headers" |
         sed -n 's/^Depends:.*\(linux-headers-[^ ,]*-common\).*/\1/p')
kbuild=$(apt-cache show --no-all-versions "$headers" |
         sed -n 's/^Depends:.*\(linux-kbuild-[^ ,]*\).*/\1/p')
compiler=$(apt-cache show --no-all-versions "$headers" |
           sed -n 's/^Depends:.*linux-compiler-\(gcc-[0-9]*\)-.*/\1/p')
[ -n "$common" ] && [ -n "$kbuild" ] || die "cannot read what $headers depends on"
compiler=${compiler:-gcc}
if ! command -v "$compiler" > /dev/null 2>&1; then
    die "missing package: $compiler (the kernel $release was built with it)"
fi
say "kernel $release ($version), built with $compiler"

tool_pkgs="ibverbs-utils rdmacm-utils perftest iproute2 libibverbs1 ibverbs-providers"
# shellcheck disable=SC2086
lib_pkgs=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
               --no-breaks --no-replaces --no-enhances $tool_pkgs 2>/dev/null |
           grep -E '^(lib|zlib)' | sort -u)

# Packages into $out/debs, each once; names may carry =VERSION.
fetch_debs()
{
    fetch "$out/debs" apt-get -o APT::Sandbox::User=root download "$@" || {
        tail -n 5 "$log" >&2
        die "cannot download packages; try 'apt-get update' as root"
    }
}

say "downloading kernel, headers and kernel source (about 230 MB) ..."
source_pkg=linux-source-$series
apt-cache madison "$source_pkg" 2>/dev/null | grep -q " $version " &&
    source_pkg=$source_pkg=$version
fetch_debs "$kernel_pkg=$version" "$headers=$version" "$common=$version" "$kbuild" "$source_pkg"
say "downloading tools and libraries ..."
# shellcheck disable=SC2086
fetch_debs busybox-static $tool_pkgs $lib_pkgs

# The file of a package just downloaded, of which there is one version.
deb() { find "$out/debs" -name "$1_*.deb"; }

# ------------------------------------------------------------------ modules

krn=$out/work/kernel
say "unpacking the kernel and its headers ..."
mkdir -p "$krn"
for p in "$headers" "$common" "$kbuild"; do
    quiet dpkg-deb -x "$(deb "$p")" "$krn"
done
dpkg-deb --fsys-tarfile "$(deb "$kernel_pkg")" | tar x -C "$krn" ./boot ./lib/modules
# The headers name their other half by its place in an installed system.
sed -i "s,/usr/src,$krn/usr/src," "$krn/usr/src/$headers/Makefile"

say "building vmw_pvrdma.ko and siw.ko from linux-source-$series ..."
tarball=./usr/src/linux-source-$series.tar.xz
tree=linux-source-$series/drivers/infiniband
dpkg-deb --fsys-tarfile "$(deb "linux-source-$series")" | tar xO "$tarball" | xz -dc -T0 |
    tar x -C "$out/work" "$tree/hw/vmw_pvrdma" "$tree/sw/siw" ||
    die "cannot unpack $tree from the kernel's source package"
mods=$krn/lib/modules/$release
mkdir -p "$mods/extra"
for m in hw/vmw_pvrdma sw/siw; do
    quiet make -C "$krn/usr/src/$headers" M="$out/work/$tree/$m" CC="$(cached_cc "$compiler")" \
        CONFIG_INFINIBAND_VMWARE_PVRDMA=m CONFIG_RDMA_SIW=m modules
    objcopy --strip-debug "$out/work/$tree/$m/${m#*/}.ko" "$mods/extra/${m#*/}.ko"
done
quiet depmod -b "$krn" "$release"

root=$out/work/root
say "collecting modules ..."
mkdir -p "$root/usr/bin" "$root/usr/sbin" \
         "$root/usr/lib64" "$root/etc" "$root/dev" "$root/proc" "$root/sys" \
         "$root/run" "$root/tmp" "$root/root" "$root/usr/local/bin"
for d in bin sbin lib lib64; do
    ln -s "usr/$d" "$root/$d"
done
collect_modules "$krn" "$release" "$root" \
    virtio_pci virtio_net virtio_console virtio_blk vmxnet3 \
    8021q bonding bridge macvlan ib_core ib_uverbs ib_umad rdma_cm rdma_ucm \
    rdma_rxe siw crc32_generic crc32c_generic vmw_pvrdma \
    nvme_rdma nvmet_rdma

# -------------------------------------------------------------------- tools

usr=$out/work/user
say "collecting programs and libraries ..."
mkdir -p "$usr"
for p in busybox-static $tool_pkgs $lib_pkgs; do
    f=$(deb "$p")
    [ -n "$f" ] || die "package $p was not downloaded"
    quiet dpkg-deb -x "$f" "$usr"
done

# Copy library $1 (a soname) and what it needs.
copy_lib()
{
    [ ! -e "$root/usr/lib/x86_64-linux-gnu/$1" ] || return 0
    for dir in usr/lib/x86_64-linux-gnu lib/x86_64-linux-gnu; do
        if [ -e "$usr/$dir/$1" ]; then
            cp -L "$usr/$dir/$1" "$root/usr/lib/x86_64-linux-gnu/$1"
            copy_needed "$usr/$dir/$1"
            return 0
        fi
    done
    die "library $1 is in none of the packages ($2 needs it)"
}

copy_needed()
{
    for lib in $(readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        copy_lib "$lib" "$1"
    done
}

mkdir -p "$root/usr/lib/x86_64-linux-gnu/libibverbs"
loader=$(find "$usr/lib" "$usr/lib64" "$usr/usr/lib64" -name 'ld-linux-x86-64.so.2' 2>/dev/null |
         head -n 1)
cp -L "$loader" "$root/usr/lib64/ld-linux-x86-64.so.2"
for f in "$usr"/usr/bin/ibv_* "$usr"/usr/bin/ib_* "$usr"/usr/bin/rping "$usr"/usr/bin/ucmatose \
         "$usr"/usr/bin/udaddy "$usr"/usr/bin/udpong "$usr"/usr/bin/rstream "$usr"/usr/bin/rcopy \
         "$usr"/usr/bin/riostream "$usr"/usr/bin/cmtime "$usr"/usr/bin/mckey \
         "$usr"/usr/bin/raw_ethernet_* "$usr"/usr/bin/rdma_*; do
    cp "$f" "$root/usr/bin/"
    copy_needed "$f"
done
# The C library opens it by itself when a thread ends otherwise than by return.
copy_lib libgcc_s.so.1 rping
for t in ip rdma ss; do
    f=$(find "$usr/bin" "$usr/sbin" "$usr/usr/bin" "$usr/usr/sbin" -name "$t" -type f 2>/dev/null |
        head -n 1)
    [ -n "$f" ] || die "iproute2 has no program $t"
    cp "$f" "$root/usr/sbin/$t"
    copy_needed "$f"
done
for provider in vmw_pvrdma rxe siw; do
    f=$(find "$usr/usr/lib/x86_64-linux-gnu/libibverbs" -name "lib$provider-rdmav*.so")
    [ -n "$f" ] || die "ibverbs-providers has no provider for $provider"
    cp -L "$f" "$root/usr/lib/x86_64-linux-gnu/libibverbs/"
    copy_needed "$f"
    mkdir -p "$root/etc/libibverbs.d"
    cp "$usr/etc/libibverbs.d/$provider.driver" "$root/etc/libibverbs.d/"
done

busybox=$(find "$usr/bin" "$usr/usr/bin" -name busybox -type f 2>/dev/null | head -n 1)
[ -n "$busybox" ] || die "busybox-static has no program busybox"
cp "$busybox" "$root/usr/bin/busybox"
for applet in $("$busybox" --list); do
    case $applet in
        busybox|ip|ss) continue ;;
        *) ln -s /bin/busybox "$root/usr/bin/$applet" ;;
    esac
done
# The kernel calls /sbin/modprobe by this path.
ln -s ../bin/busybox "$root/usr/sbin/modprobe"
echo 'root:x:0:0:root:/root:/bin/sh' > "$root/etc/passwd"
echo 'root:x:0:' > "$root/etc/group"
printf 'hosts: files\n' > "$root/etc/nsswitch.conf"
printf 'export PS1="\\h:\\w\\$ "\n' > "$root/etc/profile"

quiet gcc -O2 -Wall -Wextra -static -o "$root/usr/bin/guest-agent" "$here/agent/guest-agent.c"
cp "$here/init" "$root/init"
chmod 755 "$root/init"

# ---------------------------------------------------------------- the image

say "packing the initramfs ..."
cp "$krn/boot/vmlinuz-$release" "$out/vmlinuz"
unpack_kernel "$out/vmlinuz" "$out/vmlinux" ||
    say "cannot unpack the kernel here: guests unpack it, which takes seconds"
(cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet) > "$out/initramfs.tmp"
mv "$out/initramfs.tmp" "$out/initramfs"
{
    echo "kernel $release $version"
    for p in $tool_pkgs busybox-static libc6; do
        f=$(deb "$p")
        echo "$p $(dpkg-deb -f "$f" Version)"
    done
} > "$out/image.info"
rm -rf "$out/work" "$out/debs"
echo "$stamp" > "$out/stamp"
say "done: $out/initramfs, $(($(stat -c %s "$out/initramfs") / 1048576)) MB, kernel $release"
