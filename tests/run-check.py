#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check`: the core of the tests, then shards that are due; adds up the real results.

The core's layers: `style` (tests/style.sh: formatting, checkpatch, sparse), `tests` (unit
tests and the fuzz corpora in the plain build, by `meson test`), `asan` and `tsan` (unit and
vguest in builds with AddressSanitizer and UndefinedBehaviorSanitizer, and with
ThreadSanitizer), `fuzz` (a short run of each target by tests/fuzz/run.sh), `hw` (tests/hw,
by pytest: the QEMU device against a scripted server), `vm` (tests/vm, by pytest: guests).
They run side by side (runner.py).

Then, until BUDGET minutes have gone by since the beginning, shards that are due
(shards.py), those that wait longest first; one that is old also behind that, or it would
never fit, but not behind twice the time.  What is due and does not fit is named and counts
as skipped, with the commit that it passed at last.  A shard whose last run failed, or is too
old, fails.  What ran adds its line to tests/soak.ledger, but not with CI=true in the
environment: that tree is thrown away.

The last line printed, also written to BUILDDIR/check-summary, is `N passed, N failed, N
skipped`; the exit status is 0 only if nothing failed.
"""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
import runner
import shards
import soak

LAYERS = ['asan', 'tsan', 'tests', 'vm', 'hw', 'style', 'fuzz']
BUDGET = 28  # minutes


def core_tasks(args, chosen):
    """What begins first is first; meson's layers have a lane of their own beside the rest."""
    build, limit = args.builddir, runner.LIMIT
    core = runner.suites(shards.CORE_SUITES)
    tasks = {
        'asan': lambda: [runner.sanitizer_task('asan', 'asan', build, ((core, 1),),
                                               limit['asan'])],
        'tsan': lambda: [runner.sanitizer_task('tsan', 'tsan', build, ((core, 1),),
                                               limit['tsan'])],
        'tests': lambda: [runner.meson_task('tests', build, core, limit['tests'])],
        'vm': lambda: runner.vm_tasks('vm', build, limit['vm']),
        'hw': lambda: runner.pytest_tasks('hw', build, limit['hw']),
        'style': lambda: [runner.script_task(
            'style', build, [os.path.join('tests', 'style.sh'), build], limit['style'])],
        'fuzz': lambda: [runner.fuzz_task('fuzz', build, args.fuzz_seconds, limit['fuzz'])],
    }
    return [task for name in LAYERS if name in chosen for task in tasks[name]()]


def run_core(args, chosen, ledger, tree):
    """Returns the Counts of each layer."""
    load = os.getloadavg()[0]
    began = time.monotonic()
    tasks = core_tasks(args, chosen)
    runner.run_tasks(tasks)
    done = runner.each_counts(tasks)
    if ledger and set(chosen) == set(LAYERS):
        total = runner.total_of(done)
        total.began, total.ended = began, time.monotonic()
        ledger.add(shards.CORE, total, load, tree.commit, '-')
    return done


def fits(name, args, ledger):
    """Whether there is time for a shard."""
    end = (time.monotonic() - START + ledger.seconds(name)) / 60
    return end <= args.budget or (ledger.is_old(name) and end <= 2 * args.budget)


def run_due(args, ledger, tree, writes):
    """The shards that are due and fit, and a Counts of what the ledger says of the others."""
    rest = runner.Counts('ledger')
    ran = []
    for name in ledger.due(tree):
        if fits(name, args, ledger):
            ran.append(name)
            yield soak.run_shard(name, args.builddir, ledger, tree, writes)
        elif not ledger.is_red(name):
            rest.add('skipped', 'shard ' + name, 'due, and no time for its %d s; %s'
                     % (ledger.seconds(name), ledger.passed_at(name)))
    for problem in ledger.problems(ran):
        rest.add('failed', problem)
    yield rest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--builddir', default=os.path.join(runner.SOURCE, 'build'))
    parser.add_argument('--layer', action='append', choices=LAYERS,
                        help='only this layer of the core; may be given again')
    parser.add_argument('--fuzz-seconds', type=int, default=6, help='for each fuzz target')
    parser.add_argument('--budget', type=float, default=float(os.environ.get('BUDGET') or BUDGET),
                        help='minutes from the beginning in which shards may run [%(default)g]')
    args = parser.parse_args()
    runner.end_with_jobs()
    args.builddir = os.path.abspath(args.builddir)
    summary = runner.Summary(os.path.join(args.builddir, 'check-summary'), START)
    ledger = shards.Ledger()
    tree = shards.Tree()
    writes = runner.keeps_ledger()
    summary.add(*run_core(args, args.layer or LAYERS, ledger if writes else None, tree))
    if not args.layer:
        for counts in run_due(args, ledger, tree, writes):
            summary.add(counts)
    return summary.end()


START = time.monotonic()

if __name__ == '__main__':
    sys.exit(main())
