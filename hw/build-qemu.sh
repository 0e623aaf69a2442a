#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Builds qemu-system-x86_64 with the `pvrdma` device.
#
# QEMU is not kept in this repository.  The newest 10.0.x source package of
# Debian's trixie suite (--suite: the newest 10.x or 11.x of another one) is
# fetched through apt, which checks its signature chain and checksums; the mirror
# is whatever this machine's own apt configuration uses for Debian's main archive.  meson (if the installed one is too old) and
# the firmware files come the same way and are unpacked privately: nothing but
# build dependencies is ever installed.
#
# The device is an overlay: hw/rdma and include/pvrdma in the QEMU tree become
# links into this repository, so that editing a file here rebuilds one object,
# and a few lines are added to QEMU's own files: see apply_overlay; a defect of
# QEMU's that tests met is mended (tcg-memory-map.patch).  The overlay
# goes in before the first configure: a new Kconfig symbol later would rebuild
# nearly everything.
#
# Layout under the build folder:
#   apt/       private apt lists and downloads      src/       QEMU with overlay
#   tools/     meson, if needed                     out/       ninja's folder
#   firmware/  BIOS and option ROMs                 qemu-system-x86_64 -> out/
# Each step leaves a stamp that names its inputs and is repeated only when they
# change.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
builddir=$repo/build/qemu
user_src=
sanitize=()
full=no
jobs=${JOBS:-$(nproc)}
tested_suite=trixie
suite=$tested_suite
meson_min=1.5.0

usage()
{
    cat <<USAGE
Usage: ${0##*/} [--suite=NAME | --qemu-src=DIR] [--builddir=DIR] [--jobs=N]
                     [--full] [--sanitize]

  --suite=NAME    Debian's suite that QEMU's source comes from [$suite]; of any
                  other one the newest 10.x or 11.x that can be fetched
  --qemu-src=DIR  build a copy of this QEMU source tree (10.0 or newer, complete
                  enough to configure) instead of fetching one through apt
  --builddir=DIR  where everything goes [build/qemu]
  --jobs=N        parallel compilers [$jobs]
  --sanitize      with AddressSanitizer and UndefinedBehaviorSanitizer
  --full          build for use, with the features and all the devices that a
                  distribution's QEMU has, not the trimmed one for tests

The result is BUILDDIR/qemu-system-x86_64, with --full BUILDDIR/full/qemu-system-x86_64.
USAGE
}

prefix=qemu
. "$repo/scripts/common.sh"
. "$repo/scripts/downloads.sh"

for arg in "$@"; do
    case $arg in
    --suite=*) suite=${arg#*=} ;;
    --qemu-src=*) user_src=${arg#*=} ;;
    --builddir=*) builddir=${arg#*=} ;;
    --jobs=*) jobs=${arg#*=} ;;
    --sanitize) sanitize=(--enable-asan --enable-ubsan) ;;
    --full) full=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$arg'" ;;
    esac
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs must be a number, not '$jobs'"
[[ $suite =~ ^[a-z][a-z0-9-]*$ ]] || die "--suite must be a name, not '$suite'"

mkdir -p "$builddir"
builddir=$(cd "$builddir" && pwd -P)
apt=$builddir/apt
src=$builddir/src
out=$builddir/out
[ "$full" = no ] || out=$builddir/full/out
stamps=$builddir/stamps
log=$builddir/build.log
result=$(dirname "$out")/qemu-system-x86_64
mkdir -p "$stamps"

lock_folder "$builddir"
: >"$log"

# stamp_is NAME TEXT / set_stamp NAME TEXT: was the step done with these inputs?
stamp_is() { [ -f "$stamps/$1" ] && [ "$(cat "$stamps/$1")" = "$2" ]; }
set_stamp() { printf '%s\n' "$2" >"$stamps/$1"; }

# ---- what must be installed -------------------------------------------------

build_deps=(gcc ninja-build pkg-config python3 python3-venv libglib2.0-dev
            libpixman-1-dev libslirp-dev libfdt-dev zlib1g-dev
            dpkg-dev ca-certificates)
