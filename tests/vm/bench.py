#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests against soft-RoCE, siw and the stock parts: ratios, with the project's aims.

Four parts, each in one pair of guests:

  rxe    our guest driver and provider and rdma_rxe on virtio-net take turns with
         the same program and options
  hosts  ours, rdma_rxe and siw take turns between guests on two hosts (across.py), which
         takes root
  hogs   ours and the stock driver and provider take turns while 0, 1 and 2
         programs that never sleep run beside the guests
  demo   the same with the demo's programs beside 0 and 2 of them

Prints medians, their ratio, and whether it meets its aim; a missed aim is no
failure, since a busy machine misses it too.
"""

import argparse
import os
import statistics
import subprocess
import sys

from lib import across, hosts, parts, script
from lib.programs import Pair, demo_programs, latency, pingpong, timed_bandwidth
from lib.pvrdma_vm import Daemon, Session, kill_process, say, start_guests

# A program, and how many times better than soft-RoCE it is to be.
AIMS = [(latency('ib_send_lat', 8, 1000), 3),
        (timed_bandwidth('ib_write_bw', 65536), 20)]

# Between hosts these are to be better than both; the others are for the eye.
HOSTS_AIMS = [(latency('ib_send_lat', 8, 100), True),
              (timed_bandwidth('ib_write_bw', 65536), True),
              (latency('ib_write_lat', 8, 100), False),
              (timed_bandwidth('ib_read_bw', 65536), False)]

# Beside hogs: a latency may be so many times the stock parts', a bandwidth must be
# so large a part of it.
HOG_LATENCY = 1.2
HOG_BANDWIDTH = 1.0
HOGS = (0, 1, 2)
# A row of the demo may be as far below the stock parts as these are from themselves.
DEMO_HOGS = (0, 2)
# A host without a processor to spare has a second state, in which each message
# waits for the end of a time slice: microseconds, or times the median.
SLOW_US = 1000
SLOW_TIMES = 5


def hog_programs():
    return [latency('ib_send_lat', 8, 500), pingpong(True, 64, 500),
            timed_bandwidth('ib_write_bw', 65536)]


class Hogs:
    """Programs that use whatever processor time they get.

    Each is a session of its own: where the host groups its processes by session
    or service, as most do, one of them weighs as much as all guests together.
    """

    def __init__(self, number):
        self.number = number
        self.procs = []

    def __enter__(self):
        for _ in range(self.number):
            self.procs.append(subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', '--', 'sh', '-c',
                 'while :; do :; done'], stdin=subprocess.DEVNULL,
                start_new_session=True))
        return self

    def __exit__(self, *_):
        for proc in self.procs:
            kill_process(proc)


def measure(pairs, program, rounds):
    """Figures of @program by pair, as lists; the pairs take turns."""
    figures = [[] for _ in pairs]
    for _ in range(rounds):
        for values, pair in zip(figures, pairs):
            values.append(program.run(pair))
    return figures


def spread(values):
    return '%.2f (%.2f to %.2f)' % (statistics.median(values), min(values),
                                    max(values))


def boot(session):
    daemon = Daemon(session, ['vm1', 'vm2'])
    guests = start_guests(session, daemon, files=parts.guest_files(), boot=True)
    for guest in guests:
        parts.use_own(guest)
    return daemon, guests


def run_rxe(rounds):
    with Session('bench') as session:
        daemon, guests = boot(session)
        for guest in guests:
            guest.load_rxe()
        pairs = [Pair(guests, 'pvrdma', parts.OWN_DEVICE),
                 Pair(guests, 'virtio', 'rxe0')]
        form = '%-20s %-5s %-32s %-28s %8s  %s'
        lines = [form % ('program', 'unit', 'pvrdma', 'soft-RoCE', 'ratio',
                         'aim')]
        for program, aim in AIMS:
            say('%s, %d runs each' % (program.title, rounds))
            ours, other = measure(pairs, program, rounds)
            ratio = program.ratio(statistics.median(ours),
                                  statistics.median(other))
            lines.append(form % (
                program.title, program.unit, spread(ours), spread(other),
                '%.1f' % ratio, 'at least %d: %s' % (
                    aim, 'met' if ratio >= aim else 'missed')))
        daemon.check()
    print('\n== guests (emulated unless PVRDMA_ACCEL=kvm), median of %d (least '
          'to greatest)' % rounds)
    print('\n'.join(lines), flush=True)


def run_hosts(rounds):
    chosen = [program for program, _ in HOSTS_AIMS]
    figures = across.no_figures(chosen)
    with Session('bench-hosts') as session:
        daemons, guests = across.boot(session)
        columns = across.Columns(guests)
        for number in range(1, rounds + 1):
            across.measure_round(columns, chosen, figures, number)
        across.finish(daemons, guests)
    form = '%-20s %-5s %-28s %-31s %-28s %11s %7s  %s'
    print('\n== guests on two hosts (emulated unless PVRDMA_ACCEL=kvm), median of %d '
          '(least to greatest); load average %.0f' % (rounds, os.getloadavg()[0]))
    print(form % ('program', 'unit', *across.NAMES, 'x soft-RoCE', 'x siw', 'aim'))
    for i, (program, judged) in enumerate(HOSTS_AIMS):
        ours, *others = (figures[name][i] for name in across.NAMES)
        ratios = [program.ratio(statistics.median(ours), statistics.median(other))
                  for other in others]
        print(form % (program.title, program.unit, *map(spread, (ours, *others)),
                      *('%.1f' % ratio for ratio in ratios),
                      judged and 'both over 1: ' + ('met' if min(ratios) > 1 else
                                                    'missed') or ''), flush=True)


def slow_runs(program, values):
    """How many of @values are of the second state."""
    median = statistics.median(values)
    if program.better == 'more':
        return sum(v * SLOW_TIMES < median for v in values)
    return sum(v > SLOW_US or v > SLOW_TIMES * median for v in values)


def hog_aim(program, ours, stock):
    """The verdict on one line: (text, ratio of medians)."""
    ours_mid, stock_mid = statistics.median(ours), statistics.median(stock)
    missed = []
    if slow_runs(program, ours):
        missed.append('slow runs')
    if program.better == 'less' and ours_mid > HOG_LATENCY * stock_mid:
        missed.append('more than %.1f x stock' % HOG_LATENCY)
    if program.better == 'more' and ours_mid < HOG_BANDWIDTH * stock_mid:
        missed.append('less than %.1f x stock' % HOG_BANDWIDTH)
    return 'missed: ' + ', '.join(missed) if missed else 'met', \
        ours_mid / stock_mid


def demo_aim(program, ours, stock):
    """The same of a row of the demo; the stock parts' runs in two halves, which took turns."""
    ratio = program.ratio(statistics.median(ours), statistics.median(stock))
    halves = [statistics.median(stock[i::2] or stock) for i in (0, 1)]
    least = min(program.ratio(*halves), program.ratio(*halves[::-1]))
    return '%s: at least %.2f' % ('met' if ratio >= least else 'missed', least), ratio


