#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# style.sh [BUILDDIR] - the style checks of the projects that this one extends
#
# Prints "ok", "FAIL" or "SKIP", the check's name and a colon for each of:
#   clang-format  backend/ and the C of the tests, by backend/.clang-format
#   checkpatch    hw/, by QEMU's checkpatch.pl
#   driver        guest-driver/, by sparse and by the kernel's checkpatch.pl --strict
#   docs          links between documents, and documents that other files name, by docs.py
# and, last, "N passed, N failed, N skipped".  What a failed check said is above
# its line.  They run side by side, since one of them builds the driver and another has
# hundreds of files to read.  The checks need what `make all` built in BUILDDIR [build].
set -u

src=$(cd "$(dirname "$0")/.." && pwd -P)
build=$(cd "${1:-$src/build}" && pwd -P)
cd "$src" || exit 1

ok() { echo "ok   $*"; }
fail() { echo "FAIL $*"; }
skip() { echo "SKIP $*"; }

# absent WHAT: did configure agree to do without?
absent() { grep -qx "WITH_$1 = no" "$build/config.mak" 2> /dev/null; }

check_clang_format()
{
    # Releases of clang-format disagree; this is Debian 12's.
    if ! command -v clang-format-14 > /dev/null; then
        if absent FORMAT; then
            skip "clang-format: this release has no clang-format-14"
        elif absent CHECK; then
            skip "clang-format: configured with --disable-check"
        else
            fail "clang-format: clang-format-14 is not installed"
        fi
        return
    fi
    files=$(find backend tests/bench tests/clock tests/fuzz tests/reset tests/unit \
                 tests/vguest tests/vm -name '*.[ch]')
    # shellcheck disable=SC2086
    if clang-format-14 --style=file:backend/.clang-format --dry-run -Werror $files; then
        ok "clang-format: $(echo "$files" | wc -l) files"
    else
        fail "clang-format: files are not formatted"
    fi
}

check_qemu()
{
    script=$build/qemu/src/scripts/checkpatch.pl
    if [ ! -f "$script" ]; then
        if absent QEMU; then
            skip "checkpatch: configured with --disable-qemu"
        else
            fail "checkpatch: no QEMU source in $build/qemu"
        fi
        return
    fi
    # __has_include, which finds moved headers, passes for a platform's macro.
    if perl "$script" --no-tree --terse -q -f hw/*.[ch] |
       grep -v -e '^total: 0 errors' \
            -e '^hw/pvrdma-compat.h:.*architecture specific defines'; then
        fail "checkpatch: complaints about hw/"
    else
        ok "checkpatch: hw/"
    fi
}

check_driver()
{
    if [ ! -d "$build/guest-driver/kernel" ]; then
        if absent IMAGES; then
            skip "driver: configured with --disable-images"
        else
            fail "driver: no kernel headers in $build/guest-driver"
        fi
        return
    fi
    if guest-driver/build.sh --check --force "$build"; then
        ok "driver: sparse and checkpatch --strict"
    else
        fail "driver: complaints about guest-driver/"
    fi
}

check_docs()
{
    if words=$(python3 tests/docs.py); then
        ok "docs: $words"
    else
        echo "$words"
        fail "docs: links to nothing"
    fi
}

said=$(mktemp -d) || exit 1
trap 'rm -rf "$said"' EXIT
checks='clang_format qemu driver docs'
for check in $checks; do
    "check_$check" > "$said/$check" 2>&1 &
done
wait
passed=0 failed=0 skipped=0
for check in $checks; do
    cat "$said/$check"
    case $(tail -n 1 "$said/$check") in
        'ok   '*) passed=$((passed + 1)) ;;
        'SKIP '*) skipped=$((skipped + 1)) ;;
        'FAIL '*) failed=$((failed + 1)) ;;
        # It ended before its verdict.
        *) failed=$((failed + 1)); echo "FAIL $check: it said nothing" ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
