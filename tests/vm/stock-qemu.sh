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
. "$repo/scripts/downloads.sh"

mkdir -p "$builddir/stock-qemu"
work=$(cd "$builddir/stock-qemu" && pwd -P)
debs=$work/debs
apt=$work/apt
root=$work/root
log=$work/build.log

exec 8>"$work/lock"
flock -w 1200 8 || die "another run holds $work/lock"
if [ -f "$work/complete" ]; then
    say "already there: $(cat "$work/complete")"
    exit 0
fi
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
    # Not with the lock: it must not hold it longer than we do.
    timeout 900 "$tool" "${options[@]}" "$@" 8>&-
}

# "PACKAGE=VERSION SIZE" of each package.
wanted()
{
    stock_apt apt-get -q -y --print-uris install "${packages[@]}" |
        sed -n "s/^'[^']*' \([^_]*\)_\([^_]*\)_[^_]*\.deb \([0-9]*\) .*/\1=\2 \3/p" |
        sed 's/%3a/:/'
}

private_apt_setup "deb $suite" 8>&-
: >"$apt/status"
list=$(wanted 2>>"$log") || die "apt cannot say what ${packages[*]} of $suite need, see $log"
die_status=1
[ -n "$list" ] || die "what apt says of ${packages[0]} cannot be read"
bytes=$(awk '{ sum += $2 } END { print sum }' <<<"$list")
[ "$bytes" -le "$max_bytes" ] || die "$bytes bytes to download: that cannot be right"

say "fetching QEMU of $suite, $((bytes >> 20)) MB"
rm -rf "$debs"
mapfile -t list < <(cut -d' ' -f1 <<<"$list")
status=0
fetch "$debs" stock_apt apt-get -q download "${list[@]}" || status=$?
[ $status -ne 2 ] || die "what was downloaded is not what apt's lists promise, see $log"
die_status=3
[ $status -eq 0 ] || die "cannot fetch it, see $log"
die_status=1

say "unpacking"
rm -rf "$root"
mkdir "$root"
for file in "$debs"/*.deb; do
    quiet dpkg-deb -x "$file" "$root"
done
rm -rf "$debs"

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
