# SPDX-License-Identifier: GPL-2.0-or-later
#
# A kernel of the distribution's for guests; sourced, by sh and bash alike, behind common.sh.

# number FILE OFFSET BYTES: what is there, little-endian.
number()
{
    od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

# unpack_kernel BZIMAGE ELF: what is packed by xz or zstd in it, if it is, and has the note
# by which QEMU starts it (PVH's entry).  By Linux's boot protocol: setup_sects (at 497) and
# one sectors are in front, then come payload_offset (584) bytes, then payload_length
# (588), of which the last 4 are no part of the stream.
unpack_kernel()
{
    at=$((($(number "$1" 497 1) + 1) * 512 + $(number "$1" 584 4)))
    case $(number "$1" "$at" 4) in
        4247762216) unpack=zstd ;;
        *) unpack=xz ;;
    esac
    rm -f "$2"
    tail -c "+$((at + 1))" "$1" | head -c "$(($(number "$1" 588 4) - 4))" |
        $unpack -dc > "$2.tmp" 2>> "$log" &&
        readelf -n "$2.tmp" 2>> "$log" | grep -q 'Xen.*0x00000012' &&
        mv "$2.tmp" "$2" && return
    rm -f "$2.tmp"
    return 1
}

# collect_modules DIR RELEASE ROOT MODULE...: these of the kernel unpacked in DIR, and those
# that they need, into ROOT, uncompressed.
collect_modules()
{
    collect_dir=$1 collect_release=$2 collect_to=$3/usr/lib/modules/$2
    shift 3
    mkdir -p "$collect_to"
    for collect_m; do
        modprobe -d "$collect_dir" -S "$collect_release" --show-depends "$collect_m" 2>> "$log" ||
            die "the kernel $collect_release has no module $collect_m"
    done > "$collect_dir/modules.deps"
    sed -n "s,^insmod $collect_dir/lib/modules/$collect_release/\\([^ ]*\\).*,\\1,p" \
        "$collect_dir/modules.deps" | sort -u |
        (cd "$collect_dir/lib/modules/$collect_release" &&
         cpio -pdm --quiet "$collect_to" 2>> "$log") || die "cannot copy the modules, see $log"
    find "$collect_to" -name '*.ko.xz' -exec xz -d {} +
    cp "$collect_dir/lib/modules/$collect_release"/modules.order \
       "$collect_dir/lib/modules/$collect_release"/modules.builtin \
       "$collect_dir/lib/modules/$collect_release"/modules.builtin.modinfo "$collect_to/"
    quiet depmod -b "${collect_to%/usr/lib/modules/*}" "$collect_release"
}
