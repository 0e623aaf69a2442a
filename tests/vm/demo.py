#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo: two VMs on this host exchange RDMA traffic.

Starts pvrdmad with two VMs declared, boots two guests with the pvrdma device
and the distribution's own driver and programs, runs these, runs the same over
soft-RoCE (rdma_rxe on virtio-net) in the same two guests, and ends with a
table of both.  With --shell it leaves the guests up instead, a console each.
"""

import argparse
import os
import shutil
import signal
import statistics
import sys
import time

import pvrdma_vm
from agent import AgentError, CommandFailed
from programs import Pair, demo_programs
from pvrdma_vm import BUILD, REPO, Daemon, Session, VmError, say, start_guests

# Seconds from the start after which no further round begins to fit.
TIME_BUDGET = 130
SHELL_DIR = os.path.join(BUILD, 'demo-shell')


def devinfo(guest):
    """ibv_devinfo as the guest prints it, which must name an active port."""
    out = guest.run('ibv_devinfo -d vmw_pvrdma0').out
    if 'PORT_ACTIVE' not in out:
        raise VmError('%s has no active port:\n%s' % (guest.name, out))
    return out


def measure(pairs, programs, rounds):
    """Run every program on each pair, in turn, so that a busy machine hurts
    both alike; returns for each pair the median figures, and the rounds made.

    Later rounds are left out if they would not fit into TIME_BUDGET.
    """
    figures = [[[] for _ in programs] for _ in pairs]
    made = 0
    longest = 0.0
    while made < rounds and (not made or time.monotonic() - say.start +
                             longest < TIME_BUDGET):
        begin = time.monotonic()
        for i, program in enumerate(programs):
            for j, pair in enumerate(pairs):
                figures[j][i].append(program.run(pair))
            say('round %d  %-26s %s  %s' % (made + 1, program.title, '  '.join(
                '%s %10.2f' % (pair.device, figures[j][i][-1])
                for j, pair in enumerate(pairs)), program.unit))
        made += 1
        longest = max(longest, time.monotonic() - begin)
    return [[statistics.median(values) for values in one]
            for one in figures], made


def table(programs, ours, other, rounds):
    """The closing table as text; @ours and @other: a figure per program."""
    lines = ['%-26s %12s %12s  %-14s %s' % (
        'program', 'pvrdma', 'soft-RoCE', 'unit', 'ratio'), '-' * 78]
    for program, a, b in zip(programs, ours, other):
        lines.append('%-26s %12.2f %12.2f  %-14s %.1fx' % (
            program.title, a, b, program.unit, program.ratio(a, b)))
    lines += ['-' * 78,
              'ratio: how many times better pvrdma is than rdma_rxe on '
              'virtio-net,', 'same two guests, same programs and options; '
              'medians of %d run(s).' % rounds]
    accel = os.environ.get('PVRDMA_ACCEL', 'tcg')
    if accel != 'kvm':
        lines.append('The guests are emulated (TCG): read the ratio, not the '
                     'absolute figures.')
    return '\n'.join(lines)


def boot(session, shell):
    say('starting pvrdmad with vm1 and vm2 declared')
    daemon = Daemon(session, ['vm1', 'vm2'])
    say('booting two guests, each with -device pvrdma')
    guests = start_guests(session, daemon, shell=shell)
    for guest in guests:
        guest.load_pvrdma()
        guest.load_rxe()
    return daemon, guests


def run_demo(rounds):
    with Session('demo') as session:
        daemon, guests = boot(session, False)
        for guest in guests:
            say('ibv_devinfo in %s:' % guest.name)
            print(devinfo(guest), flush=True)
        programs = demo_programs()
        pairs = [Pair(guests, 'pvrdma', 'vmw_pvrdma0'),
                 Pair(guests, 'virtio', 'rxe0')]
        (ours, other), made = measure(pairs, programs, rounds)
        daemon.check()
        for guest in guests:
            guest.powerdown()
        daemon.check()
        status = daemon.stop()
        if status:
            raise VmError('pvrdmad ended with status %d' % status)
        say('done')
        print('\n' + table(programs, ours, other, made), flush=True)


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
                guest.gid_index('vmw_pvrdma0', guest.ip('pvrdma'))), end='')
        print('\n\nTry: ibv_devinfo; then in vm1   ibv_rc_pingpong -d '
              'vmw_pvrdma0 -g INDEX\n                 and in vm2   '
              'ibv_rc_pingpong -d vmw_pvrdma0 -g INDEX %s'
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        pvrdma_vm.require_python()
        if args.shell:
            run_shell()
        else:
            run_demo(max(args.rounds, 1))
    except (VmError, AgentError, CommandFailed) as exc:
        print('demo: error: %s' % exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nended', file=sys.stderr)
        return 0 if args.shell else 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
