#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run every test layer and add up the real results.

Layers: `style` (tests/style.sh: formatting, checkpatch, sparse), `tests` (unit,
vguest and the fuzz corpus by `meson test`), `asan` and `tsan` (unit and vguest
again in builds with AddressSanitizer and UndefinedBehaviorSanitizer, and with
ThreadSanitizer), `fuzz` (a short run of each target by tests/fuzz/run.sh), `hw`
(tests/hw, by pytest: the QEMU device against a scripted server), `vm` (tests/vm, by
pytest: guests).

The layers run each suite once; what takes longer (hundreds of rounds, minutes
of fuzzing, a kernel with all its checks) is `make soak`, tests/soak.py.

Time: every test of every layer has a limit, kept by meson or by tests/conftest.py; a
test that hangs fails and the next one runs.  Should a runner itself
hang, it is ended after LIMIT seconds with what it started, and fails.

Counting: a TAP program counts with each of its cases, any other program as
one.  A program that crashes, times out, exits with an error or runs fewer
cases than it planned counts at least one failure more than its cases show.  A
skip is named with its reason and is never a pass.  The last line printed, also
written to BUILDDIR/check-summary, is `N passed, N failed, N skipped`; the exit
status is 0 only if nothing failed.
"""

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

LIMIT = {'style': 900, 'tests': 2400, 'asan': 3000, 'tsan': 3000, 'fuzz': 1800,
         'hw': 1200, 'vm': 3600}
LAYERS = ['style', 'tests', 'asan', 'tsan', 'fuzz', 'hw', 'vm']
SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Of the vm layer: what takes longest, and what has a pair of guests in common.
VM_FIRST = ['driver', 'provider', 'migrate', 'rdmacm', 'conformance', 'hosts_wire']
VM_PAIR = ['boot', 'datacheck', 'lifecycle', 'perftest', 'pingpong']
TAP_LINE = re.compile(r'^(not )?ok\b\s*(\d+)?\s*(?:-\s*)?([^#]*)(?:#\s*(.*))?$')
TAP_OTHER = re.compile(r'\s*(#|$)|TAP version |Bail out!|pragma ')
TAP_PLAN = re.compile(r'^1\.\.(\d+)\s*(?:#\s*(.*))?$')


class Counts:
    """Passed, failed and skipped of one layer, with a line for each that
    did not pass."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0
        self.notes = []

    def add(self, outcome, what, reason=''):
        if outcome == 'passed':
            self.passed += 1
        elif outcome == 'skipped':
            self.skipped += 1
            self.notes.append('skipped  %s: %s' % (what, reason or
                                                   'no reason given'))
        else:
            self.failed += 1
            self.notes.append('FAILED   %s%s' % (what, reason and
                                                 ': ' + reason))

    def line(self):
        return '%d passed, %d failed, %d skipped' % (
            self.passed, self.failed, self.skipped)


def count_tap(counts, name, text):
    """Count the cases in TAP output; returns (cases, failures, planned)."""
    cases = failures = 0
    planned = None
    for line in text.splitlines():
        plan = TAP_PLAN.match(line)
        if plan:
            planned = int(plan.group(1))
            if planned == 0:
                counts.add('skipped', name, plan.group(2))
            continue
        found = TAP_LINE.match(line)
        if not found:
            if not TAP_OTHER.match(line):
                counts.add('failed', name, 'this line is no TAP: %r' % line)
            continue
        cases += 1
        bad, _, title, directive = found.groups()
        what = '%s %s' % (name, title.strip())
        directive = directive or ''
        if directive.upper().startswith('SKIP'):
            counts.add('skipped', what, directive[4:].strip())
        elif bad:
            failures += 1
            counts.add('failed', what, directive)
        else:
            counts.add('passed', what)
    return cases, failures, planned


