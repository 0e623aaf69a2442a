#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Builds the guest's rdma-core provider, libvmw_pvrdma-rdmavNN.so.
#
# A provider needs rdma-core's private headers (infiniband/driver.h and what it
# includes), which no package ships.  They are taken from the source package of
# Debian's trixie suite: apt names the file and its checksum from the signed
# lists of this machine's own mirror.  The library to link with comes from this
# machine's suite, unpacked privately.  Nothing is installed, no root needed.
#
# One build serves all rdma-core releases of one private ABI number (NN: 34 from
# 44 to 56 at least); qp.c says what has to be watched for that.
#
# Layout under the build folder (build/guest-provider):
#   apt/ private lists and downloads    rdma-core/ its source
#   include/ the staged headers         link/ libibverbs
# Result: build/guest/libvmw_pvrdma-rdmavNN.so

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
repo=$(cd "$here/.." && pwd -P)
builddir=$repo/build
user_src=
suite=trixie

usage()
{
    cat <<USAGE
Usage: ${0##*/} [--rdma-core-src=DIR] [--builddir=DIR]

  --rdma-core-src=DIR  take the private headers from this rdma-core source
  --builddir=DIR       the project's build folder [build]

CC, CFLAGS and LDFLAGS of the environment are used.
USAGE
}

prefix=provider
. "$repo/scripts/common.sh"

for arg in "$@"; do
    case $arg in
    --rdma-core-src=*) user_src=$(cd "${arg#*=}" && pwd -P) ;;
    --builddir=*) builddir=${arg#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$arg'" ;;
    esac
done

mkdir -p "$builddir/guest-provider" "$builddir/guest"
builddir=$(cd "$builddir" && pwd -P)
work=$builddir/guest-provider
apt=$work/apt
log=$work/build.log
inc=$work/include
cc=${CC:-gcc}

exec 9>"$work/lock"
flock 9
: > "$log"

. "$repo/scripts/private-apt.bash"

setup_apt()
{
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$codename" ] || die "no VERSION_CODENAME in /etc/os-release"
    private_apt_setup "deb-src $suite" "deb $codename"
}

# The source's signature chain ends in the suite's signed Release file; only the
# upstream tarball is fetched, which is all that is needed.
fetch_source()
{
    local uri sum
    setup_apt
    read -r uri sum < <(private_apt apt-get -q source --print-uris \
                            --only-source rdma-core 2>/dev/null |
        awk '/\.orig\.tar\.[a-z0-9]+'\''/ { gsub("'\''", "", $1); print $1, $NF; exit }')
    [ -n "${uri:-}" ] && [ -n "${sum:-}" ] ||
        die "the suite $suite lists no rdma-core source"
    say "fetching ${uri##*/} (2 MB)"
    rm -rf "$work/rdma-core" "$work/orig.tar"
    mkdir -p "$work/rdma-core"
    quiet /usr/lib/apt/apt-helper \
        -o "APT::Sandbox::User=$(id -un)" \
        download-file "$uri" "$work/orig.tar" "$sum"
    tar -C "$work/rdma-core" --strip-components=1 -xf "$work/orig.tar"
    rm -f "$work/orig.tar"
}

# stage DIR FILE...: links below include/.
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
    local src=$1 pabi
    pabi=$(sed -n 's/^set(IBVERBS_PABI_VERSION "\([0-9]*\)").*/\1/p' \
               "$src/CMakeLists.txt")
    [ -n "$pabi" ] || die "cannot read the provider ABI from $src/CMakeLists.txt"
    rm -rf "$inc"
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
#define IBVERBS_PABI_VERSION $pabi
CONFIG
    echo "$pabi" >"$work/pabi"
}

prepare()
{
    local key="v1 ${user_src:-apt $suite}"
    if [ -f "$work/stamp" ] && [ "$(cat "$work/stamp")" = "$key" ] &&
       [ -f "$inc/infiniband/driver.h" ] && [ -d "$work/link/usr" ]; then
        return
    fi
    command -v apt-get >/dev/null || die "apt-get is needed"
    if [ -z "$user_src" ]; then
        fetch_source
    fi
    stage_headers "${user_src:-$work/rdma-core}"
    setup_apt
    private_apt_unpack libibverbs1 "$work/link"
    printf '%s\n' "$key" >"$work/stamp"
}

compile()
{
    local pabi lib out sources flags
    pabi=$(cat "$work/pabi")
    out=$builddir/guest/libvmw_pvrdma-rdmav$pabi.so
    lib=$(find "$work/link" -name 'libibverbs.so.1' | head -n 1)
    [ -n "$lib" ] || die "no libibverbs.so.1 below $work/link"
    sources=("$here"/{context,pd,cq,qp,srq,post,wr}.c)
    flags="$cc ${CFLAGS:-} ${LDFLAGS:-}"
    if [ -z "$(find "$here"/*.[ch] "$here/build.sh" "$repo"/include/pvrdma \
                    "$work/stamp" -newer "$out" 2>&1)" ] &&
       [ "$(cat "$work/flags" 2>/dev/null)" = "$flags" ]; then
        say "up to date: $out"
        return
    fi
    say "compiling ${out##*/}"
    # shellcheck disable=SC2086
    "$cc" ${CFLAGS:--O2 -g} -std=gnu11 -fPIC -fvisibility=hidden \
        -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
        -Wstrict-prototypes -Wmissing-prototypes -Wshadow \
        -Wno-gnu-variable-sized-type-not-at-end \
        -isystem "$inc" -I "$repo/include" -I "$here" \
        -shared -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,--as-needed \
        -Wl,--allow-shlib-undefined ${LDFLAGS:-} \
        -o "$out.tmp" "${sources[@]}" "$lib" -lpthread
    # No program: the folder's executables are copied into test guests' PATH.
    chmod 644 "$out.tmp"
    mv "$out.tmp" "$out"
    printf '%s\n' "$flags" >"$work/flags"
    say "done: $out"
}

prepare
compile
