#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# stock-qemu.sh [BUILDDIR] - a distribution's QEMU that has vfio-user-pci
#
# Unpacks the QEMU of Debian's testing suite and all that it needs, its C library
# included, into BUILDDIR/stock-qemu/root, and makes the script
# BUILDDIR/stock-qemu/qemu-system-x86_64, which runs it there with its own loader
# and libraries.  Nothing is installed, and no root rights are needed.  Does nothing
# if that was done before; remove BUILDDIR/stock-qemu for a newer one.
#
# The packages are kept in $XDG_CACHE_HOME/pvrdma/stock-qemu, if that variable is
# set, so that other build folders need not download them.
#
# Exit status 3: it cannot be had here (no such package, no network); 1: anything
# else went wrong.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
builddir=${1:-$repo/build}
suite=testing
packages=(qemu-system-x86 qemu-system-data seabios ipxe-qemu)
# A bound for what a changed suite may make us download.
max_bytes=$((400 << 20))

prefix=stock-qemu
. "$repo/scripts/common.sh"

mkdir -p "$builddir/stock-qemu"
work=$(cd "$builddir/stock-qemu" && pwd -P)
debs=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/pvrdma/stock-qemu}
debs=${debs:-$work/debs}
apt=$work/apt
root=$work/root
log=$work/build.log
mkdir -p "$debs"

# One at a time here, and in the cache that other build folders share.
exec 8>"$work/lock" 9>"$debs/lock"
flock -w 1200 8 || die "another run holds $work/lock"
if [ -f "$work/complete" ]; then
    say "already there: $(cat "$work/complete")"
    exit 0
fi
flock -w 1200 9 || die "another run holds $debs/lock"
: >"$log"
die_status=3

. "$repo/scripts/private-apt.bash"

# As if no package were installed: all of them are wanted.
options=(-o "Dir::Etc::sourcelist=$apt/sources.list"
         -o "Dir::Etc::sourceparts=$apt/none" -o "Dir::State::lists=$apt/lists"
         -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
         -o "APT::Sandbox::User=$(id -un)" -o Acquire::Retries=2
         -o Acquire::http::Timeout=60 -o APT::Install-Recommends=false)
stock_apt()
{
    local tool=$1
    shift
    # Not with the locks: it must not hold them longer than we do.
    timeout 900 "$tool" "${options[@]}" "$@" 8>&- 9>&-
}

# "PACKAGE=VERSION FILE SIZE SHA256" of each package.
wanted()
{
    stock_apt apt-get -q -y --print-uris install "${packages[@]}" |
        sed -n "s/^'[^']*' \([^_]*\)_\([^_]*\)_[^_]*\.deb .*/\1=\2/p" |
        sed 's/%3a/:/' | xargs -r apt-cache "${options[@]}" show |
        awk '$1 == "Package:" { p = $2 } $1 == "Version:" { v = $2 }
             $1 == "Architecture:" { a = $2 } $1 == "Size:" { size = $2 }
             $1 == "SHA256:" { sum = $2 }
             $0 == "" { file = p "_" v "_" a ".deb"; sub(":", "%3a", file)
                        print p "=" v, file, size, sum }'
}

have() { echo "$2  $debs/$1" | sha256sum --check --status 2>/dev/null; }

private_apt_setup "deb $suite" 8>&- 9>&-
: >"$apt/status"
list=$(wanted 2>>"$log") || die "apt cannot say what ${packages[*]} of $suite need, see $log"
die_status=1
[ -n "$list" ] || die "what apt says of ${packages[0]} cannot be read"
bytes=$(awk '{ sum += $3 } END { print sum }' <<<"$list")
[ "$bytes" -le "$max_bytes" ] || die "$bytes bytes to download: that cannot be right"

missing=()
while read -r package file _ sum; do
    have "$file" "$sum" || missing+=("$package")
done <<<"$list"
if [ ${#missing[@]} -gt 0 ]; then
    say "downloading QEMU of $suite: ${#missing[@]} packages, $((bytes >> 20)) MB in all"
    rm -rf "$debs/new"
    mkdir "$debs/new"
    die_status=3
    (cd "$debs/new" && quiet stock_apt apt-get -q download "${missing[@]}")
    die_status=1
    mv "$debs"/new/*.deb "$debs/"
    rmdir "$debs/new"
fi
# What a newer version has taken the place of.
for file in "$debs"/*.deb; do
    grep -qF " ${file##*/} " <<<"$list" || rm "$file"
done

say "unpacking"
rm -rf "$root"
mkdir "$root"
while read -r _ file _ sum; do
    have "$file" "$sum" || die "$debs/$file is not what apt promised"
    quiet dpkg-deb -x "$debs/$file" "$root"
done <<<"$list"

lib=$root/usr/lib/x86_64-linux-gnu
loader=$(find "$root" -name 'ld-linux-x86-64.so.2' -not -path '*/share/*' -print -quit)
[ -n "$loader" ] || die "no loader in $root"
paths=$(find "$lib" -maxdepth 2 -name '*.so.*' -printf '%h\n' | sort -u | paste -sd :)
cat >"$work/qemu-system-x86_64" <<END
#!/bin/sh
# Written by tests/vm/stock-qemu.sh.
export QEMU_MODULE_DIR='$lib/qemu'
exec '$loader' --inhibit-cache --library-path '$paths' \\
    '$root/usr/bin/qemu-system-x86_64' -L '$root/usr/share/qemu' \\
    -L '$root/usr/share/seabios' -L '$root/usr/lib/ipxe/qemu' "\$@"
END
chmod 755 "$work/qemu-system-x86_64"
quiet "$work/qemu-system-x86_64" -device help
grep -q '^name "vfio-user-pci"' "$log" || die "this QEMU has no vfio-user-pci"
"$work/qemu-system-x86_64" --version | sed -n '1p' >"$work/complete.new"
mv "$work/complete.new" "$work/complete"
say "done: $(cat "$work/complete")"