def count_record(counts, record):
    """Count one program of testlog.json."""
    name = record['name'].split(' / ', 1)[-1]
    good = record['result'] in ('OK', 'EXPECTEDFAIL')
    text = record.get('stdout') or ''
    cases, failures, planned = (0, 0, None)
    if re.search(r'^1\.\.\d', text, re.MULTILINE):
        cases, failures, planned = count_tap(counts, name, text)
    if planned is None:
        if record['result'] == 'SKIP':
            counts.add('skipped', name, text.strip().splitlines()[-1]
                       if text.strip() else '')
        else:
            counts.add('passed' if good else 'failed', name,
                       '' if good else describe(record))
    elif record['result'] != 'SKIP' and not good and not failures:
        counts.add('failed', name, describe(record))
    elif cases < planned:
        counts.add('failed', name, 'planned %d cases, ran %d; %s'
                   % (planned, cases, describe(record)))


def count_meson(counts, path):
    """Count what `meson test` wrote to its testlog.json."""
    with open(path) as stream:
        records = [json.loads(line) for line in stream if line.strip()]
    for record in records:
        count_record(counts, record)
    if not records:
        counts.add('failed', counts.name, 'meson ran no test')


def describe(record):
    """Why meson calls a test bad, and what it said last."""
    said = []
    for part in ('stdout', 'stderr'):
        said += [text.strip() for text in (record.get(part) or '').splitlines()
                 if text.strip() and not TAP_LINE.match(text)][-3:]
    return '%s, status %s, %.1f s; it said: %s' % (
        record['result'], record.get('returncode'),
        record.get('duration') or 0, ' | '.join(said) or 'nothing')


