#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Builds the guest's rdma-core provider, libvmw_pvrdma-rdmavNN.so, once for each
# private ABI NN of libibverbs.
#
# libibverbs opens only the file with its own number, and a provider needs the
# private headers (infiniband/driver.h and what it includes) of a release with that
# number, which no package ships.  They are taken from the source packages of Debian
# suites: apt names the file and its checksum from the signed lists of this machine's
# own mirror.  The library to link with is made of the list of names in the source.
# Nothing is installed, no root needed.
#
# The number is that of the first release of rdma-core which has it, so a build from
# release V with number NN is for NN to V.  34 begins at 44 here, the oldest that was
# ever tried; its releases differ in a detail that qp.c finds out.
#
# Layout under the build folder (build/guest-provider):
#   apt-src-SUITE/ lists           SUITE/src its source, SUITE/version
#   abi-NN/include the staged headers, abi-NN/link a libibverbs to link with
# Result: build/guest/libvmw_pvrdma-rdmavNN.so for each NN, and build/guest/provider.abis,
# a line "NN FIRST LAST" for each: the releases of rdma-core that it is for

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
repo=$(cd "$here/.." && pwd -P)
builddir=$repo/build
user_src=()
# The newest number that was ever built.
newest=65
# Debian 13, whose number Debian 12 has too, and what comes next.
suites=${PVRDMA_RDMA_CORE_SUITES:-trixie testing}

