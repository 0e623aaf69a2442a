#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The test runners themselves: what hangs fails, the rest runs, nothing passes
that did not say so.

usage: test-runners.py SOURCE BUILDDIR

Prints TAP.
"""

import contextlib
import functools
import glob
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import tap

SOURCE, BUILD = sys.argv[1:]


sys.path.insert(0, os.path.join(SOURCE, 'tests'))
import runner


# By LIMIT and RETRY a run takes some ten seconds instead of hours.
HANGING = """
import threading, time, unittest
import conftest
conftest.LIMIT, conftest.RETRY = 1, 2

class HangingSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        time.sleep(1000)

    def test_never_runs(self):
        pass

class Hanging(unittest.TestCase):
    def test_1_hangs(self):
        try:
            time.sleep(1000)
        except Exception:  # as tests do that wait for something
            pass

    def test_2_hangs_in_cleanups(self):
        self.addCleanup(time.sleep, 1000)
        self.addCleanup(time.sleep, 1000)
        self.fail('own words')

    def test_3_waits_for_a_lock(self):
        threading.Event().wait()

    def test_4_passes(self):
        pass

    def test_5_has_time(self):
        time.sleep(1.5)
    test_5_has_time.time_limit = 20

    def test_6_part(self):
        for part in range(4):
            with self.subTest(part=part):
                self.assertNotIn(part, (1, 2, 3))

    def test_7_skips(self):
        self.skipTest('a reason')

class HangingTearDown(unittest.TestCase):
    @classmethod
    def tearDownClass(cls):
        time.sleep(1000)

    def test_passes(self):
        pass
"""

# What came first in a test's failure.
HANGING_NOTES = """\
FAILED   HangingSetUp.test_never_runs: failed on setup with "conftest.TimeLimit: not done within 1 s"
FAILED   Hanging.test_1_hangs: conftest.TimeLimit: not done within 1 s
FAILED   Hanging.test_2_hangs_in_cleanups: AssertionError: own words
FAILED   Hanging.test_3_waits_for_a_lock: conftest.TimeLimit: not done within 1 s
FAILED   Hanging.test_6_part: (part=1): AssertionError: 1 unexpectedly found in (1, 2, 3)
skipped  Hanging.test_7_skips: a reason
FAILED   HangingTearDown.test_passes: failed on teardown with "conftest.TimeLimit: not done within 1 s"
"""

INTERRUPTED = """
import os, signal, time
from lib import fixture

class Session:
    kept = os.path.join(os.path.dirname(__file__), 'session')

    def __init__(self, _):
        open(self.kept, 'w').close()

    def keep_logs(self, _):
        pass

    def close(self):
        os.unlink(self.kept)

fixture.require_build = lambda: None
fixture.Session = Session

class Interrupted(fixture.PrivateTest):
    def test_1_fails(self):
        self.fail()

    @classmethod
    def tearDownClass(cls):
        os.kill(os.getpid(), signal.SIGTERM)
        raise Exception('the daemon got the signal, too')

    def test_2_is_interrupted(self):
        self.addCleanup(os.mkdir, self.session.kept + '-cleaned')
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1000)

    def test_3_never_runs(self):
        pass
"""


def quietly(tasks):
    """Run them; what runner.py prints, which is of the failed ones what they said."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runner.run_tasks(tasks)
    return said.getvalue()


def by_pytest(folder, *texts, apart=False, more=()):
    """What runner.py counts of test modules, run @apart at the same time or together and
    with @more options, and what is printed."""
    for name, text in zip(('it', 'more'), texts):
        with open(os.path.join(folder, 'test_%s.py' % name), 'w') as stream:
            stream.write(text)
    tests = os.path.join(SOURCE, 'tests')
    names = ['test_it.py', 'test_more.py'] if apart else ['']
    options = ['-c', os.path.join(tests, 'pytest.ini'), '--rootdir', folder, '-p', 'conftest',
               *more]
    tasks = runner.pytest_tasks(
        'hw', folder, 60, [[os.path.join(folder, name), *options] for name in names],
        {'PYTHONPATH': tests + ':' + os.path.join(tests, 'vm')})
    said = quietly(tasks)
    for log in glob.glob(os.path.join(folder, 'check-logs', '*.log')):
        with open(log) as stream:
            said += stream.read()
    return tasks[0].counts, said


def unreadable(folder):
    """One module that cannot be imported does not hide the others."""
    counts, said = by_pytest(folder, 'import there_is_no_such_module\n',
                             'import unittest\n\nclass More(unittest.TestCase):\n'
                             '    def test_passes(self):\n        pass\n')
    if counts.line() != '1 passed, 1 failed, 0 skipped' or \
            "No module named 'there_is_no_such_module'" not in said:
        yield '%s %s' % (counts.notes, said)
    counts, _ = by_pytest(folder, '', '')
    if counts.line() != '0 passed, 1 failed, 0 skipped':
        yield 'no test at all: ' + counts.line()