class Job:
    """A program in a process group of its own, which ends with its limit."""

    GRACE = 20  # seconds to end by itself

    def __init__(self, argv, limit, env=None, **options):
        print('+ %s' % ' '.join(argv), flush=True)
        self.limit = limit
        self.late = False
        self.proc = subprocess.Popen(argv, cwd=SOURCE, env=env, start_new_session=True,
                                     **options)
        self.timer = threading.Timer(limit, self._end)
        self.timer.daemon = True
        self.timer.start()

    def _end(self):
        self.late = True
        # What handles SIGTERM removes its folders and guests.
        for sig in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + self.GRACE
            try:
                os.killpg(self.proc.pid, sig)
                while time.monotonic() < end:
                    time.sleep(0.05)
                    self.proc.poll()
                    os.killpg(self.proc.pid, 0)
            except ProcessLookupError:
                return

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Also of an interrupted run: terminals do not interrupt other groups."""
        try:
            if not kind:
                self.proc.wait()
        finally:
            if self.proc.poll() is None:
                self._end()
                self.proc.wait()
            self.timer.cancel()

    def has_ended(self):
        """Whether it has, without waiting."""
        if self.proc.poll() is None:
            return False
        self.timer.cancel()
        return True

    def problem(self):
        """Why it failed, or nothing."""
        if self.late:
            return 'not done within %d s' % self.limit
        return 'ended with status %d' % self.proc.returncode if self.proc.returncode else ''


def run(argv, limit, env=None):
    """Run a program; what is wrong with its end, or nothing."""
    with Job(argv, limit, env) as job:
        pass
    return job.problem()


# Programs of meson's wait more than they compute; those that judge times run alone.
# Guests compute, and take memory.
AT_ONCE = 2 * len(os.sched_getaffinity(0))
GUESTS_AT_ONCE = min(AT_ONCE // 2, 4)


def meson_layer(name, builddir, args, env=None, counts=None):
    """Run `meson test` in @builddir and count, in addition to @counts."""
    counts = counts or Counts(name)
    failed = counts.failed
    log = os.path.join(builddir, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    problem = run(['meson', 'test', '-C', builddir, '--print-errorlogs',
                   '--num-processes=%d' % AT_ONCE] + args,
                  LIMIT[name], env)
    if not os.path.exists(log):
        counts.add('failed', name, 'meson test left no log: ' + (problem or 'status 0'))
        return counts
    count_meson(counts, log)
    if problem and (counts.failed == failed or 'within' in problem):
        counts.add('failed', name, 'meson test ' + problem)
    return counts


# What to build with, and what to run it with.
SANITIZERS = {
    'asan': ('address,undefined',
             {'ASAN_OPTIONS': 'detect_leaks=1:abort_on_error=1',
              'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1'}),
    'tsan': ('thread', {'TSAN_OPTIONS': 'halt_on_error=1'}),
}


UNIT_AND_VGUEST = ['--suite=unit', '--suite=vguest']


def sanitizer(name, build, runs=((UNIT_AND_VGUEST, 1),)):
    """Build with a sanitizer into a folder of its own and run its tests; meson builds
    what these need before it runs them.  Of each of @runs the first says which, the
    second how many times their rounds."""
    counts = Counts(name)
    options, settings = SANITIZERS[name]
    builddir = '%s-%s' % (build, name)
    full = dict(os.environ, **settings)
    problem = run(['./configure', '--builddir=' + builddir, '--sanitize=' + options,
                   '--disable-qemu', '--disable-images', '--disable-fuzz',
                   '--disable-check'], 300, full)
    if problem:
        counts.add('failed', name, 'configure ' + problem)
        return counts
    for which, times in runs:
        meson_layer(name, builddir, ['--timeout-multiplier=%d' % (6 * times), *which],
                    dict(full, VGUEST_SOAK=str(times)), counts)
    return counts


def configured(builddir, what):
    """Whether config.mak says yes, or nothing, about WITH_<what>."""
    try:
        with open(os.path.join(builddir, 'config.mak')) as stream:
            return 'WITH_%s = no' % what not in stream.read()
    except FileNotFoundError:
        return True


def script_layer(name, argv, env=None):
    """Run a script that prints `ok`, `FAIL` or `SKIP`, a name, a colon and a
    text for each of its checks."""
    counts = Counts(name)
    outcomes = {'ok': 'passed', 'FAIL': 'failed', 'SKIP': 'skipped'}
    with Job(argv, LIMIT[name], dict(os.environ, **(env or {})),
             stdout=subprocess.PIPE, universal_newlines=True) as job:
        for line in job.proc.stdout:
            print(line, end='', flush=True)
            word, _, rest = line.partition(' ')
            what, _, text = rest.strip().partition(': ')
            if word in outcomes:
                counts.add(outcomes[word], what, text)
    if job.problem() and (job.late or not counts.failed):
        counts.add('failed', name, '%s %s' % (argv[0], job.problem()))
    return counts


def fuzz_layer(builddir, seconds):
    """Run each fuzz target for some seconds."""
    if configured(builddir, 'FUZZ'):
        return script_layer('fuzz', [os.path.join('tests', 'fuzz', 'run.sh'),
                                     str(seconds)],
                            {'BUILDDIR': builddir + '-fuzz'})
    counts = Counts('fuzz')
    counts.add('skipped', 'fuzz', 'configured with --disable-fuzz')
    return counts


def vm_runs():
    """The files of tests/vm in the order in which to begin them, as arguments of pytest.
    Not test_debug.py, which has tests for another kernel only."""
    def path(name):
        return os.path.join('tests', 'vm', 'test_%s.py' % name)
    rest = sorted(os.path.relpath(found, SOURCE) for found in
                  glob.glob(os.path.join(SOURCE, path('*'))))
    first = [[path(name)] for name in VM_FIRST] + [[path(name) for name in VM_PAIR]]
    known = sum(first, [path('debug')])
    return first + [[name] for name in rest if name not in known]


def pytest_layer(name, builddir, runs=None, env=None):
    """Tests by Debian's pytest, whichever Python runs this: one for each of @runs, lists
    of its arguments, GUESTS_AT_ONCE of them at a time; without these the tests in
    tests/NAME."""
    counts = Counts(name)
    if not shutil.which('pytest-3'):
        counts.add('failed' if configured(builddir, 'CHECK') else 'skipped', name,
                   'pytest-3 is not installed (python3-pytest)')
        return counts
    env = dict(os.environ, PVRDMA_BUILD=builddir, PYTEST_ADDOPTS='', **(env or {}))
    jobs = {}
    with contextlib.ExitStack() as stack:
        for number, args in enumerate(runs or [[os.path.join('tests', name)]]):
            while sum(not job.has_ended() for job in jobs.values()) >= GUESTS_AT_ONCE:
                time.sleep(0.1)
            log = os.path.join(builddir, '%s-tests%s.xml' % (name, number or ''))
            if os.path.exists(log):
                os.unlink(log)
            jobs[log] = stack.enter_context(
                Job(['pytest-3', *args, '--junitxml=' + log], LIMIT[name], env))
    for log, job in jobs.items():
        count_pytest(counts, log, job)
    return counts


def count_pytest(counts, log, job):
    """Count what pytest wrote to @log."""
    failed = counts.failed
    if os.path.exists(log):
        try:
            for test in xml.etree.ElementTree.parse(log).iter('testcase'):
                count_case(counts, test)
        except xml.etree.ElementTree.ParseError as exc:
            counts.add('failed', counts.name, "pytest's results are cut short: %s" % exc)
    # 1: some failed.  It writes its log when it is interrupted, too.
    if not os.path.exists(log) or job.late or job.proc.returncode not in (0, 1) or \
            (job.problem() and counts.failed == failed):
        counts.add('failed', counts.name, 'pytest did not come to its end: '
                   + (job.problem() or 'it left no results'))


def count_case(counts, test):
    """Count one test of JUnit's XML; what it says first is its reason."""
    if not test.get('name'):
        return  # begun when the run was interrupted
    name = '%s.%s' % (test.get('classname'), test.get('name'))
    for tag, outcome in (('failure', 'failed'), ('error', 'failed'), ('skipped', 'skipped')):
        found = test.find(tag)
        if found is not None:
            counts.add(outcome, name, (found.get('message') or '').strip().partition('\n')[0])
            return
    counts.add('passed', name)