# What --full links with: the distribution's choice, without what needs hardware or
# storage clusters of its own kind.
full_deps=(libaio-dev libattr1-dev libcap-ng-dev libgnutls28-dev libnuma-dev
           libpng-dev libsasl2-dev libseccomp-dev libspice-protocol-dev
           libspice-server-dev libusb-1.0-0-dev libusbredirparser-dev liburing-dev
           libzstd-dev)
[ "$full" = no ] || build_deps+=("${full_deps[@]}")

install_deps()
{
    local missing=() pkg
    command -v dpkg-query >/dev/null ||
        die "this script needs a Debian machine (no dpkg-query found)"
    for pkg in "${build_deps[@]}"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$pkg" 2>/dev/null |
            grep -q '^ii' || missing+=("$pkg")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ]; then
        die "missing packages; install them with:
  sudo apt-get install ${missing[*]}"
    fi
    say "installing build dependencies: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    quiet flock /var/lib/apt apt-get update # see apt_lists
    quiet apt-get -y --no-install-recommends install \
        "${missing[@]}"
}

# ---- a private apt, pointed at this machine's mirror --------------------------

. "$repo/scripts/private-apt.bash"

setup_apt()
{
    local codename sources=("deb-src $suite")
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$codename" ] || die "no VERSION_CODENAME in /etc/os-release"
    # Only what is released has updates.
    [ "$suite" != "$tested_suite" ] || sources+=("deb-src $suite-updates")
    private_apt_setup "${sources[@]}" "deb $codename" "deb $codename-backports"
}

# fetch_debs DIR PACKAGE[=VERSION]...: downloads and unpacks into DIR.
fetch_debs()
{
    setup_apt
    private_apt_unpack "$@"
}

# ---- QEMU's source ------------------------------------------------------------

fetch_qemu()
{
    local version versions wanted='10\.0'
    [ "$suite" = "$tested_suite" ] || wanted='1[01]\.[0-9]*'
    setup_apt
    versions=$(private_apt apt-cache showsrc --only-source qemu |
               sed -n "s/^Version: \(1:$wanted\.[0-9].*\)/\1/p" |
               sort -Vru)
    [ -n "$versions" ] || die "the suite $suite lists no qemu source of these versions"
    mkdir -p "$apt/qemu"
    # A listed version need not be there: the pool may have moved on.
    for version in $versions; do
        say "fetching qemu $version (40 MB)"
        rm -f "$apt/qemu/"*
        if fetch "$apt/qemu" private_apt apt-get -q source --download-only \
                "qemu=$version"; then
            qemu_version=$version
            return
        fi
        say "qemu $version cannot be fetched, trying the next one"
    done
    tail -n 5 "$log" >&2
    die "none of these could be fetched: ${versions//$'\n'/ }; see --qemu-src"
}

# Everything but what no build of ours reads; saves two thirds of the space.
copy_tree()
{
    mkdir -p "$2"
    tar -C "$1" --exclude=./.git --exclude=./roms --exclude=./build -cf - . |
        tar -C "$2" -xf -
}

