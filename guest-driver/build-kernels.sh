#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# build-kernels.sh - build pvrdma.ko for the kernels that a release of Debian has
#
# usage: guest-driver/build-kernels.sh [--ends] [BUILDDIR [SUITE]]     (default build)
#
# For the oldest and the newest kernel of each series (6.1, 6.12, ...), or with --ends
# for the oldest and the newest of all: driver and selftest are built against the headers, with
# no warning, and nothing boots.  The headers are unpacked below
# BUILDDIR/guest-driver/kernels and kept; nothing is installed on this machine.
#
# Without SUITE: the kernels that this machine's apt knows, by this machine's compiler.
# With SUITE, such as trixie: those of that release, its security archive and its
# backports, by that release's compiler in the root of build-env.sh, which needs root;
# this machine's own release needs none.
#
# Prints "ok", "FAIL" or "SKIP", the kernel and its version for each and, last, "N passed,
# N failed, N skipped".  What the machine cannot fetch or compile is skipped, with the reason.

set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
repo=$(cd "$here/.." && pwd -P)
ends= words=()
for arg; do
    case $arg in
        --ends) ends=1 ;;
        -h|--help) sed -n '4,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "build-kernels.sh: unknown option $arg" >&2; exit 2 ;;
        *) words+=("$arg") ;;
    esac
done
build=${words[0]:-$repo/build} suite=${words[1]:-}
work=$build/guest-driver/kernels
mkdir -p "$work"
build=$(cd "$build" && pwd -P)
work=$build/guest-driver/kernels
prefix=kernels
log=$work/build${suite:+-$suite}.log
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"
lock_folder "$work"
: >"$log"
apt=$work/apt${suite:+-$suite}
. "$repo/scripts/private-apt.bash"
. "$repo/scripts/in-root.bash"

passed=0 failed=0 skipped=0
ok() { echo "ok   $*"; passed=$((passed + 1)); }
fail() { echo "FAIL $*"; failed=$((failed + 1)); }
skip() { echo "SKIP $*"; skipped=$((skipped + 1)); }
finish()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

# by_apt TOOL ARGUMENT...: of the machine, or with the suite's lists.
by_apt()
{
    if [ -n "$suite" ]; then
        private_apt "$@"
    else
        "$1" -o "APT::Sandbox::User=$(id -un)" "${@:2}"
    fi
}

# chosen: of kernels' releases, one a line, the oldest and the newest of each series.
chosen()
{
    sort -V | awk -v ends="$ends" '{
        split($1, n, "[.+-]")
        series = ends ? "all" : n[1] "." n[2]
        if (series != last && NR > 1 && newest != oldest) print newest
        if (series != last) { print oldest = $1; last = series }
        newest = $1
    } END { if (NR && newest != oldest) print newest }'
}

# fetch_headers RELEASE VERSION: into $top, if they are not there.
fetch_headers()
{
    local depends common kbuild deb
    [ ! -f "$top/$1-$2" ] || return 0
    depends=$(by_apt apt-cache show "linux-headers-$1=$2" | sed -n 's/^Depends: //p' | head -n 1)
    common=$(sed -n 's/.*\(linux-headers-[^ ,]*-common\).*/\1/p' <<<"$depends")
    kbuild=$(sed -n 's/.*\(linux-kbuild-[^ ,]*\).*/\1/p' <<<"$depends")
    rm -rf "$work/debs"
    fetch "$work/debs" by_apt apt-get download "linux-headers-$1=$2" "$common=$2" "$kbuild" ||
        return
    for deb in "$work"/debs/*.deb; do
        dpkg-deb -x "$deb" "$top" >>"$log" 2>&1 || return
    done
    rm -rf "$work/debs"
    # They name their other half by its place in an installed system.
    [ -n "$root" ] || sed -i "s,/usr/src,$top/usr/src," "$top/usr/src/linux-headers-$1/Makefile"
    : >"$top/$1-$2"
}

# compile RELEASE: what make says, of driver and selftest.  Without type information, which
# asks for pahole.
compile()
{
    local kdir=/usr/src/linux-headers-$1 src=/build/kernels run=(in_root "$root") dir
    local cc=$compiler
    if [ -z "$root" ]; then
        kdir=$top$kdir src=$work/src run=()
        cc=$(cached_cc "$compiler")
    fi
    rm -rf "$root$src"
    mkdir -p "$root$src/include"
    cp "$here"/*.c "$here"/*.h "$here/Kbuild" "$root$src/"
    cp -r "$here/selftest" "$root$src/"
    cp -r "$repo/include/pvrdma" "$root$src/include/"
    for dir in "$src" "$src/selftest"; do
        "${run[@]}" make -C "$kdir" M="$dir" CC="$cc" CONFIG_DEBUG_INFO_BTF_MODULES= modules || return
    done
}

# build RELEASE: says what came of it.
build()
{
    local version compiler said status=0
    version=$(by_apt apt-cache show --no-all-versions "linux-headers-$1" |
              sed -n 's/^Version: //p')
    fetch_headers "$1" "$version" || status=$?
    case $status in
        0) ;;
        1) skip "$1 $version: its headers cannot be fetched"; return ;;
        *) fail "$1 $version: its headers do not match the checksum in apt's lists"; return ;;
    esac
    compiler=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\{0,1\}[^ ]*\(gcc-[0-9]*\) .*/\1/p' \
                   "$top/usr/src/linux-headers-$1/include/config/auto.conf")
    if [ -z "$compiler" ] || ! ${root:+in_root "$root"} sh -c "command -v $compiler" >/dev/null 2>&1
    then
        skip "$1 $version: its compiler, ${compiler:-not gcc}, is not installed"
        return
    fi
    said=$(compile "$1" 2>&1) || status=1
    echo "$said" >>"$log"
    if [ $status -ne 0 ] || grep '\(warning\|error\): ' <<<"$said"; then
        [ $status -eq 0 ] || tail -n 20 <<<"$said"
        fail "$1 $version"
    else
        ok "$1 $version by $compiler"
    fi
}

root= top=$work
if [ -n "$suite" ]; then
    lists=("deb $suite")
    [ "$suite" = testing ] || lists+=("deb $suite-security" "deb $suite-backports")
    if [ "$suite" != "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" ]; then
        said=$("$here/build-env.sh" "$suite" "$build" 2>&1 >/dev/null) || {
            [ $? -eq 3 ] || { echo "$said"; fail "$suite: build-env.sh"; finish; }
            skip "$suite: $(tail -n 1 <<<"$said")"
            finish
        }
        root=$build/guest-driver/$suite/root
        top=$root
    fi
    private_apt_setup "${lists[@]}" >&2
else
    apt_lists
fi
releases=$(by_apt apt-cache pkgnames linux-headers- |
           sed -n 's/^linux-headers-\([0-9]*\.[0-9]*[.][^ ]*-amd64\)$/\1/p' |
           grep -v -e -cloud- -e -rt- | chosen)
[ -n "$releases" ] || fail "apt knows no kernel headers"
for release in $releases; do
    build "$release"
done
finish
