#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""`make soak`: the shards, what `make check` does not run each time.

usage: soak.py [--builddir DIR] [--factor N] [--quick | --due | SHARD...]

Shards have their names and inputs in shards.py (--list prints them with their last runs).
Without names all of them run; --due: those whose inputs have changed; --quick: the one that
waits longest.  --factor N: many rounds are N times as many, fuzzing N times as long.  It
builds what meson builds; `make soak` and `make soak-quick` build the rest before.

Each adds a line to tests/soak.ledger, if the factor is 1; then N passed, N failed, N
skipped, written to BUILDDIR/soak-summary.
"""

import argparse
import glob
import os
import sys
import time

sys.dont_write_bytecode = True
import runner
import shards

TESTS = os.path.dirname(os.path.abspath(__file__))
LIMIT = runner.SHARD_LIMIT
# Moves in a row, 100 in a plain build and 10 in others, by both paths.
MOVES = ['vguest-moves', 'tcp-moves']


def vm(name):
    return lambda args: runner.vm_tasks(name, args.builddir, LIMIT, ['--shard', name])


def plain(name, **settings):
    def tasks(args):
        return [runner.meson_task(
            name, args.builddir,
            ['--timeout-multiplier=2', *runner.suites(['soak-' + name])], LIMIT,
            dict(os.environ, **settings))]
    return tasks


def sanitized(name):
    def tasks(args):
        return [runner.sanitizer_task(name, shards.SHARDS[name].by, args.builddir,
                                      ((runner.suites(['soak-' + name]), 1),), LIMIT)]
    return tasks


def repeating(args, *paths):
    """meson's tests by these paths of programs that ask how many rounds; a name is the same in
    all builds."""
    names = set()
    for path in glob.glob(os.path.join(TESTS, 'vguest', 'test-*.c')):
        with open(path) as stream:
            if 'vgt_rounds(' in stream.read():
                name = os.path.basename(path)[len('test-'):-len('.c')]
                names |= {'%s-%s' % (by, name) for by in paths}
    return names & runner.meson_tests(args.builddir).keys()


def rounds(args):
    times = 10 * args.factor
    return [runner.meson_task(
        'rounds', args.builddir,
        ['--timeout-multiplier=%d' % (2 * times),
         *sorted(repeating(args, 'vguest').union(MOVES))], LIMIT, dict(os.environ, VGUEST_SOAK=str(times)))]


def sanitized_rounds(kind, *paths):
    """A tenth of a plain build's rounds; but as many moves."""
    def tasks(args):
        times = 10 * args.factor
        return [runner.sanitizer_task(
            'rounds-' + kind, kind, args.builddir,
            ((sorted(repeating(args, *paths).difference(MOVES)), times), (MOVES, 10 * times)),
            LIMIT)]
    return tasks


def fuzz(args):
    return [runner.fuzz_task('fuzz', args.builddir, 60 * args.factor, LIMIT,
                             weight=runner.CAPACITY)]


def mutants(part):
    def tasks(args):
        return [runner.script_task('mutants-%d' % part, args.builddir, [
            os.path.join('tests', 'mutations', 'run.py'),
            '--part', '%d/%d' % (part, shards.MUTANTS),
            '--builddir', args.builddir + '-mutants'], LIMIT)]
    return tasks


def after(counts, job_argv, builddir, tasks):
    """A job first; if that is well, @tasks, whose weight it has."""
    def steps():
        job = runner.Job(job_argv, LIMIT, runner.log_path(builddir, counts.name, 'build'))
        yield job
        if job.problem():
            counts.add('failed', os.path.basename(job_argv[0]), job.problem())
            return
        for task in tasks():
            yield from task.steps
    return [runner.Task(counts, steps())]


def hw(args):
    counts = runner.Counts('hw')
    if not runner.configured(args.builddir, 'QEMU'):
        return [runner.said(counts, 'skipped', 'configured with --disable-qemu')]
    build = args.builddir + '-hw-asan'

    def tasks():
        # A plain QEMU would pass as well.
        with open(os.path.join(build, 'qemu', 'qemu-system-x86_64'), 'rb') as stream:
            if b'__asan_init' not in stream.read():
                counts.add('failed', 'build-qemu.sh', 'made a QEMU without AddressSanitizer')
        return runner.pytest_tasks(
            'hw', build, LIMIT, env={
                'ASAN_OPTIONS': 'detect_leaks=0:exitcode=99',
                'PVRDMA_BACKEND': os.path.abspath(os.path.join(args.builddir, 'backend'))},
            counts=counts)
    return after(counts, [os.path.join('hw', 'build-qemu.sh'), '--sanitize',
                          '--builddir=' + os.path.join(build, 'qemu'),
                          '--qemu-src=' + os.path.join(args.builddir, 'qemu', 'src')],
                 args.builddir, tasks)


