#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# run-verbs.sh REPO BUILD SCRATCH HOW - build and run test-verbs
#
# HOW: valgrind, or asan (with UBSan) or tsan: the compiler's sanitizers.
#
# It needs rdma-core's private headers, which guest-provider/build.sh stages below the
# project's build folder (PVRDMA_BUILD, or BUILD) for each provider ABI; the test runs
# with all of them.  What is missing is a failure, unless configure was told to do
# without.
set -eu

repo=$1
build=${PVRDMA_BUILD:-$2}
staged=$build/guest-provider
scratch=$3
how=$4
run='' flags=''

# absent WHAT OPTION PROBLEM: skip the test if configure was given OPTION, else fail.
absent()
{
    if grep -qx "WITH_$1 = no" "$build/config.mak" 2> /dev/null; then
        echo "1..0 # SKIP configured with $2"
        exit 0
    fi
    echo "Bail out! $3"
    exit 1
}

case $how in
    valgrind)
        command -v valgrind > /dev/null ||
            absent CHECK --disable-check "no valgrind: undefined bytes would not be noticed"
        run='valgrind -q --error-exitcode=99 --leak-check=full
            --errors-for-leak-kinds=definite --fair-sched=yes'
        export G_SLICE=always-malloc
        ;;
    # Tests that go on where an access faulted are in this one only: the other two get
    # stuck there.
    asan) flags='-fsanitize=address,undefined -fno-sanitize-recover=all
        -DGO_ON_AT_FAULTS' ;;
    # It does not know fences; what they are for is not seen by it.
    tsan) flags='-fsanitize=thread -Wno-tsan' ;;
esac

abis=$(for f in "$staged"/abi-*/include/infiniband/driver.h; do
    [ ! -f "$f" ] || echo "${f#"$staged"/abi-}" | cut -d/ -f1
done)
[ -n "$abis" ] ||
    absent IMAGES --disable-images "no private headers: run guest-provider/build.sh"

mkdir -p "$scratch"
prog=$scratch/test-verbs.$$
trap 'rm -f "$prog".*' EXIT
for abi in $abis; do
    # shellcheck disable=SC2046,SC2086
    ${CC:-gcc} -O1 -g -std=gnu11 -D_GNU_SOURCE -Wall -Wno-sign-compare $flags \
        $(pkg-config --cflags glib-2.0) -isystem "$staged/abi-$abi/include" \
        -I "$repo/include" -I "$repo/guest-provider" -o "$prog.$abi" \
        "$repo"/tests/unit/provider/test-verbs.c \
        "$repo"/tests/unit/provider/verbs-*.c \
        "$repo"/tests/unit/provider/fake-kernel.c \
        "$repo"/guest-provider/*.c $(pkg-config --libs glib-2.0) -lpthread
done
# One TAP stream: the tests of each ABI one after the other.
count=0 status=0
for abi in $abis; do
    # shellcheck disable=SC2086
    $run "$prog.$abi" --tap > "$prog.out" || status=$?
    sed -n "s/^\(not ok\|ok\) [0-9]*/\1/p" "$prog.out" > "$prog.lines"
    grep -v '^\(not ok\|ok\) \|^1\.\.\|^TAP version' "$prog.out" || :
    while read -r line; do
        count=$((count + 1))
        case $line in
            'not ok '*) echo "not ok $count - abi-$abi${line#not ok}" ;;
            *) echo "ok $count - abi-$abi${line#ok}" ;;
        esac
    done < "$prog.lines"
    [ "$status" = 0 ] || {
        count=$((count + 1))
        echo "not ok $count - abi-$abi ended with status $status"
        break
    }
done
echo "1..$count"
exit "$status"
