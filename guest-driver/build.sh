#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# build.sh - build pvrdma.ko for the kernel of the guest image
#
# usage: guest-driver/build.sh [--check] [--force] [BUILDDIR]   (default build)
#
# The kernel's headers come from the distribution's packages through apt; they
# are unpacked below BUILDDIR/guest-driver and nothing is installed.  The kernel
# is the one that BUILDDIR/images/image.info names, or the newest.  The result
# is BUILDDIR/guest/pvrdma.ko, and beside it pvrdma_kloop.ko, a test of kernel
# verbs.
#
# --check also runs sparse, and checkpatch.pl --strict from the kernel's source
# package; any complaint is a failure.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
check=
force=
build=
for arg; do
    case $arg in
        --check) check=1 ;;
        --force) force=1 ;;
        -h|--help) sed -n '5,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "build.sh: unknown option $arg" >&2; exit 2 ;;
        *) build=$arg ;;
    esac
done
[ -n "$build" ] || build=$here/../build
mkdir -p "$build/guest" "$build/guest-driver"
build=$(cd "$build" && pwd)
work=$build/guest-driver
log=$work/build.log
prefix=guest-driver
. "$here/../scripts/common.sh"
. "$here/../scripts/downloads.sh"
lock_folder "$work"

case $work in
    *[[:space:]:]*) die "the kernel's build cannot work below '$work'" ;;
esac
if [ -f "$build/images/image.info" ]; then
    release=$(sed -n 's/^kernel \([^ ]*\) .*/\1/p' "$build/images/image.info")
    version=$(sed -n 's/^kernel [^ ]* //p' "$build/images/image.info")
else
    apt_lists
    package=$(apt-cache depends linux-image-amd64 |
              sed -n 's/^ *Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | tail -n 1)
    release=${package#linux-image-}
    version=$(apt-cache show --no-all-versions "$package" | sed -n 's/^Version: //p')
fi
[ -n "$release" ] && [ -n "$version" ] ||
    die "the kernel's version is unknown; run 'apt-get update' first"
series=$(echo "$release" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
headers=linux-headers-$release

stamp=$(cat "$here"/*.c "$here"/*.h "$here/Kbuild" "$here/build.sh" \
            "$here"/selftest/* \
            "$here"/../include/pvrdma/*.h | sha256sum | cut -d' ' -f1)-$version
if [ -z "$force$check" ] && [ -f "$build/guest/pvrdma.ko" ] &&
   [ "$(cat "$work/stamp" 2>/dev/null)" = "$stamp" ]; then
    say "up to date: $build/guest/pvrdma.ko"
    exit 0
fi
: > "$log"
rm -f "$work/stamp"

fetch_debs()
{
    fetch "$work/debs" apt-get -o APT::Sandbox::User=root download "$@" || {
        tail -n 5 "$log" >&2
        die "cannot download $*; try 'apt-get update' as root"
    }
}

kdir=$work/kernel/usr/src/$headers
if [ ! -f "$work/kernel/$version" ]; then
    say "downloading the headers of kernel $release ..."
    apt_lists
    depends=$(apt-cache show "$headers=$version" | sed -n 's/^Depends: //p' | head -n 1)
    common=$(echo "$depends" | sed -n 's/.*\(linux-headers-[^ ,]*-common\).*/\1/p')
    kbuild=$(echo "$depends" | sed -n 's/.*\(linux-kbuild-[^ ,]*\).*/\1/p')
    [ -n "$common" ] && [ -n "$kbuild" ] || die "cannot read what $headers depends on"
    rm -rf "$work/kernel" "$work/debs"
    fetch_debs "$headers=$version" "$common=$version" "$kbuild"
    mkdir -p "$work/kernel"
    for deb in "$work"/debs/*.deb; do
        quiet dpkg-deb -x "$deb" "$work/kernel"
    done
    # The headers name their other half by its place in an installed system.
    sed -i "s,/usr/src,$work/kernel/usr/src," "$kdir/Makefile"
    : > "$work/kernel/$version"
fi
compiler=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\{0,1\}[^ ]*\(gcc-[0-9]*\) .*/\1/p' \
               "$kdir/include/config/auto.conf" 2>/dev/null)
command -v "${compiler:-gcc}" > /dev/null 2>&1 || compiler=gcc

# The kernel's build writes beside the sources, so it gets a copy of them.
rm -rf "$work/src"
mkdir -p "$work/src/include"
cp "$here"/*.c "$here"/*.h "$here/Kbuild" "$work/src/"
cp -r "$here/../include/pvrdma" "$work/src/include/"
say "building pvrdma.ko for kernel $release ..."
cp -r "$here/selftest" "$work/src/"
for dir in "$work/src" "$work/src/selftest"; do
    quiet make -C "$kdir" M="$dir" CC="$(cached_cc "${compiler:-gcc}")" ${check:+C=2} modules
done
if grep -q '\(warning\|error\): ' "$log"; then
    grep '\(warning\|error\): ' "$log" >&2
    die "the build has warnings or errors"
fi
for ko in "$work/src/pvrdma.ko" "$work/src/selftest/pvrdma_kloop.ko"; do
    result=$build/guest/${ko##*/}
    objcopy --strip-debug "$ko" "$result.tmp"
    chmod 644 "$result.tmp"
    mv "$result.tmp" "$result"
done

if [ -n "$check" ]; then
    command -v sparse > /dev/null 2>&1 || die "missing package: sparse"
    script=$work/checkpatch/linux-source-$series/scripts
    if [ ! -f "$script/checkpatch.pl" ]; then
        say "fetching checkpatch.pl ..."
        fetch_debs "linux-source-$series"
        mkdir -p "$work/checkpatch"
        dpkg-deb --fsys-tarfile "$work/debs/linux-source-$series"_*.deb |
            tar xO "./usr/src/linux-source-$series.tar.xz" | xz -dc |
            tar x -C "$work/checkpatch" --wildcards "linux-source-$series/scripts/checkpatch.pl" \
                "linux-source-$series/scripts/spelling.txt" \
                "linux-source-$series/scripts/const_structs.checkpatch"
        rm -f "$work/debs/linux-source-$series"_*.deb
    fi
    # In a folder of the build: it leaves files where it runs.
    (cd "$work" && "$script/checkpatch.pl" --no-tree --strict --terse -q \
        -f "$here"/*.[ch] "$here"/selftest/*.[ch]) > "$work/checkpatch.log" 2>&1 || true
    if grep -v '0 errors, 0 warnings, 0 checks' "$work/checkpatch.log" >&2; then
        die "checkpatch found problems"
    fi
    say "sparse and checkpatch --strict: clean"
fi
echo "$stamp" > "$work/stamp"
say "done: $build/guest/pvrdma.ko"