def layers(args):
    """Yield the Counts of each chosen layer."""
    build = args.builddir
    chosen = args.layer or LAYERS
    if 'style' in chosen:
        yield script_layer('style', [os.path.join('tests', 'style.sh'), build])
    if 'tests' in chosen:
        yield meson_layer('tests', build, ['--no-rebuild'])
    for name in SANITIZERS:
        if name in chosen:
            yield sanitizer(name, build)
    if 'fuzz' in chosen:
        yield fuzz_layer(build, args.fuzz_seconds)
    if 'hw' in chosen:
        yield pytest_layer('hw', build)
    if 'vm' in chosen:
        yield pytest_layer('vm', build, vm_runs())


def run_layers(each, summary):
    """Run the layers, print their times and results, keep the closing line in the
    file @summary; returns the exit status."""
    if os.path.exists(summary):
        os.unlink(summary)
    done = []
    began = time.monotonic()
    for counts in each:
        counts.seconds = time.monotonic() - began
        began += counts.seconds
        done.append(counts)
        print('== %s: %s' % (counts.name, counts.line()), flush=True)
    total = Counts('total')
    print('\n%.0f s' % (time.monotonic() - START))
    for counts in done:
        for note in counts.notes:
            print('%-8s %s' % (counts.name, note))
    for counts in done:
        print('%-8s %5.0f s  %s' % (counts.name, counts.seconds, counts.line()))
        total.passed += counts.passed
        total.failed += counts.failed
        total.skipped += counts.skipped
    with open(summary, 'w') as stream:
        stream.write(total.line() + '\n')
    print(total.line(), flush=True)
    return 1 if total.failed or not total.passed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--builddir', default=os.path.join(SOURCE, 'build'))
    # So that what was started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser.add_argument('--layer', action='append',
                        choices=LAYERS,
                        help='run only this layer; may be given again')
    parser.add_argument('--fuzz-seconds', type=int, default=6,
                        help='for each fuzz target')
    args = parser.parse_args()
    args.builddir = os.path.abspath(args.builddir)
    return run_layers(layers(args), os.path.join(args.builddir, 'check-summary'))


START = time.monotonic()

if __name__ == '__main__':
    sys.exit(main())
