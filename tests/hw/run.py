#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the tests of QEMU's device: tests/hw/test_*.py, no guest needed.

usage: run.py [--json FILE] [--list] [PATTERN...]

Options, output, exit status and time limits are those of tests/vm/run.py, but
for LIMIT.  The QEMU tested
is build/qemu/qemu-system-x86_64, or that below PVRDMA_BUILD.
"""

import argparse
import importlib.util
import os
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 60


def vm_runner():
    """tests/vm/run.py, for its way to print and keep results."""
    folder = os.path.join(os.path.dirname(HERE), 'vm')
    sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(
        'vm_run', os.path.join(folder, 'run.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('pattern', nargs='*')
    args = parser.parse_args()
    runner = vm_runner()
    signal.signal(signal.SIGTERM, runner.on_sigterm)
    tests = [test for test in runner.flatten(
        unittest.TestLoader().discover(HERE, 'test_*.py'))
        if not args.pattern or any(p in test.id() for p in args.pattern)]
    if args.list:
        print('\n'.join(test.id() for test in tests))
        return 0
    result = runner.Result(runner.Limit(LIMIT), args.json)
    runner.run_tests(result, tests)
    return runner.report(result, tests)


if __name__ == '__main__':
    sys.exit(main())
