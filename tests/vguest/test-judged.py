#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever judges times is told to do so somewhere: vguest_judged in meson.build has just
the programs that ask vgt_judges().

usage: test-judged.py NAME...

NAMEs are those of the list.  Prints TAP.
"""

import glob
import os
import re
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'unit'))
import tap

ASKS = re.compile(r'\bvgt_(judges|assert_shorter)\(')


def asking():
    for path in glob.glob(os.path.join(HERE, 'test-*.c')):
        with open(path) as stream:
            if ASKS.search(stream.read()):
                yield os.path.basename(path)[len('test-'):-len('.c')]


def differences():
    for name in sorted(set(asking()) ^ set(sys.argv[1:])):
        yield 'test-%s.c %s' % (name, 'asks for nothing' if name in sys.argv[1:]
                                else 'is not told to judge')


if __name__ == '__main__':
    sys.exit(tap.run([('who judges is told to', differences)]))
