#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# run.sh - build the fuzz targets and run each for some seconds
#
#   run.sh [SECONDS [TARGET...]]     default: 30 seconds, every target
#
#   BUILDDIR   build folder [build-fuzz in the source tree]
#   KEEP=1     merge what was found into the corpus in the source tree (inputs
#              that reach new code only)
#
# A run that executed next to nothing is a failure: a target must do more than read its
# corpus, for which it gets more time, and try as many inputs for each second of the
# processor's as the file floors says, a tenth of what it did when that was measured.
#
# As many run at a time as there are processors.  Prints one line per target and,
# last, "N passed, N failed, N skipped".  A crashing input is left in
# $BUILDDIR/fuzz/TARGET/.
set -u

src=$(cd "$(dirname "$0")/../.." && pwd -P)
build=${BUILDDIR:-$src/build-fuzz}
seconds=${1:-30}
[ $# -gt 0 ] && shift
. "$src/scripts/common.sh"
passed=0 failed=0 skipped=0

finish()
{
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

# Whoever configured without fuzzing does not come here.
fail_all()
{
    failed=$((failed + 1))
    echo "FAIL all fuzz targets: $1"
    finish
}

command -v clang >/dev/null 2>&1 || fail_all 'clang is not installed'
printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n){return 0;}' |
    clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null ||
    fail_all 'clang has no libFuzzer (package libclang-rt-dev)'

# A coverage-instrumented library with AddressSanitizer and with
# UndefinedBehaviorSanitizer, whose findings end the program; the C compiler's own
# idea of undefined symbols in shared objects does not fit sanitizers.
options='-fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined'
cc=$(cached_cc clang)
if [ "$(cat "$build/options" 2>/dev/null)" != "$cc $options" ]; then
    rm -rf "$build/meson-private" "$build/meson-info" "$build/build.ninja"
    mkdir -p "$build"
    CC=$cc meson setup "$build" "$src" -Db_sanitize=address,undefined \
        -Db_lundef=false "-Dc_args=$options" >"$build/setup.log" 2>&1 || {
        tail -20 "$build/setup.log"
        echo "FAIL fuzz: meson could not set up $build"
        failed=$((failed + 1))
        finish
    }
    echo "$cc $options" >"$build/options"
fi

all=$(sed -n "s/^  '\([a-z0-9-]*\)': .*/\1/p" "$src/tests/fuzz/meson.build")
targets=${*:-$all}
programs=
for t in $targets; do
    programs="$programs tests/fuzz/fuzz-$t"
done
# shellcheck disable=SC2086
ninja -C "$build" $programs >"$build/ninja.log" 2>&1 || {
    tail -20 "$build/ninja.log"
    echo "FAIL fuzz: the targets could not be built"
    failed=$((failed + 1))
    finish
}

# spent - $cpu: the seconds of processors that this shell's children have had.  Not in a
# shell below this one, which has other children.
spent()
{
    times >"$work/times"
    cpu=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' \
        "$work/times")
}

# run_target TARGET - one line that begins with ok or FAIL, others are about that
run_target()
{
    t=$1
    work=$build/fuzz/$t
    kept=$src/tests/fuzz/corpus/$t
    program=$build/tests/fuzz/fuzz-$t

    mkdir -p "$work/corpus" "$kept"
    floor=$(sed -n "s/^$t  *//p" "$src/tests/fuzz/floors")
    [ "${floor:-0}" -gt 0 ] || {
        echo "FAIL fuzz-$t: it has no line in tests/fuzz/floors, or none that asks for anything"
        return
    }
    # Twice what the corpus took when that was measured; on a busy machine, once, twice what
    # it takes there.
    limit=$((seconds + $(find "$work/corpus" "$kept" -type f | wc -l) / (5 * floor)))
    for attempt in 1 2; do
        spent && before=$cpu
        "$program" -max_total_time="$limit" -timeout=20 -rss_limit_mb=2048 \
            -max_len=4096 -print_final_stats=1 -artifact_prefix="$work/" \
            "$work/corpus" "$kept" >"$work/log" 2>&1
        status=$?
        spent && cpu=$((cpu - before))
        runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$work/log")
        corpus=$(sed -n 's/^#\([0-9]*\)[[:space:]]*INITED.*/\1/p' "$work/log")
        if [ "$status" -ne 0 ] || [ "${runs:-0}" -gt "${corpus:-0}" ]; then
            break
        fi
        [ $attempt -eq 2 ] ||
            limit=$((seconds + 2 * $(sed -n 's/^Done .* in \([0-9]*\) second.*/\1/p' "$work/log")))
    done
    cov=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work/log" | tail -1)
    if [ "$status" -ne 0 ]; then
        echo "FAIL fuzz-$t: status $status, see $work/log"
        grep -E '^(SUMMARY|==[0-9]+==ERROR)|Test unit written' "$work/log"
    elif [ "${runs:-0}" -le "${corpus:-0}" ]; then
        echo "FAIL fuzz-$t: nothing but its corpus in $limit s, see $work/log"
    elif [ "$runs" -lt $((cpu * floor)) ]; then
        echo "FAIL fuzz-$t: $runs inputs in $cpu s of a processor, not even" \
            "$((cpu * floor)), see $work/log"
    else
        echo "ok   fuzz-$t: ${runs:-?} inputs, $(find "$work/corpus" -type f | wc -l) new," \
            "coverage ${cov:-?}, $cpu s of a processor"
        [ "${KEEP:-0}" != 1 ] ||
            "$program" -merge=1 "$kept" "$work/corpus" >"$work/merge.log" 2>&1 ||
            echo "     fuzz-$t: merging failed, see $work/merge.log"
    fi
}

# slice NUMBER - every COUNTth target
slice()
{
    at=0
    for t in $targets; do
        [ $((at % count)) -ne "$1" ] || run_target "$t"
        at=$((at + 1))
    done
}

# One for each processor.
count=$(nproc)
lane=0
{
    while [ $lane -lt "$count" ]; do
        slice $lane &
        lane=$((lane + 1))
    done
    wait
} | tee "$build/results"
passed=$(grep -c '^ok ' "$build/results")
# shellcheck disable=SC2086
set -- $targets
failed=$(($# - passed))
finish
