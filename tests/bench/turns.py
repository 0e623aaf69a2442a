#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmark's main figures of two daemons, measured in turns.

  turns.py --base DAEMON --new DAEMON [--runs N] [--seconds S] [--program BENCH]
           [--rt PRIORITY]

Each run is one of the old daemon and one of the new, in alternating order; medians over
all runs, their ratio, and the median and the range of the ratios within each run.  The
guests' side is the same program for both.  Where processors lie changes within minutes
and moves everything small: believe the ratios within runs.
"""
import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

BENCH = pathlib.Path(os.environ.get('PVRDMA_BUILD', 'build')) / 'tests/bench/bench'
PARTS = ['latency', 'rate', 'bandwidth']
# name, unit, whether more is better, pattern; bandwidth is of contiguous pages
FIGURES = [
    ('SEND 8 B p50', 'us', False, r'^SEND, 8 bytes, to receiver.*?p50\s+([\d.]+)'),
    ('WRITE 8 B p50', 'us', False, r'^WRITE, 8 bytes, to comp.*?p50\s+([\d.]+)'),
    ('READ 8 B p50', 'us', False, r'^READ, 8 bytes, to comp.*?p50\s+([\d.]+)'),
    ('SEND 8 B p99', 'us', False, r'^SEND, 8 bytes, to receiver.*?p99\s+([\d.]+)'),
    ('SEND stock p50', 'us', False, r'^SEND, stock objects.*?p50\s+([\d.]+)'),
    ('SEND 8 B rate', 'M/s', True, r'^SEND,  8 bytes:\s+([\d.]+) M'),
    ('WRITE 8 B rate', 'M/s', True, r'^WRITE, 8 bytes:\s+([\d.]+) M'),
    ('WRITE 64 KiB', 'memcpy', True,
     r'^contiguous(?:.*\n)+?\s+64 KiB in cache.*WRITE.*?\(([\d.]+)\)'),
    ('READ 64 KiB', 'memcpy', True,
     r'^contiguous(?:.*\n)+?\s+64 KiB in cache.*READ.*?\(([\d.]+)\)'),
    ('WRITE 1 MiB', 'memcpy', True,
     r'^contiguous(?:.*\n)+?\s+1 MiB in cache.*WRITE.*?\(([\d.]+)\)'),
    ('WRITE 1 MiB cold', 'memcpy', True,
     r'^contiguous(?:.*\n)+?\s+1 MiB cold.*WRITE.*?\(([\d.]+)\)'),
    ('WRITE 64 KiB scat.', 'memcpy', True,
     r'^scattered(?:.*\n)+?\s+64 KiB in cache.*WRITE.*?\(([\d.]+)\)'),
    ('WRITE 1 MiB c. scat.', 'memcpy', True,
     r'^scattered(?:.*\n)+?\s+1 MiB cold.*WRITE.*?\(([\d.]+)\)'),
]


def run(args, daemon):
    command = [args.program, '-t', str(args.seconds), *PARTS]
    if args.rt:
        command = ['chrt', '-f', str(args.rt), *command]
    # UCX is the same for both
    env = dict(os.environ, PVRDMAD=str(daemon), BENCH_NO_UCX='1')
    r = subprocess.run(command, env=env, text=True, capture_output=True,
                       timeout=120 + 60 * args.seconds)
    if r.returncode:
        sys.exit(f'{daemon}: exit code {r.returncode}\n{r.stdout}{r.stderr}')
    figures = {}
    for name, _, _, pattern in FIGURES:
        m = re.search(pattern, r.stdout, re.MULTILINE)
        if not m:
            sys.exit(f'{name}: not in\n{r.stdout}')
        figures[name] = float(m[1])
    return figures


def print_table(base, new):
    print(f'\n{"median of " + str(len(new)):22} {"base":>9} {"new":>9} {"unit":>7}'
          f' {"new/base":>9} {"within runs":>12} {"range":>15}')
    for name, unit, more, _ in FIGURES:
        b = [f[name] for f in base[:len(new)]]
        n = [f[name] for f in new]
        each = [y / x for x, y in zip(b, n)]
        ratio = statistics.median(each)
        better = ratio > 1.03 if more else ratio < 1 / 1.03
        worse = ratio < 1 / 1.03 if more else ratio > 1.03
        spread = f'{min(each):.2f} to {max(each):.2f}'
        print(f'{name:22} {statistics.median(b):9.2f} {statistics.median(n):9.2f}'
              f' {unit:>7} {statistics.median(n) / statistics.median(b):9.3f}'
              f' {ratio:12.3f} {spread:>15}'
              f'{"  better" if better else "  WORSE" if worse else ""}')
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--base', required=True, type=pathlib.Path)
    p.add_argument('--new', required=True, type=pathlib.Path)
    p.add_argument('--runs', default=10, type=int)
    p.add_argument('--seconds', default=0.5, type=float)
    p.add_argument('--program', default=BENCH, type=pathlib.Path)
    p.add_argument('--rt', default=5, type=int,
                   help='real-time priority; 0: none [5 if chrt may]')
    args = p.parse_args()
    args.base, args.new, args.program = (
        x.resolve() for x in (args.base, args.new, args.program))
    for x in (args.base, args.new, args.program):
        if not x.exists():
            sys.exit(f'{x}: not there')
    if args.rt and (not shutil.which('chrt') or subprocess.run(
            ['chrt', '-f', str(args.rt), 'true'], stderr=subprocess.DEVNULL,
            check=False).returncode):
        print('no real-time priority')
        args.rt = 0
    base, new = [], []
    begin = time.monotonic()
    for i in range(args.runs):
        order = [(args.base, base), (args.new, new)]
        for daemon, figures in order if i % 2 == 0 else reversed(order):
            figures.append(run(args, daemon))
        print(f'run {i + 1} of {args.runs}, {time.monotonic() - begin:.0f} s: SEND p50 '
              f'{base[-1]["SEND 8 B p50"]:.2f} and {new[-1]["SEND 8 B p50"]:.2f} us, '
              f'WRITE rate {base[-1]["WRITE 8 B rate"]:.2f} and '
              f'{new[-1]["WRITE 8 B rate"]:.2f} M/s', flush=True)
    print_table(base, new)


if __name__ == '__main__':
    main()
