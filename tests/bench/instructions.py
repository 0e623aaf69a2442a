#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Instructions per message of two daemons, counted by callgrind.

  instructions.py --base DAEMON --new DAEMON [--driver PROGRAM] [--count N] [--repeat N]
                  [LOAD...]

Loads: send-8, write-8, write-64k, ud-8 [all]; send-8-log and so on, with a dirty log.
Each daemon runs under valgrind with N and with 2 N messages (bench-messages); the
difference, by N, is what a message costs, without start, connections and end.  Two
figures:

  path   inclusive cost of requester_run and comp_flush: a message's own way
  total  of the whole daemon: also turns, doorbells, clocks

The daemon's clocks are slowed (preload.c) as much as valgrind slows the daemon, since
what it does by time would otherwise hold fewer messages.  A daemon that reads the
processor's counter itself is not fooled; --slow 1 leaves the clocks alone.
Instructions are not time: an uncached load costs one as well.  But they do not depend
on other load, so small changes show.
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

LOADS = {
    'send-8': ('send', 8, 1),
    'write-8': ('write', 8, 1),
    'write-64k': ('write', 65536, 5),  # N divided by
    'ud-8': ('ud', 8, 1),
}
# The same with a dirty log, by name only.
LOGGED = {name + '-log': load for name, load in LOADS.items()}
BUILD = pathlib.Path(os.environ.get('PVRDMA_BUILD', 'build')) / 'tests/bench'


def wrapper(folder, daemon, out, shim, slow):
    """A program that starts @daemon under callgrind with whatever arguments."""
    path = folder / 'daemon'
    path.write_text(
        '#!/bin/sh\n'
        f'LD_PRELOAD={shlex.quote(str(shim))} SLOW_CLOCK={slow} '
        'exec valgrind --quiet --tool=callgrind '
        f'--callgrind-out-file={shlex.quote(str(out))} '
        f'{shlex.quote(str(daemon))} "$@"\n')
    path.chmod(0o755)
    return path


def count(args, daemon, load, messages):
    """Instructions in all, and by function with what it calls."""
    verb, size, _ = {**LOADS, **LOGGED}[load]
    log = ['log'] if load in LOGGED else []
    with tempfile.TemporaryDirectory(prefix='instructions-') as name:
        folder = pathlib.Path(name)
        out = folder / 'callgrind.out'
        env = dict(os.environ, PVRDMAD=str(
            wrapper(folder, daemon, out, args.shim, args.slow)))
        subprocess.run([args.driver, verb, str(size), str(messages), *log], env=env,
                       check=True, timeout=600)
        text = subprocess.run(
            ['callgrind_annotate', '--inclusive=yes', '--auto=no', '--threshold=100',
             str(out)],
            check=True, capture_output=True, text=True, timeout=120).stdout
    total = None
    functions = {}
    for line in text.splitlines():
        m = re.match(r'\s*([\d,]+)\s*(?:\([\d. ]+%\))?\s+(.*)', line)
        if not m:
            continue
        n = int(m[1].replace(',', ''))
        if m[2].startswith('PROGRAM TOTALS'):
            total = n
            continue
        # "file.c:function [object]"; a recursive call has a mark of its own
        f = re.match(r'(?:.*:)?([A-Za-z_]\w*) \[', m[2])
        if f:
            functions[f[1]] = max(n, functions.get(f[1], 0))
    if total is None:
        sys.exit(f'callgrind_annotate: no total in:\n{text[:2000]}')
    return total, functions


def least(args, daemon, load, messages):
    """The least of several runs: what disturbs them only adds turns and polls."""
    runs = [count(args, daemon, load, messages) for _ in range(args.repeat)]
    names = set.intersection(*(set(f) for _, f in runs))
    return min(t for t, _ in runs), {x: min(f[x] for _, f in runs) for x in names}


def per_message(args, daemon, load):
    n = max(args.count // {**LOADS, **LOGGED}[load][2] // 64, 1) * 64
    (total1, f1), (total2, f2) = (least(args, daemon, load, k * n) for k in (1, 2))
    path = None
    if args.functions[0] in f2:
        path = sum(f2.get(f, 0) - f1.get(f, 0) for f in args.functions) / n
    return path, (total2 - total1) / n


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--base', required=True, type=pathlib.Path)
    p.add_argument('--new', required=True, type=pathlib.Path)
    p.add_argument('--driver', default=BUILD / 'bench-messages', type=pathlib.Path)
    p.add_argument('--shim', default=None, type=pathlib.Path,
                   help='of preload.c [beside the driver]')
    p.add_argument('--slow', default=50, type=int)
    p.add_argument('--count', default=40000, type=int)
    p.add_argument('--repeat', default=3, type=int)
    p.add_argument('--functions', default='requester_run,comp_flush',
                   type=lambda x: x.split(','),
                   help='whose inclusive cost is the path; none within another')
    p.add_argument('load', nargs='*', choices=[*LOADS, *LOGGED, []])
    args = p.parse_args()
    args.base, args.new, args.driver = (
        x.resolve() for x in (args.base, args.new, args.driver))
    args.shim = (args.shim or args.driver.parent / 'libbench-preload.so').resolve()
    for x in (args.base, args.new, args.driver, args.shim):
        if not x.exists():
            sys.exit(f'{x}: not there')
    print(f'{"instructions per message":26} {"base":>10} {"new":>10} {"new/base":>9}')
    for load in args.load or LOADS:
        base, new = (per_message(args, d, load) for d in (args.base, args.new))
        for what, b, n in zip(('path', 'total'), base, new):
            if b is None or n is None:
                print(f'{load:12} {what:13} {"-":>10} {"-":>10} {"-":>9}')
            else:
                print(f'{load:12} {what:13} {b:10.1f} {n:10.1f} {n / b:9.3f}')
        sys.stdout.flush()


if __name__ == '__main__':
    main()