def limits(folder):
    counts, said = by_pytest(folder, HANGING)
    notes = ''.join(note.replace('test_it.', '') + '\n' for note in counts.notes)
    if notes != HANGING_NOTES:
        yield notes + said
    if counts.line() != '2 passed, 6 failed, 1 skipped':
        yield counts.line()
    lines = said.splitlines()
    for line in (r'passed   test_it\.py::Hanging::test_5_has_time \(\d+\.\d s\)',
                 r'skipped  test_it\.py::Hanging::test_7_skips: a reason'):
        if not any(re.fullmatch(line, got) for got in lines):
            yield 'no such line: ' + line
    for also in ('conftest.TimeLimit: not done within 1 s',
                 '(part=3): AssertionError: 3 unexpectedly found in (1, 2, 3)'):
        if 'also: ' + also not in said:
            yield 'it does not say: ' + also
    # First the reason, then where.
    first = [number for number, line in enumerate(lines) if line.startswith('FAILED') and
             'test_2' in line and line.endswith(': AssertionError: own words')]
    if not first or "self.fail('own words')" not in '\n'.join(lines[first[0]:][1:3]):
        yield said


MEETS = """
import os
import time
import unittest

class Meets(unittest.TestCase):
    time_limit = 20

    def test_meets(self):
        here = os.path.dirname(__file__)
        open(os.path.join(here, %r), 'w').close()
        while not os.path.exists(os.path.join(here, %r)):
            time.sleep(0.01)

    def test_is_one_of_two(self):
        self.fail('own words')
"""


def side_by_side(folder):
    """Two runs at the same time are counted as one layer, and each of its own."""
    counts, said = by_pytest(folder, MEETS % ('one', 'two'), MEETS % ('two', 'one'),
                             apart=True)
    if counts.line() != '2 passed, 2 failed, 0 skipped':
        yield '%s %s %s' % (counts.line(), counts.notes, said)
    # The first fails as a test, the second does not come to its end.
    counts, said = by_pytest(folder, MEETS % ('one', 'one'), INTERRUPTED, apart=True)
    if not any('ended with status 2' in note for note in counts.notes):
        yield '%s %s %s' % (counts.line(), counts.notes, said)


def interruption(folder):
    """Sessions end, and what was done is counted, but the layer fails."""
    counts, said = by_pytest(folder, INTERRUPTED)
    if counts.line() != '0 passed, 2 failed, 0 skipped' or \
            'did not come to its end: ended with status 2' not in counts.notes[-1]:
        yield '%s %s %s' % (counts.line(), counts.notes, said)
    if os.path.exists(os.path.join(folder, 'session')):
        yield 'its session was not closed'
    if not os.path.exists(os.path.join(folder, 'session-cleaned')):
        yield 'its cleanups were not done'


SHARDED = """
import unittest
from lib import fixture

class Core(unittest.TestCase):
    def test_1_core(self):
        pass

    @fixture.shard('driver')
    def test_2_driver(self):
        pass

    @fixture.longer('driver')
    def test_3_both(self):
        pass

@fixture.shard('moves')
class Moves(Core):
    def test_4_moves(self):
        pass

@fixture.longer('moves')
class Longer(Core):
    pass

@fixture.core
class Again(Moves):
    pass
"""
# By the option: the numbers of tests of each class, in that order.
CHOSEN = {'': ('1 3', '', '1 3', '1 3 4'), 'driver': ('2 3', '', '2 3', '2 3'),
          'moves': ('', '1 2 3 4', '1', ''), 'users': ('',) * 4,
          'all': ('1 2 3', '1 2 3 4', '1 2 3', '1 2 3 4')}
WRONG_SHARDS = {
    "@fixture.shard('nowhere')\nclass A(Core):\n    pass": "no shard 'nowhere'",
    "@fixture.shard('plain')\nclass A(Core):\n    pass": "no shard 'plain' of pytest",
    "@fixture.shard('moves')\n@fixture.longer('users')\nclass A(Core):\n    pass":
        'A is marked twice',
    "@fixture.shard('users')\nclass A(Core):\n    @fixture.shard('moves')\n"
    "    def test_5(self):\n        pass": 'A::test_5 is in two shards',
    'class A(Moves):\n    pass': 'A needs a mark, as its base Moves has one'}