def run_hogs(name, loads, programs, judge, rounds, block=2):
    """The parts change after every @block runs: that takes seconds."""
    with Session('bench-' + name) as session:
        daemon, guests = boot(session)
        figures = {(n, i): ([], []) for n in loads for i in range(len(programs))}
        made = 0
        while made < rounds:
            now = min(block, rounds - made)
            for which in (0, 1):
                if which:
                    for guest in guests:
                        parts.use_stock(guest)
                elif made:
                    for guest in guests:
                        parts.use_own(guest)
                pair = Pair(guests, 'pvrdma', parts.STOCK_DEVICE if which
                            else parts.OWN_DEVICE)
                for n in loads:
                    with Hogs(n):
                        for i, program in enumerate(programs):
                            figures[n, i][which].extend(
                                program.run(pair) for _ in range(now))
            made += now
            say('%d of %d runs made' % (made, rounds))
        workers = daemon.ctl_json('status').get('worker_threads', [])
        daemon.check()
    form = '%-4s %-23s %-5s %-32s %-32s %6s %10s  %s'
    print('\n== %s: beside hogs, %d processors, median of %d (least to greatest); '
          'slow: runs over %d us or %d x the median, ours/stock' % (
              name, os.cpu_count(), rounds, SLOW_US, SLOW_TIMES))
    print(form % ('hogs', 'program', 'unit', 'pvrdma', 'stock', 'ratio', 'slow',
                  'aim'))
    for (n, i), (ours, stock) in sorted(figures.items()):
        aim, ratio = judge(programs[i], ours, stock)
        print(form % (n, programs[i].title, programs[i].unit, spread(ours),
                      spread(stock), '%.2f' % ratio, '%d/%d' % (
                          slow_runs(programs[i], ours),
                          slow_runs(programs[i], stock)), aim))
    for worker in workers:
        print('worker: %s; lost its processor %d times' % (
            worker['priority'], worker['lost_processor']), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=5,
                        help='runs of each program in parts rxe and hosts')
    parser.add_argument('--hog-rounds', type=int, default=20,
                        help='runs of each program in part hogs')
    parser.add_argument('--demo-rounds', type=int, default=10,
                        help='runs of each program in part demo')
    parser.add_argument('part', nargs='*', default=[],
                        help='rxe, hosts, hogs, demo; default: all')
    args = parser.parse_args()
    for part in args.part:
        if part not in ('rxe', 'hosts', 'hogs', 'demo'):
            parser.error('no part %s' % part)

    def run():
        if not args.part or 'rxe' in args.part:
            run_rxe(max(args.rounds, 1))
        if 'hosts' in args.part or not args.part and hosts.may_be_made():
            run_hosts(max(args.rounds, 1))
        elif not args.part:
            say('part hosts is left out: network namespaces need root')
        if not args.part or 'hogs' in args.part:
            run_hogs('hogs', HOGS, hog_programs(), hog_aim, max(args.hog_rounds, 1))
        if not args.part or 'demo' in args.part:
            run_hogs('demo', DEMO_HOGS, demo_programs(), demo_aim, max(args.demo_rounds, 2))

    return script.run('bench', run)


if __name__ == '__main__':
    sys.exit(main())
