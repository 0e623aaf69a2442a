#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# run-verbs.sh REPO BUILD SCRATCH - build and run test-verbs
#
# It needs rdma-core's private headers, which guest-provider/build.sh stages below
# the project's build folder (PVRDMA_BUILD, or BUILD); without them the test is
# skipped.  Runs under valgrind if that is installed, else without, and says so.
set -eu

repo=$1
staged=${PVRDMA_BUILD:-$2}/guest-provider/include
scratch=$3
if [ ! -f "$staged/infiniband/driver.h" ]; then
    echo "1..0 # SKIP the private headers are missing: run guest-provider/build.sh"
    exit 0
fi
mkdir -p "$scratch"
prog=$scratch/test-verbs.$$
trap 'rm -f "$prog"' EXIT
# shellcheck disable=SC2046
${CC:-gcc} -O1 -g -std=gnu11 -D_GNU_SOURCE -Wall -Wno-sign-compare \
    $(pkg-config --cflags glib-2.0) -isystem "$staged" -I "$repo/include" \
    -I "$repo/guest-provider" -o "$prog" \
    "$repo"/tests/unit/provider/test-verbs.c \
    "$repo"/tests/unit/provider/fake-kernel.c \
    "$repo"/guest-provider/*.c $(pkg-config --libs glib-2.0) -lpthread
if command -v valgrind > /dev/null; then
    G_SLICE=always-malloc valgrind -q --error-exitcode=99 --leak-check=full \
        --errors-for-leak-kinds=definite --fair-sched=yes "$prog" --tap
else
    echo "# no valgrind here: undefined bytes would not be noticed"
    "$prog" --tap
fi