def marks(folder):
    """What --shard runs, and marks that make no sense: these end the run."""
    for shard, wanted in CHOSEN.items():
        counts, said = by_pytest(folder, SHARDED, more=['--shard=' + shard] if shard else ())
        got = tuple(' '.join(re.findall(r'passed .*::%s::test_(\d)' % name, said))
                    for name in ('Core', 'Moves', 'Longer', 'Again'))
        if got != wanted:
            yield '--shard=%s: %s, not %s: %s' % (shard, got, wanted, said)
        if not any(wanted) and counts.line() != '0 passed, 1 failed, 0 skipped':
            yield 'no test at all: ' + counts.line()
    for text, problem in WRONG_SHARDS.items():
        counts, said = by_pytest(folder, SHARDED + text)
        if counts.line() != '0 passed, 1 failed, 0 skipped' or \
                problem not in said + str(counts.notes):
            yield '%s: %s %s %s' % (text, counts.line(), counts.notes, said)


BY_PYTEST = (limits, side_by_side, interruption, unreadable, marks)


@contextlib.contextmanager
def script_file(folder, text):
    path = os.path.join(folder, 'script')
    with open(path, 'w') as stream:
        stream.write('#!/bin/sh\n' + text)
    os.chmod(path, 0o755)
    yield path


def script(folder, text, limit=60):
    """What runner.py counts of a script."""
    with script_file(folder, text) as path:
        task = runner.script_task('style', folder, [path], limit)
        quietly([task])
    return task.counts


def hanging_script(folder):
    """A layer's script that hangs, and one that will not end."""
    runner.Job.GRACE = 0.3
    for trap in ('', 'trap "" TERM\n'):
        began = time.monotonic()
        counts = script(folder, trap + 'echo "ok   a: fine"\nsleep 60 & sleep 60\nwait\n', 1)
        if counts.line() != '1 passed, 1 failed, 0 skipped':
            yield counts.line()
        if not any('not done within 1 s' in note for note in counts.notes):
            yield str(counts.notes)
        if time.monotonic() - began > 30:
            yield 'it was waited for'


def nothing_counted(folder):
    """A script that checks nothing, a layer whose steps break off, results that are cut."""
    counts = script(folder, 'exit 0\n')
    if counts.line() != '0 passed, 1 failed, 0 skipped':
        yield 'no check: ' + counts.line()

    def steps():
        yield runner.Job(['true'], 60)
        raise OSError('a reason')

    broken, good = runner.Counts('a'), runner.Counts('b')

    def passes():
        yield runner.Job(['true'], 60)
        good.add('passed', 'c')

    quietly([runner.Task(broken, steps()), runner.Task(good, passes())])
    if broken.line() != '0 passed, 1 failed, 0 skipped' or 'a reason' not in broken.notes[0] or \
            good.passed != 1:
        yield 'broken off: %s %s' % (broken.notes, good.line())
    path = os.path.join(folder, 'testlog.json')
    with open(path, 'w') as stream:
        stream.write('{"name": "p:unit / t", "result": "OK", "stdout": ""}\n{"name": "p:un')
    counts = runner.Counts('cut')
    runner.count_meson(counts, path)
    if counts.line() != '1 passed, 1 failed, 0 skipped':
        yield 'cut: %s' % counts.line()


def left_processes(folder):
    """What a job leaves behind ends with it."""
    with script_file(folder, 'sleep 60 &\necho $! > "$0.pid"\necho "ok   a: b"\nkill -SEGV $$\n') \
            as path:
        quietly([runner.script_task('style', folder, [path], 60)])
        with open(path + '.pid') as stream:
            pid = int(stream.read())
    end = time.monotonic() + 20
    while os.path.exists('/proc/%d' % pid) and time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError), open('/proc/%d/stat' % pid) as stream:
            if stream.read().rpartition(')')[2].split()[0] == 'Z':
                return
        time.sleep(0.05)
    if os.path.exists('/proc/%d' % pid):
        os.kill(pid, signal.SIGKILL)
        yield 'it goes on'


def interrupted_job(_):
    """An interruption of this program ends what it started."""
    jobs = []

    def steps():
        jobs.append(runner.Job(['sleep', '60'], 60))
        yield jobs[0]

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        quietly([runner.Task(runner.Counts('a'), steps())])
        yield 'it was not interrupted'
    except KeyboardInterrupt:
        pass
    if not jobs[0].has_ended():
        jobs[0].proc.kill()
        yield 'its program was left running'


def script_results(folder):
    for text, want in (('echo "ok   a: x"; echo "SKIP b: y"; exit 0', '1 passed, 0 failed, 1 skipped'),
                       ('echo "FAIL a: x"; exit 1', '0 passed, 1 failed, 0 skipped'),
                       ('echo "ok   a: x"; exit 3', '1 passed, 1 failed, 0 skipped')):
        counts = script(folder, text)
        if counts.line() != want:
            yield '%s: %s' % (text, counts.line())


