#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests against soft-RoCE: ratios, with the aims that the project has set.

Our guest driver and provider and rdma_rxe on virtio-net, in the same two guests,
take turns with the same program and options.  Prints the medians, their ratio,
and whether it meets its aim; a missed aim is no failure, since a busy machine
misses it too.
"""

import argparse
import signal
import statistics
import sys

import parts
from agent import AgentError, CommandFailed
from programs import Pair, latency, timed_bandwidth
from pvrdma_vm import Daemon, Session, VmError, require_python, say, \
    start_guests

# A program, and how many times better than soft-RoCE it is to be.
AIMS = [(latency('ib_send_lat', 8, 1000), 3),
        (timed_bandwidth('ib_write_bw', 65536), 20)]


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


def run(rounds):
    with Session('bench') as session:
        daemon = Daemon(session, ['vm1', 'vm2'])
        guests = start_guests(session, daemon, files=parts.guest_files())
        for guest in guests:
            parts.use_own(guest)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        require_python()
        run(max(args.rounds, 1))
    except (VmError, AgentError, CommandFailed) as exc:
        print('bench: error: %s' % exc, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
