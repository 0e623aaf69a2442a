#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the VM tests: tests/vm/test_*.py, real QEMU guests.

usage: run.py [--json FILE] [--list] [--long] [PATTERN...]

Each PATTERN selects the tests whose name contains it.  With --long those that
look for rare events run for minutes instead of seconds.  One line per test,
then `N passed, N failed, N skipped`; --json writes the same with each test's
result.  Exit status 1 if a test failed or none was selected.
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


class Result(unittest.TestResult):
    """Prints a line per test and keeps the records."""

    def __init__(self):
        super().__init__()
        self.records = []
        self._started = 0.0
        self._outcome = None

    def startTest(self, test):
        super().startTest(test)
        self._started = time.monotonic()
        self._outcome = ('passed', '')

    def _problem(self, err):
        kind, value, trace = err
        return ''.join(traceback.format_exception(kind, value, trace))

    def addError(self, test, err):
        super().addError(test, err)
        if self._outcome is None:
            # setUpClass or a module's import: no startTest came before it.
            self.records.append((str(test), 'failed', self._problem(err), 0.0))
            print('FAILED   %s\n%s' % (test, self._problem(err)), flush=True)
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

    def count(self, outcome):
        return sum(record[1] == outcome for record in self.records)


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def report(result, tests, path):
    """Print the closing line of a run of @tests and, with @path, write the
    records there.  Returns the exit status."""
    counts = {name: result.count(name)
              for name in ('passed', 'failed', 'skipped')}
    if path:
        with open(path, 'w') as stream:
            json.dump({'counts': counts, 'tests': [
                {'name': name, 'outcome': outcome, 'text': text,
                 'seconds': round(seconds, 2)}
                for name, outcome, text, seconds in result.records]},
                      stream, indent=1)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    tests = [test for test in flatten(
        unittest.defaultTestLoader.discover(HERE, 'test_*.py'))
        if not args.pattern or any(p in test.id() for p in args.pattern)]
    if args.list:
        print('\n'.join(test.id() for test in tests))
        return 0
    result = Result()
    try:
        unittest.TestSuite(tests).run(result)
    finally:
        try:
            fixture.shared.close()
        except VmError as exc:
            result.records.append(('shutdown of the shared pair', 'failed',
                                   str(exc), 0.0))
            print('FAILED   shutdown of the shared pair: %s' % exc)
    return report(result, tests, args.json)


if __name__ == '__main__':
    sys.exit(main())