prepare_source()
{
    local key qemu_version
    if [ -n "$user_src" ]; then
        [ -f "$user_src/VERSION" ] && [ -x "$user_src/configure" ] ||
            die "$user_src is not a QEMU source tree"
        user_src=$(cd "$user_src" && pwd -P)
        key="dir $user_src $(cat "$user_src/VERSION")"
    else
        key="apt $suite"
    fi
    stamp_is source "$key" && [ -f "$src/VERSION" ] && return
    rm -rf "$src" "$builddir"/{out,full} "$stamps"/{source,configure,configure-full}
    if [ -n "$user_src" ]; then
        say "copying $user_src"
        copy_tree "$user_src" "$src"
    else
        fetch_qemu
        say "unpacking qemu $qemu_version"
        quiet dpkg-source --no-check --no-copy -x "$apt"/qemu/*.dsc "$src"
        rm -rf "$src/roms" "$apt/qemu"
    fi
    case $(cat "$src/VERSION") in
    10.* | 11.*) ;;
    *) die "QEMU $(cat "$src/VERSION") is neither 10.x nor 11.x" ;;
    esac
    set_stamp source "$key"
}

# add_line FILE LINE: appends the line to a file of QEMU, once.
add_line()
{
    grep -qxF "$2" "$1" || printf '%s\n' "$2" >>"$1"
}

# link_into TARGET LINK: only touches a link that is wrong.
link_into()
{
    [ "$(readlink "$2" 2>/dev/null || true)" = "$1" ] || ln -sfn "$1" "$2"
}

# insert_line FILE AFTER LINE: adds the line behind the first one that matches
# the pattern AFTER, once.
insert_line()
{
    grep -qF "$3" "$1" && return
    sed -i "0,/$2/s|$2|&\\n$3|" "$1"
    grep -qF "$3" "$1" || die "this QEMU's ${1#"$src/"} has no line '$2'"
}

# A stop of a VM that is stopped leaves no trace in QEMU; pvrdma-lost.c must know
# of it.
count_stops()
{
    local file=$src/system/cpus.c
    grep -q vm_stop_calls "$file" && return
    sed '/^static int do_vm_stop(/,/^}/s/^ *RunState oldstate = .*/&\n\n    vm_stop_calls++;/
         /^static int do_vm_stop(/i unsigned int vm_stop_calls;\n' "$file" >"$file.new"
    # All of it or nothing: half of it would build, and count no stop.
    [ "$(grep -c vm_stop_calls "$file.new")" -eq 2 ] ||
        die "this QEMU's do_vm_stop() is unknown"
    mv "$file.new" "$file"
}

# A defect of these QEMUs that guests with several processors meet under TCG.
mend_memory_map()
{
    local mend=(patch -d "$src" -p1 --forward -r - -i "$repo/hw/tcg-memory-map.patch")
    grep -q 'd = address_space_to_dispatch(cpuas->as);' "$src/system/physmem.c" ||
        return 0
    if ! grep -q '^void cpu_destroy_address_spaces(' "$src/system/physmem.c"; then
        say "this QEMU is too old for the patch: guests with several processors may fail"
        return 0
    fi
    # All of it or nothing, as above.
    quiet "${mend[@]}" --dry-run
    quiet "${mend[@]}"
}

# 10.2 does not link without CXL: one function has no stub.
add_stubs()
{
    local stubs=$src/hw/cxl/cxl-host-stubs.c name=cxl_fmws_get_all_sorted
    ! grep -qs "$name" "$src/include/hw/cxl/cxl_host.h" ||
        grep -q "$name" "$stubs" ||
        add_line "$stubs" "GSList *$name(void) { return NULL; }"
}

apply_overlay()
{
    link_into "$repo/hw" "$src/hw/rdma"
    link_into "$repo/include/pvrdma" "$src/include/pvrdma"
    link_into "$repo/hw/pvrdma.mak" \
        "$src/configs/devices/x86_64-softmmu/pvrdma.mak"
    link_into "$repo/hw/pvrdma.json" "$src/qapi/pvrdma.json"
    add_line "$src/hw/meson.build" "subdir('rdma')"
    add_line "$src/hw/Kconfig" "source rdma/Kconfig"
    add_line "$src/qapi/qapi-schema.json" "{ 'include': 'pvrdma.json' }"
    insert_line "$src/qapi/meson.build" '^qapi_all_modules = \[$' "  'pvrdma',"
    insert_line "$src/meson.build" '^trace_events_subdirs = \[$' "  'hw/rdma',"
    count_stops
    mend_memory_map
    add_stubs
}

# ---- tools, firmware ------------------------------------------------------------

version_at_least() { dpkg --compare-versions "$1" ge "$2"; }

prepare_meson()
{
    local tools=$builddir/tools have
    have=$(meson --version 2>/dev/null || echo 0)
    version_at_least "$have" "$meson_min" && return
    if [ ! -x "$tools/usr/bin/meson" ]; then
        local version
        setup_apt
        version=$(private_apt apt-cache madison meson |
                  awk -F' *\\| *' '{print $2; exit}')
        version_at_least "${version:-0}" "$meson_min" ||
            die "meson >= $meson_min is needed, this machine has $have and its
  mirror offers ${version:-none}"
        say "fetching meson $version (this machine has $have)"
        fetch_debs "$tools" "meson=$version"
    fi
    export PATH=$tools/usr/bin:$PATH
    export PYTHONPATH=$tools/usr/lib/python3/dist-packages
}

# QEMU looks for firmware below out/qemu-bundle when it runs from its build
# folder, so that is where the links go; an installed QEMU uses the real paths.
firmware_dirs=(/usr/share/qemu /usr/share/seabios /usr/lib/ipxe/qemu)

prepare_firmware()
{
    local fw=$builddir/firmware dir packages='qemu-system-data seabios ipxe-qemu'
    if ! stamp_is firmware "$packages" || ! [ -d "$fw" ]; then
        say "fetching firmware: $packages"
        # shellcheck disable=SC2086
        fetch_debs "$fw" $packages
        set_stamp firmware "$packages"
    fi
    for dir in "${firmware_dirs[@]}"; do
        [ -d "$fw$dir" ] || die "$fw$dir is missing"
        mkdir -p "$out/qemu-bundle$(dirname "$dir")"
        link_into "$fw$dir" "$out/qemu-bundle$dir"
    done
}

# ---- configure and build ----------------------------------------------------------

# Lets another checkout of the project profit from the same cache.  By its own folder,
# wherever that is: all that is compiled is there.
export CCACHE_BASEDIR=$builddir CCACHE_NOHASHDIR=1

# For the tests: starts fast and is built in minutes.
trimmed=(--without-default-features --without-default-devices
         --with-devices-x86_64=pvrdma)

# For use: every device, QEMU's own hardening, what libvirt and operators expect.
# Loadable modules are left out: those of the distribution fit its own binary only.
complete=(--enable-stack-protector --enable-pie --enable-seccomp --enable-cap-ng
          --enable-numa --enable-linux-aio --enable-linux-io-uring --enable-vnc
          --enable-vnc-sasl --enable-png --enable-spice --enable-gnutls --enable-tpm
          --enable-libusb --enable-usb-redir --enable-attr --enable-virtfs
          --enable-zstd --enable-vhost-vdpa --enable-vhost-crypto --enable-coroutine-pool
          --disable-modules --disable-gtk --disable-sdl --disable-opengl
          --disable-xen --disable-plugins)

configure_qemu()
{
    local args key step=configure
    args=(--python=/usr/bin/python3 --target-list=x86_64-softmmu)
    if [ "$full" = yes ]; then
        step=configure-full
        args+=("${complete[@]}")
    else
        args+=("${trimmed[@]}")
    fi
    args+=(--enable-system --enable-kvm --enable-tcg --enable-slirp
           --enable-fdt=system --enable-pixman --enable-vhost-user
           --enable-vhost-kernel --enable-vhost-net
           --disable-docs --disable-tools --disable-guest-agent
           --disable-debug-info --disable-werror --disable-download
           --disable-install-blobs
           "--firmwarepath=$(IFS=:; echo "${firmware_dirs[*]}")"
           "${sanitize[@]}" "--cc=$(cached_cc gcc)")
    key="${args[*]} $src"
    stamp_is "$step" "$key" && [ -f "$out/build.ninja" ] && return
    say "configuring QEMU $(cat "$src/VERSION") ($step)"
    rm -rf "$out"
    mkdir -p "$out"
    (cd "$out" && quiet "$src/configure" "${args[@]}")
    set_stamp "$step" "$key"
}

# ninja's progress: every line on a terminal, one in a hundred otherwise.
build_qemu()
{
    local status=0
    if [ -t 1 ]; then
        ninja -C "$out" -j "$jobs" qemu-system-x86_64 || status=$?
    else
        ninja -C "$out" -j "$jobs" qemu-system-x86_64 2>&1 |
            tee -a "$log" |
            awk '/^\[[0-9]+\/[0-9]+\]/ {
                     if (n++ % 100 == 0) print; fflush(); next
                 }
                 { print; fflush() }' || status=${PIPESTATUS[0]}
    fi
    [ "$status" -eq 0 ] || die "the build failed; its output is above"
    link_into out/qemu-system-x86_64 "$result"
}

install_deps
prepare_source
apply_overlay
prepare_meson
configure_qemu
prepare_firmware
build_qemu
"$result" -device help 2>&1 | grep -q '^name "pvrdma"' ||
    die "the built QEMU has no pvrdma device"
say "done: $result"