def weights(_):
    """Tasks run side by side up to the machine's capacity, those of a lane one by one, and
    each to its end."""
    running, order, problems, beside = {}, [], [], []

    def steps(name, weight, lane):
        running[name] = min(weight, runner.CAPACITY), lane
        for _ in range(2):
            if sum(other for other, _ in running.values()) > runner.CAPACITY:
                problems.append('more than the capacity: %s' % running)
            if lane and [other for _, other in running.values()].count(lane) > 1:
                problems.append('two of a lane: %s' % running)
            beside.append(len(running))
            yield runner.Job(['sleep', '0.2'], 60)
        order.append(name)
        del running[name]

    quietly([runner.Task(runner.Counts('t'), steps(name, weight, lane), weight, lane)
             for name, weight, lane in (('a', 1, 'x'), ('b', 2, 'x'), ('c', 1, None),
                                        ('d', runner.CAPACITY, None), ('e', 100, None))])
    yield from problems
    if sorted(order) != list('abcde'):
        yield 'not all came to their end: %s' % order
    if max(beside) < 2:
        yield 'nothing ran side by side'


def failed_output(folder):
    """Of a job that failed what it said is printed, of others not."""
    for name, code in (('good', 0), ('bad', 1)):
        path = os.path.join(folder, name)
        with open(path, 'w') as stream:
            stream.write('#!/bin/sh\necho "ok   a: $0 says"; exit %d\n' % code)
        os.chmod(path, 0o755)
    said = quietly([runner.script_task(name, folder, [os.path.join(folder, name)], 60)
                    for name in ('good', 'bad')])
    if 'bad says' not in said or 'good says' in said:
        yield said


def tap_results(_):
    """Records as meson writes them."""
    for text, result, want in (
            ('1..2\nok 1 - a\nok 2 - b\n', 'OK', '2 passed, 0 failed, 0 skipped'),
            ('1..2\nok 1 - a\nnot ok 2 - b\n', 'FAIL', '1 passed, 1 failed, 0 skipped'),
            ('1..2\nok 1 - a\n', 'OK', '1 passed, 1 failed, 0 skipped'),
            ('1..1\nok 1 - a\n', 'TIMEOUT', '1 passed, 1 failed, 0 skipped'),
            ('1..1\nok 1 a # SKIP why\n', 'OK', '0 passed, 0 failed, 1 skipped'),
            ('1..0 # SKIP why\n', 'SKIP', '0 passed, 0 failed, 1 skipped'),
            ('TAP version 13\n1..1\n# a\n\n    # b\nok 1 - a\n', 'OK',
             '1 passed, 0 failed, 0 skipped'),
            ('1..1\n[Invalid UTF-8] # a\nok 1 - a\n', 'OK',
             '1 passed, 1 failed, 0 skipped'),
            ('Bail out! why\n', 'ERROR', '0 passed, 1 failed, 0 skipped'),
            ('', 'OK', '1 passed, 0 failed, 0 skipped'),
            ('', 'ERROR', '0 passed, 1 failed, 0 skipped')):
        counts = runner.Counts('tests')
        runner.count_record(counts, {'name': 'p:unit / t', 'result': result,
                                    'stdout': text, 'returncode': 0})
        if counts.line() != want:
            yield '%r %s: %s' % (text, result, counts.line())


def bench_peers(folder):
    """`make bench` says what it cannot compare with."""
    for missing in ({'iperf3', 'ucx_perftest'}, {'iperf3'}, set()):
        for name in {'iperf3', 'ucx_perftest'} - missing:
            path = os.path.join(folder, name)
            with open(path, 'w') as stream:
                stream.write('#!/bin/sh\n')
            os.chmod(path, 0o755)
        # None of its parts.
        said = subprocess.run([os.path.join(BUILD, 'tests/bench/bench'), 'none'],
                              env=dict(os.environ, PATH=folder), timeout=60, check=True,
                              stdout=subprocess.PIPE, universal_newlines=True).stdout
        found = {line.split()[0] for line in said.splitlines()
                 if 'is not installed (Debian: ' in line}
        if found != missing or said.count('not installed') != 2 * len(missing):
            yield 'without %s: %s' % (missing, said)


def in_folder(function):
    if function in BY_PYTEST and not shutil.which('pytest-3') and \
            not runner.configured(BUILD, 'CHECK'):
        raise tap.Skip('configured without check')
    with tempfile.TemporaryDirectory(prefix='test-runners-') as folder:
        yield from function(folder)


def main():
    checks = (*BY_PYTEST, hanging_script, nothing_counted, left_processes, interrupted_job, script_results, weights,
              failed_output, tap_results, bench_peers)
    return tap.run([(function.__name__, functools.partial(in_folder, function))
                    for function in checks])


if __name__ == '__main__':
    sys.exit(main())
