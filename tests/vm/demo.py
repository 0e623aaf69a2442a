#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: two VMs on this host exchange RDMA traffic.

Starts pvrdmad with two VMs declared, boots two guests with the pvrdma device,
and runs the distribution's own programs in them: over our guest driver and
provider, over the stock ones (the in-tree vmw_pvrdma and the distribution's
library), and over soft-RoCE (rdma_rxe on virtio-net).  Ends with a table of all
three.  With --shell it leaves the guests up instead, a console each.
"""

import argparse
import os
import shutil
import statistics
import sys
import time

from lib import parts, script
from lib.programs import Pair, demo_programs
from lib.pvrdma_vm import BUILD, REPO, Daemon, Session, VmError, end_well, say, \
    start_guests

# Seconds from the start after which no further round begins to fit.
TIME_BUDGET = 165
# Programs between two changes of the driver, which take seconds.
BLOCK = 3
SHELL_DIR = os.path.join(BUILD, 'demo-shell')
OWN, STOCK, RXE = 'pvrdma', 'stock', 'soft-RoCE'


def devinfo(guest):
    """ibv_devinfo as the guest prints it, which must name an active port."""
    out = guest.run('ibv_devinfo -d ' + parts.OWN_DEVICE).out.rstrip()
    if 'PORT_ACTIVE' not in out:
        raise VmError('%s has no active port:\n%s' % (guest.name, out))
    return out


class Columns:
    """The table's columns: pairs of devices in the same two guests.

    Only one driver can have the pvrdma device, so ours and the stock one take
    turns: use() loads the one that a column wants.
    """

    def __init__(self, guests):
        self.guests = guests
        self.loaded = OWN
        self.pairs = {OWN: Pair(guests, 'pvrdma', parts.OWN_DEVICE),
                      RXE: Pair(guests, 'virtio', 'rxe0')}

    def use(self, name):
        if name in (RXE, self.loaded):
            return self.pairs[name]
        for guest in self.guests:
            (parts.use_own if name == OWN else parts.use_stock)(guest)
        self.pairs[name] = Pair(self.guests, 'pvrdma', parts.OWN_DEVICE
                                if name == OWN else parts.STOCK_DEVICE)
        self.loaded = name
        return self.pairs[name]


def measure(columns, programs, rounds, exits):
    """Run every program on each column; returns for each column the median
    figures, the median numbers of exits, and the rounds made.

    @exits: a function that returns the guests' exits so far.  The columns take
    turns, so that a busy machine hurts all alike: ours and soft-RoCE program by
    program, the stock parts after each BLOCK of programs, or before: whichever
    driver is loaded goes first.  Later rounds are left out if they would not fit
    into TIME_BUDGET.
    """
    figures = {name: [[] for _ in programs] for name in (OWN, STOCK, RXE)}
    left = {name: [[] for _ in programs] for name in figures}
    made = 0
    longest = 0.0
    while made < rounds and (not made or time.monotonic() - say.start +
                             longest < TIME_BUDGET):
        begin = time.monotonic()
        for first in range(0, len(programs), BLOCK):
            turns = [(OWN, RXE), (STOCK,)]
            for names in turns if columns.loaded == OWN else turns[::-1]:
                pairs = [columns.use(name) for name in names]
                for i in range(first, min(first + BLOCK, len(programs))):
                    for name, pair in zip(names, pairs):
                        before = exits()
                        figures[name][i].append(programs[i].run(pair))
                        left[name][i].append(exits() - before)
                    say('round %d of %d  %-26s %s  %s' % (
                        made + 1, rounds, programs[i].title, '  '.join(
                            '%s %.2f' % (name, figures[name][i][-1])
                            for name in names), programs[i].unit))
        made += 1
        longest = max(longest, time.monotonic() - begin)
    return ({name: [statistics.median(values) for values in one]
             for name, one in table.items()} for table in (figures, left)), made


NOTES = '''\
us: a round trip of ibv_rc_pingpong, perftest's median of one way of ib_*_lat.
pvrdma: our guest driver and provider.  stock: the same device with the in-tree
driver vmw_pvrdma and the distribution's provider.  soft-RoCE: rdma_rxe on
virtio-net.  All in the same two guests, same programs and options, medians of
%d run(s).  x: how many times better pvrdma is than that column; ! marks a
figure that is worse than the stock parts'.
exits: doorbell writes, that is how often the two guests were left, per run.'''

EMULATED = '''\
The guests are emulated (TCG): read the ratios, not the absolute figures.  An
exit costs little here and microseconds under KVM.'''


def stock_ratio(ratio):
    """Text of a ratio to the stock parts; one that shows us worse is marked."""
    return '%.2f%s' % (ratio, '!' if ratio < 1 else ' ')


def table(programs, figures, exits, rounds):
    """The closing table as text; @figures, @exits: by column, one per program."""
    form = '%-25s %9s %9s %9s  %-4s %11s %8s  %13s %7s'
    lines = [form % ('program', OWN, STOCK, RXE, 'unit', 'x soft-RoCE',
                     'x stock', 'exits: pvrdma', STOCK)]
    lines.append('-' * len(lines[0]))
    for i, program in enumerate(programs):
        own, stock, rxe = (figures[name][i] for name in (OWN, STOCK, RXE))
        lines.append(form % (
            program.title, '%.2f' % own, '%.2f' % stock, '%.2f' % rxe,
            program.unit, '%.1f' % program.ratio(own, rxe),
            stock_ratio(program.ratio(own, stock)),
            '%d' % exits[OWN][i], '%d' % exits[STOCK][i]))
    lines += [lines[1], NOTES % rounds]
    if os.environ.get('PVRDMA_ACCEL', 'tcg') != 'kvm':
        lines.append(EMULATED)
    return '\n'.join(lines)


def boot(session, shell):
    say('starting pvrdmad with vm1 and vm2 declared')
    daemon = Daemon(session, ['vm1', 'vm2'])
    say('booting two guests, each with -device pvrdma')
    guests = start_guests(session, daemon, shell=shell, boot=True,
                          files=parts.guest_files())
    for guest in guests:
        parts.use_own(guest)
        guest.load_rxe()
    return daemon, guests


def run_demo(rounds):
    with Session('demo') as session:
        daemon, guests = boot(session, False)
        for guest in guests:
            say('ibv_devinfo in %s:' % guest.name)
            print(devinfo(guest), flush=True)
        programs = demo_programs()
        say('measuring: %d programs over our parts, the stock parts and '
            'soft-RoCE' % len(programs))
        (figures, exits), made = measure(Columns(guests), programs, rounds,
                                         lambda: sum(daemon.doorbells()))
        daemon.check()
        workers = daemon.ctl_json('status').get('worker_threads', [])
        end_well(guests, daemon)
        say('done')
        print('\n' + table(programs, figures, exits, made), flush=True)
        for worker in workers:
            print('worker: %s; its processor was taken away %d times, it waited '
                  '%.1f s for one' % (worker['priority'],
                                      worker['lost_processor'],
                                      worker['waited_us'] / 1e6), flush=True)


def run_shell():
    with Session('demo-shell') as session:
        daemon, guests = boot(session, True)
        shutil.rmtree(SHELL_DIR, ignore_errors=True)
        os.makedirs(SHELL_DIR)
        session.add_closer(lambda: shutil.rmtree(SHELL_DIR,
                                                 ignore_errors=True))
        print('\nBoth guests are up.  In another terminal each:\n')
        for guest in guests:
            os.symlink(guest.console, os.path.join(SHELL_DIR, guest.name))
            print('    %s %s' % (os.path.relpath(os.path.join(
                REPO, 'tests', 'vm', 'console.py')), guest.name))
        for guest in guests:
            print('\n%s: %s on the pvrdma adapter\'s network, GID index %d' % (
                guest.name, guest.ip('pvrdma'),
                guest.gid_index(parts.OWN_DEVICE, guest.ip('pvrdma'))), end='')
        print('\n\nTry: ibv_devinfo; then in vm1   ibv_rc_pingpong -d '
              'pvrdma0 -g INDEX\n                 and in vm2   '
              'ibv_rc_pingpong -d pvrdma0 -g INDEX %s'
              % guests[0].ip('pvrdma'))
        print('\nSockets: %s (daemon), %s (consoles)\n'
              'Ctrl-C here ends both guests.' % (daemon.socket_dir,
                                                 SHELL_DIR), flush=True)
        while any(guest.alive for guest in guests):
            daemon.check()
            time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--shell', action='store_true',
                        help='leave both guests up with a console each')
    parser.add_argument('--rounds', type=int, default=3,
                        help='runs per program; the median is shown')
    args = parser.parse_args()
    if args.shell:
        return script.run('demo', run_shell, interrupted=0)
    return script.run('demo', lambda: run_demo(max(args.rounds, 1)))


if __name__ == '__main__':
    sys.exit(main())