usage()
{
    cat <<USAGE
Usage: ${0##*/} [--suites='SUITE...'] [--rdma-core-src=DIR]... [--builddir=DIR]

  --suites='SUITE...'  Debian suites with the wanted releases of rdma-core
                       [\$PVRDMA_RDMA_CORE_SUITES, or trixie testing]
  --rdma-core-src=DIR  take this rdma-core source and no suite's; may be given more
                       than once
  --builddir=DIR       the project's build folder [build]

What was fetched is kept: remove build/guest-provider/SUITE to look for a newer one.
CC, CFLAGS and LDFLAGS of the environment are used.
USAGE
}

prefix=provider
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

for arg in "$@"; do
    case $arg in
    --suites=*) suites=${arg#*=} ;;
    --rdma-core-src=*) user_src+=("$(cd "${arg#*=}" && pwd -P)") ;;
    --builddir=*) builddir=${arg#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$arg'" ;;
    esac
done
[ -n "$suites" ] || [ ${#user_src[@]} -gt 0 ] || die "no suites, no source"

mkdir -p "$builddir/guest-provider" "$builddir/guest"
builddir=$(cd "$builddir" && pwd -P)
work=$builddir/guest-provider
log=$work/build.log
read -ra cc <<<"${CC:-gcc}" # a compiler may have words: ccache gcc

lock_folder "$work"
: > "$log"

. "$repo/scripts/private-apt.bash"

# fetch_source SUITE: into $work/SUITE/src.  The signature chain of the sources ends
# in the suite's signed Release file; only the upstream tarball is fetched, which is
# all that is needed, and at times all that a mirror has.
fetch_source()
{
    local suite=$1 apt=$work/apt-src-$1 private_apt_ready=
    [ ! -f "$work/$suite/complete" ] || return 0
    command -v apt-get >/dev/null || die "apt-get is needed"
    private_apt_setup "deb-src $suite"
    say "fetching rdma-core of $suite (2 MB)"
    rm -rf "${work:?}/$suite"
    mkdir -p "$work/$suite/src"
    fetch "$work/$suite/files" private_apt apt-get -q source --download-only --tar-only \
        --only-source rdma-core || {
        tail -n 5 "$log" >&2
        die "cannot fetch the source of rdma-core in $suite; --suites chooses others"
    }
    tar -C "$work/$suite/src" --strip-components=1 -xf "$work/$suite/files/"*.orig.tar.*z*
    rm -rf "$work/$suite/files" "$apt"
    touch "$work/$suite/complete"
}

# cmake_value SRC VARIABLE
cmake_value()
{
    sed -n "s/^set($2 \"\([0-9]*\).*/\1/p" "$1/CMakeLists.txt" | head -n 1
}

# stage DIR FILE...: links below $inc.
stage()
{
    local dir=$inc/$1
    shift
    mkdir -p "$dir"
    ln -sf "$@" "$dir/"
}

# What rdma-core's cmake would publish for a provider, without cmake and the
# libraries its configuration looks for.
stage_headers()
{
    local src=$1 abi=$2 inc=$3
    stage infiniband "$src"/libibverbs/*.h \
        "$src/kernel-headers/rdma/ib_user_ioctl_verbs.h"
    stage rdma "$src"/kernel-headers/rdma/*.h
    stage ccan "$src"/ccan/*.h
    stage util "$src"/util/*.h
    mkdir -p "$inc/kernel-abi"
    (cd "$src/kernel-headers" &&
         python3 -W ignore "$src/buildlib/make_abi_structs.py" \
             rdma/ib_user_verbs.h "$inc/kernel-abi/ib_user_verbs.h")
    cat >"$inc/config.h" <<CONFIG
#define HAVE_STATEMENT_EXPR 1
#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1
#define HAVE_TYPEOF 1
#define HAVE_ISBLANK 1
#define HAVE_BUILTIN_CLZ 1
#define HAVE_BUILTIN_CLZL 1
#define HAVE_FUNC_ATTRIBUTE_ALWAYS_INLINE 1
#define IBVERBS_PABI_VERSION $abi
CONFIG
}

# A libibverbs with all names and versions and no code, of rdma-core's list of them.
# A name listed for more than one version is linked with the newest.
make_link()
{
    local src=$1 abi=$2 dir=$3
    mkdir -p "$dir"
    sed -e "s/@IBVERBS_PABI_VERSION@/$abi/g" -e 's,/\*.*\*/,,' \
        "$src/libibverbs/libibverbs.map.in" |
        awk -v c="$dir/names.c" -v map="$dir/names.map" '
            /^[A-Z_0-9.]+ *\{/ { node = $1; nodes[++n] = node }
            /^[ \t]+[A-Za-z_0-9]+;/ { sub(/;.*/, "", $1); of[$1] = node }
            END {
                for (i = 1; i <= n; i++) {
                    printf "%s {\n    global:\n", nodes[i] > map
                    for (s in of)
                        if (of[s] == nodes[i]) {
                            printf "        %s;\n", s > map
                            printf "void %s(void) {}\n", s > c
                        }
                    print (i == 1 ? "    local: *;\n};" : "};") > map
                }
            }'
    quiet "${cc[@]}" -shared -nostdlib -fPIC -w -fno-builtin -Wl,-soname,libibverbs.so.1 \
        -Wl,--version-script="$dir/names.map" -o "$dir/libibverbs.so" "$dir/names.c"
}

# prepare SRC ABI: headers and library of an ABI, unless they are there.
prepare()
{
    local src=$1 abi=$2 dir=$work/abi-$2
    local key="v2 $src $(cmake_value "$src" PACKAGE_VERSION)"
    if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$key" ] &&
       [ -f "$dir/include/infiniband/driver.h" ]; then
        return
    fi
    rm -rf "$dir"
    stage_headers "$src" "$abi" "$dir/include"
    make_link "$src" "$abi" "$dir/link"
    printf '%s\n' "$key" >"$dir/stamp"
}

compile()
{
    local abi=$1 dir=$work/abi-$1 out sources flags
    out=$builddir/guest/libvmw_pvrdma-rdmav$abi.so
    sources=("$here"/{context,pd,memwin,cq,qp,srq,post,wr}.c)
    flags="${cc[*]} ${CFLAGS:-} ${LDFLAGS:-}"
    if [ -z "$(find "$here"/*.[ch] "$here/build.sh" "$repo"/include/pvrdma \
                    "$dir/stamp" -newer "$out" 2>&1)" ] &&
       [ "$(cat "$dir/flags" 2>/dev/null)" = "$flags" ]; then
        say "up to date: $out"
        return
    fi
    say "compiling ${out##*/}"
    # shellcheck disable=SC2086
    "${cc[@]}" ${CFLAGS:--O2 -g} -std=gnu11 -fPIC -fvisibility=hidden \
        -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
        -Wstrict-prototypes -Wmissing-prototypes -Wshadow \
        -Wno-gnu-variable-sized-type-not-at-end \
        -isystem "$dir/include" -I "$repo/include" -I "$here" \
        -shared -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--as-needed \
        ${LDFLAGS:-} -o "$out.tmp" "${sources[@]}" "$dir/link/libibverbs.so" \
        -lpthread || die "${out##*/} does not compile"
    objdump -p "$out.tmp" | grep -q "IBVERBS_PRIVATE_$abi\$" ||
        die "${out##*/} does not ask for the symbols of ABI $abi"
    # No program: the folder's executables are copied into test guests' PATH.
    chmod 644 "$out.tmp"
    mv "$out.tmp" "$out"
    printf '%s\n' "$flags" >"$dir/flags"
    say "done: $out"
}

make_library()
{
    prepare "$1" "$2"
    compile "$2"
}

# attempt COMMAND...: in a process of its own; an error there ends only that.  Not to
# be called where the shell ignores errors, in conditions: it would do so inside, too.
attempt()
{
    "$@" &
    failed=0
    wait $! || failed=1
}

# A suite that cannot be had must not end all builds, as long as there is one; the
# tests of what is missing say it again.
sources=("${user_src[@]}")
if [ ${#sources[@]} -eq 0 ]; then
    for suite in $suites; do
        attempt fetch_source "$suite"
        if [ "$failed" = 0 ]; then
            sources+=("$work/$suite/src")
        else
            say "WARNING: no source of rdma-core in $suite"
        fi
    done
    [ ${#sources[@]} -gt 0 ] || die "no source of rdma-core"
fi

# The newest release of each number.
declare -A last src_of
for src in "${sources[@]}"; do
    abi=$(cmake_value "$src" IBVERBS_PABI_VERSION)
    version=$(cmake_value "$src" PACKAGE_VERSION)
    [ -n "$abi" ] && [ -n "$version" ] ||
        die "cannot read version and provider ABI from $src/CMakeLists.txt"
    [ "$abi" -ge 34 ] ||
        die "$src: provider ABI $abi is older than 34, the oldest that is supported"
    if [ "${last[$abi]:-0}" -lt "$version" ]; then
        last[$abi]=$version src_of[$abi]=$src
    fi
done
for f in "$builddir"/guest/libvmw_pvrdma-rdmav*.so; do
    abi=${f##*-rdmav}
    [ -n "${last[${abi%.so}]:-}" ] || rm -f "$f"
done
abis=$(printf '%s\n' "${!last[@]}" | sort -n)
for abi in $abis; do
    attempt make_library "${src_of[$abi]}" "$abi"
    if [ "$failed" = 1 ]; then
        # Nor must a suite that moves on.
        [ "$abi" -gt "$newest" ] || exit 1
        say "WARNING: no provider for ABI $abi (rdma-core ${last[$abi]}), which is" \
            "newer than $newest, the newest ever built"
        rm -rf "$builddir/guest/libvmw_pvrdma-rdmav$abi.so" "$work/abi-$abi"
        unset "last[$abi]"
    fi
done
for abi in $abis; do
    [ -z "${last[$abi]:-}" ] ||
        echo "$abi $((abi == 34 ? 44 : abi)) ${last[$abi]}"
done >"$builddir/guest/provider.abis"
