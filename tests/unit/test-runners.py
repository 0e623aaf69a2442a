#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The test runners themselves: what hangs fails, the rest runs, nothing passes
that did not say so.

usage: test-runners.py SOURCE

Prints TAP.
"""

import contextlib
import importlib.util
import io
import os
import signal
import sys
import tempfile
import time
import unittest

SOURCE = sys.argv[1]


def load(name, *path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(SOURCE, *path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
sys.path.append(os.path.join(SOURCE, 'tests', 'vm'))
check = load('run_check', 'tests', 'run-check.py')
vm = load('vm_run', 'tests', 'vm', 'run.py')


class Hanging(unittest.TestCase):
    def test_1_hangs(self):
        try:
            time.sleep(1000)
        except Exception:  # as tests do that wait for something
            pass

    def test_2_hangs_in_cleanup_too(self):
        self.addCleanup(time.sleep, 1000)
        time.sleep(1000)

    def test_3_waits_for_a_lock(self):
        import threading
        threading.Lock().acquire() and threading.Event().wait()

    def test_4_passes(self):
        pass

    def test_5_has_time(self):
        time.sleep(1.5)
    test_5_has_time.time_limit = 20


class HangingSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        time.sleep(1000)

    def test_never_runs(self):
        pass


def limits(folder):
    """tests/vm/run.py, which tests/hw/run.py uses as well."""
    vm.RETRY = 2
    path = os.path.join(folder, 'results.json')
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = vm.Result(vm.Limit(1), path)
        load = unittest.defaultTestLoader.loadTestsFromTestCase
        tests = [*load(HangingSetUp), *load(Hanging)]
        vm.run_tests(result, tests)
        status = vm.report(result, tests)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    got = [record[1] for record in result.records]
    if got != ['failed'] * 4 + ['passed'] * 2 or status != 1:
        yield '%s, status %d' % (got, status)
    for record in result.records[:2]:
        if 'not done within' not in record[2]:
            yield 'no reason: ' + record[2]
    if '2 passed, 4 failed, 0 skipped' not in out.getvalue():
        yield out.getvalue()
    with open(path) as stream:
        text = stream.read()
        if '"failed": 4' not in text or '"complete": true' not in text:
            yield 'not in the JSON'


@contextlib.contextmanager
def script(folder, text):
    path = os.path.join(folder, 'script')
    with open(path, 'w') as stream:
        stream.write('#!/bin/sh\n' + text)
    os.chmod(path, 0o755)
    with contextlib.redirect_stdout(io.StringIO()):
        yield [path]


def hanging_script(folder):
    """A layer's script that hangs, and one that will not end."""
    check.LIMIT['style'] = 1
    check.Job.GRACE = 0.3
    for trap in ('', 'trap "" TERM\n'):
        began = time.monotonic()
        with script(folder, trap + 'echo "ok   a: fine"\nsleep 60 & sleep 60\nwait\n') as argv:
            counts = check.script_layer('style', argv)
        if counts.line() != '1 passed, 1 failed, 0 skipped':
            yield counts.line()
        if not any('not done within 1 s' in note for note in counts.notes):
            yield str(counts.notes)
        if time.monotonic() - began > 30:
            yield 'it was waited for'


def script_results(folder):
    check.LIMIT['style'] = 60
    for text, want in (('echo "ok   a: x"; echo "SKIP b: y"; exit 0', '1 passed, 0 failed, 1 skipped'),
                       ('echo "FAIL a: x"; exit 1', '0 passed, 1 failed, 0 skipped'),
                       ('echo "ok   a: x"; exit 3', '1 passed, 1 failed, 0 skipped')):
        with script(folder, text) as argv:
            counts = check.script_layer('style', argv)
        if counts.line() != want:
            yield '%s: %s' % (text, counts.line())


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
        counts = check.Counts('tests')
        check.count_record(counts, {'name': 'p:unit / t', 'result': result,
                                    'stdout': text, 'returncode': 0})
        if counts.line() != want:
            yield '%r %s: %s' % (text, result, counts.line())


def main():
    checks = [limits, hanging_script, script_results, tap_results]
    print('1..%d' % len(checks))
    bad = 0
    for number, function in enumerate(checks, 1):
        with tempfile.TemporaryDirectory(prefix='test-runners-') as folder:
            found = list(function(folder))
        for text in found:
            print('\n'.join('# ' + line for line in text.splitlines()))
        bad += bool(found)
        print('%sok %d - %s' % ('not ' if found else '', number, function.__name__))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