def debian13(args):
    return [runner.script_task('debian13', args.builddir, [
        os.path.join('tests', 'debian13.sh'), args.builddir + '-debian13'], LIMIT)]


def debug(name, *files):
    """What concerns the driver; first, that this kernel does look."""
    def tasks(args):
        counts = runner.Counts(name)
        if not runner.configured(args.builddir, 'IMAGES') or \
                not runner.configured(args.builddir, 'QEMU'):
            return [runner.said(counts, 'skipped', 'configured without guests')]
        build = os.path.join(args.builddir, 'debug')

        def tests():
            # With another kernel all would pass as well.
            with open(os.path.join(build, 'images', 'image.info')) as stream:
                if not stream.readline().rstrip().endswith('-debug'):
                    counts.add('failed', 'build-debug-kernel.sh', 'made no debugging kernel')
            return runner.pytest_tasks(
                name, build, LIMIT, [[*(os.path.join('tests', 'vm', 'test_%s.py' % what)
                                        for what in files), '--shard', 'all']], counts=counts)
        return after(counts, [os.path.join('images', 'build-debug-kernel.sh'), args.builddir],
                     args.builddir, tests)
    return tasks


def libvirt(args):
    return runner.pytest_tasks('libvirt', args.builddir, LIMIT,
                               [[os.path.join('tests', 'libvirt'), '--shard', 'all']])


# What each of shards.SHARDS runs.
TASKS = {
    **{name: vm(name) for name, shard in shards.SHARDS.items() if shard.by == 'vm'},
    'plain': plain('plain'), 'quiet': plain('quiet', VGUEST_JUDGE='1'),
    **{name: sanitized(name) for name, shard in shards.SHARDS.items()
       if shard.by in runner.SANITIZERS},
    'rounds': rounds, 'rounds-asan': sanitized_rounds('asan', 'vguest', 'tcp', 'reset'),
    'rounds-tsan': sanitized_rounds('tsan', 'vguest'),
    'fuzz': fuzz,
    **{'mutants-%d' % part: mutants(part) for part in range(1, shards.MUTANTS + 1)},
    'hw': hw, 'debian13': debian13,
    'debug-driver': debug('debug-driver', 'debug', 'driver', 'datacheck'),
    'debug-provider': debug('debug-provider', 'provider'),
    'libvirt': libvirt,
}


def run_shard(name, builddir, ledger, tree, writes, factor=1):
    """Returns its Counts; and writes its line."""
    print('== shard %s: %s' % (name, shards.SHARDS[name].what), flush=True)
    load = os.getloadavg()[0]
    tasks = TASKS[name](argparse.Namespace(builddir=builddir, factor=factor))
    runner.run_tasks(tasks)
    counts = runner.total_of(runner.each_counts(tasks), 'shard ' + name)
    if not counts.passed and not counts.failed and not counts.skipped:
        counts.add('failed', counts.name, 'it ran no test')
    if counts.passed or counts.failed:
        ledger.add(name, counts, load, tree.commit, tree.unchanged(name),
                   writes and factor == 1)
    return counts


def show(ledger, tree):
    for name in ledger.stale():
        print('%-15s %-4s age %2d, %4d s, %-38s %s' % (
            name, 'due' if ledger.is_due(name, tree) else '', ledger.age(name), ledger.seconds(name),
            ledger.passed_at(name), shards.SHARDS[name].what))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--builddir', default=os.path.join(runner.SOURCE, 'build'))
    parser.add_argument('--factor', type=int, default=1)
    parser.add_argument('--list', action='store_true', help='the shards, and their last runs')
    parser.add_argument('--due', action='store_true', help='those that are due')
    parser.add_argument('--quick', action='store_true', help='the one that waits longest')
    parser.add_argument('shard', nargs='*', choices=[*shards.SHARDS, []])
    args = parser.parse_args()
    runner.end_with_jobs()
    args.builddir = os.path.abspath(args.builddir)
    ledger, tree = shards.Ledger(), shards.Tree()
    if args.list:
        show(ledger, tree)
        return 0
    chosen = args.shard or (ledger.stale()[:1] if args.quick else
                            ledger.due(tree) if args.due else list(shards.SHARDS))
    summary = runner.Summary(os.path.join(args.builddir, 'soak-summary'), START)
    for name in chosen:
        summary.add(run_shard(name, args.builddir, ledger, tree, runner.keeps_ledger(),
                              args.factor))
    return summary.end()


START = time.monotonic()

if __name__ == '__main__':
    sys.exit(main())
