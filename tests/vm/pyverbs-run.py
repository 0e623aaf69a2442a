#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In a guest: run rdma-core's pyverbs suite and print one line for each test.

usage: pyverbs-run.py DEVICE GID [DONE]    in the folder of the suite

DONE is a file with names of tests, one per line, which are left out.  Lines, with
tabs between: `begin NAME`, then `passed|skipped|failed NAME REASON`; `end` is the
last one.  A test that hangs ends the whole process (the suite waits in C, where Python
handles no signal); so the caller sees a test that began and did not end, and goes on
with a new process.
"""

import os
import random
import signal
import sys
import unittest

LIMIT = 60


def say(*words):
    # Not through sys.stdout: the suite's children have that, too.
    os.write(1, ('\t'.join(words) + '\n').encode())


class Lines(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.verdict = None

    @staticmethod
    def name(test):
        return test.id().replace('tests.', '', 1)

    def startTest(self, test):
        super().startTest(test)
        self.verdict = ('passed', '')
        # The suite draws sizes and flags; a list of what passes needs the same ones.
        random.seed(self.name(test))
        say('begin', self.name(test))
        signal.alarm(LIMIT)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)
        say(self.verdict[0], self.name(test), self.verdict[1])

    def worse(self, kind, reason):
        """A test may fail and then fail again in its tearDown: the first counts."""
        if self.verdict is None or self.verdict[0] == 'passed':
            self.verdict = (kind, ' '.join(str(reason).split()))

    def bad(self, test, err):
        text = self._exc_info_to_string(err, test)
        sys.stderr.write('%s\n%s\n' % (test.id(), text))
        self.worse('failed', '%s: %s' % (err[0].__name__, err[1]))
        if not isinstance(test, unittest.TestCase):  # of a class or a module
            say('failed', str(test), self.verdict[1])

    def addError(self, test, err):
        self.bad(test, err)

    def addFailure(self, test, err):
        self.bad(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.bad(test, err)

    def addSkip(self, test, reason):
        self.worse('skipped', reason)


def each(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from each(item)
        else:
            yield item


def main():
    device, gid = sys.argv[1:3]
    done = set()
    if len(sys.argv) > 3:
        with open(sys.argv[3]) as stream:
            done = set(stream.read().split())
    sys.argv[1:] = ['--dev', device, '--gid', gid]
    sys.path.insert(0, os.getcwd())
    # The package's name is `tests`, its folder's is not.
    if not os.path.exists('/tmp/tests'):
        os.symlink(os.getcwd(), '/tmp/tests')
    sys.path.insert(0, '/tmp')
    from args_parser import parser
    parser.parse_args()
    import tests
    wanted = unittest.TestSuite()
    for module in tests.__test_modules__:
        for test in each(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if Lines.name(test) not in done:
                wanted.addTest(test)
    wanted.run(Lines())
    say('end')


if __name__ == '__main__':
    main()
