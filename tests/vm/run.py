#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the VM tests: tests/vm/test_*.py, real QEMU guests.

usage: run.py [--json FILE] [--list] [--long] [PATTERN...]

Each PATTERN selects the tests whose name contains it.  With --long those that
look for rare events run for minutes instead of seconds.  One line per test,
then `N passed, N failed, N skipped`; --json writes the same with each test's
result, after each of them.  Exit status 1 if a test failed or none was selected.

No test hangs the run: after LIMIT seconds, or the test's or its class's own
`time_limit`, it gets the exception TimeLimit wherever it is, and again every
RETRY seconds should it hang in its cleaning up.  A class's setUpClass has as much
time as a test of it.
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
import unittest

import fixture
from pvrdma_vm import VmError, require_python

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 600
LONG_LIMIT = 5400
RETRY = 60


class TimeLimit(BaseException):
    """No Exception: tests catch those for reasons of their own."""


class SetUpLimit(Exception):
    """The same of a setUpClass, after which unittest goes on with other classes only
    if it is one."""


class Limit:
    """The clock that interrupts the main thread."""

    def __init__(self, seconds):
        self.default = self.seconds = seconds
        self.held = False
        signal.signal(signal.SIGALRM, self._over)
        self.start()

    def guard(self, cls):
        """Have @cls's setUpClass end in time."""
        set_up = cls.setUpClass

        def guarded(_):
            self.start(cls)
            try:
                set_up()
            except TimeLimit as exc:
                raise SetUpLimit(str(exc)) from exc

        cls.setUpClass = classmethod(guarded)

    def start(self, test=None):
        method = getattr(test, getattr(test, '_testMethodName', ''), None)
        self.seconds = getattr(method, 'time_limit', 0) or \
            getattr(test, 'time_limit', 0) or self.default
        signal.setitimer(signal.ITIMER_REAL, self.seconds, RETRY)

    def stop(self):
        signal.setitimer(signal.ITIMER_REAL, 0)

    def __enter__(self):
        """Not while a problem is written down."""
        self.held = True

    def __exit__(self, *_):
        self.held = False

    def _over(self, *_):
        if not self.held:
            raise TimeLimit('not done within %g s' % self.seconds)


class Result(unittest.TestResult):
    """Prints a line per test and keeps the records."""

    def __init__(self, limit, path=None):
        super().__init__()
        self.records = []
        self.limit = limit
        self.path = path
        self._started = 0.0
        self._outcome = None

    def startTest(self, test):
        super().startTest(test)
        self.limit.start(test)
        self._started = time.monotonic()
        self._outcome = ('passed', '')

    def _problem(self, err):
        with self.limit:
            return ''.join(traceback.format_exception(*err))

    def addError(self, test, err):
        super().addError(test, err)
        if self._outcome is None:
            # setUpClass or a module's import: no startTest came before it.
            self.records.append((str(test), 'failed', self._problem(err), 0.0))
            print('FAILED   %s\n%s' % (test, self._problem(err)), flush=True)
            self.limit.start()
        else:
            self._outcome = ('failed', self._problem(err))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._outcome = ('failed', self._problem(err))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._outcome = ('failed', '%s\n%s' % (subtest,
                                                   self._problem(err)))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if self._outcome is None:
            self.records.append((str(test), 'skipped', reason, 0.0))
            print('skipped  %s: %s' % (test, reason), flush=True)
        elif self._outcome[0] != 'failed':
            self._outcome = ('skipped', reason)

    def addExpectedFailure(self, test, err):
        self.addFailure(test, err)

    def addUnexpectedSuccess(self, test):
        self._outcome = ('failed', 'marked as an expected failure')

    def stopTest(self, test):
        super().stopTest(test)
        self.limit.start()
        seconds = time.monotonic() - self._started
        outcome, text = self._outcome
        self._outcome = None
        self.records.append((test.id(), outcome, text, seconds))
        if outcome == 'failed':
            print('FAILED   %s (%.1f s)\n%s' % (test.id(), seconds, text))
        elif outcome == 'skipped':
            print('skipped  %s: %s' % (test.id(), text))
        else:
            print('passed   %s (%.1f s)' % (test.id(), seconds))
        sys.stdout.flush()
        self.write()

    def write(self, complete=False):
        """The records so far, for whoever has to end this run."""
        if not self.path:
            return
        with open(self.path + '.new', 'w') as stream:
            json.dump({'counts': self.counts(), 'complete': complete, 'tests': [
                {'name': name, 'outcome': outcome, 'text': text,
                 'seconds': round(seconds, 2)}
                for name, outcome, text, seconds in self.records]},
                      stream, indent=1)
        os.replace(self.path + '.new', self.path)

    def counts(self):
        return {name: self.count(name)
                for name in ('passed', 'failed', 'skipped')}

    def count(self, outcome):
        return sum(record[1] == outcome for record in self.records)


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def run_tests(result, tests):
    for cls in {type(test) for test in tests}:
        result.limit.guard(cls)
    unittest.TestSuite(tests).run(result)


def on_sigterm(*_):
    """The one exception that ends unittest and not only a test."""
    raise KeyboardInterrupt


def report(result, tests):
    """Print the closing line of a run of @tests and write the records.
    Returns the exit status."""
    result.limit.stop()
    result.write(True)
    counts = result.counts()
    if not tests:
        print('no test matches')
    print('%(passed)d passed, %(failed)d failed, %(skipped)d skipped' % counts)
    return 1 if counts['failed'] or not tests else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--long', action='store_true')
    parser.add_argument('pattern', nargs='*')
    args = parser.parse_args()
    fixture.LONG = args.long
    require_python()
    signal.signal(signal.SIGTERM, on_sigterm)

    tests = [test for test in flatten(
        unittest.defaultTestLoader.discover(HERE, 'test_*.py'))
        if not args.pattern or any(p in test.id() for p in args.pattern)]
    if args.list:
        print('\n'.join(test.id() for test in tests))
        return 0
    result = Result(Limit(LONG_LIMIT if args.long else LIMIT), args.json)
    try:
        run_tests(result, tests)
    finally:
        try:
            fixture.shared.close()
        except (VmError, TimeLimit) as exc:
            result.records.append(('shutdown of the shared pair', 'failed',
                                   str(exc), 0.0))
            print('FAILED   shutdown of the shared pair: %s' % exc)
    return report(result, tests)


if __name__ == '__main__':
    sys.exit(main())
