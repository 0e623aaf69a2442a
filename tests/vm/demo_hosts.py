#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo of two hosts: two VMs on different hosts exchange RDMA traffic.

The hosts are network namespaces of this machine with a link between them, a daemon in
each and a guest on each.  The distribution's perftest runs over the pvrdma adapters
(iWARP over TCP between the daemons), over soft-RoCE (rdma_rxe) and over soft-iWARP (siw);
the last two on virtio-net, whose frames take the same link.  Ends with a table.  Needs
root, for the namespaces.
"""

import argparse
import statistics
import sys
import time

from lib import across, script
from lib.across import OWN, RXE, SIW, cell
from lib.programs import PERFTEST, Program, parse_bw, parse_lat
from lib.pvrdma_vm import Session, say

# Seconds from the start after which no further round begins to fit.
TIME_BUDGET = 150


def lat(name, rest='', unlike=()):
    return program(name + ' 8 B', '%s %s%s -n 100' % (name, PERFTEST, rest), parse_lat,
                   'us', 'less', unlike)


def bandwidth(name, size, unlike=()):
    return program('%s %d B' % (name, size), '%s %s -s %d -D 1 -f 0'
                   % (name, PERFTEST, size), parse_bw, 'MB/s', 'more', unlike)


def program(title, template, parse, unit, better, unlike):
    """@unlike: the devices that cannot do it."""
    made = Program(title, template, parse, unit, better)
    made.unlike = unlike
    return made


def programs():
    return [lat('ib_send_lat', ' -s 8'), lat('ib_write_lat', ' -s 8'),
            lat('ib_read_lat', ' -s 8'), lat('ib_atomic_lat', '', (SIW,)),
            lat('ib_send_lat -c UD', ' -s 8', (SIW,)),
            bandwidth('ib_send_bw', 65536), bandwidth('ib_write_bw', 65536),
            bandwidth('ib_write_bw', 1 << 20), bandwidth('ib_read_bw', 65536)]


def measure(columns, chosen, rounds):
    """The median figures by column, None where a device cannot, and the rounds made."""
    figures = across.no_figures(chosen)
    made, longest = 0, 0.0
    while made < rounds and (not made or time.monotonic() - say.start + longest
                             < TIME_BUDGET):
        begin = time.monotonic()
        across.measure_round(columns, chosen, figures, made + 1,
                             lambda program, name: name in program.unlike)
        made += 1
        longest = max(longest, time.monotonic() - begin)
    return {name: [statistics.median(values) if values else None for values in column]
            for name, column in figures.items()}, made


NOTES = '''\
us: perftest's median of one way.  Medians of %d run(s).  pvrdma: our guest driver and
provider; iWARP over TCP between the two daemons.  soft-RoCE, siw: rdma_rxe and siw in
the same two guests, on virtio-net, whose frames take the same link between the hosts.
x: how many times better pvrdma is.  -: not supported by that device.'''


def table(chosen, figures, rounds):
    form = '%-26s %9s %9s %9s  %-4s %11s %7s'
    lines = [form % ('program', OWN, RXE, SIW, 'unit', 'x soft-RoCE', 'x siw')]
    lines.append('-' * len(lines[0]))
    for i, one in enumerate(chosen):
        own = figures[OWN][i]
        ratios = [figures[name][i] and one.ratio(own, figures[name][i])
                  for name in (RXE, SIW)]
        lines.append(form % ((one.title,) + tuple(
            cell(figures[name][i]) for name in (OWN, RXE, SIW)) + (one.unit,) + tuple(
                cell(ratio, '%.1f') for ratio in ratios)))
    return '\n'.join(lines + [lines[1], NOTES % rounds])


def run_demo(rounds):
    with Session('demo-hosts') as session:
        daemons, guests = across.boot(session)
        chosen = programs()
        figures, made = measure(across.Columns(guests), chosen, rounds)
        print('\nOn the first host, meanwhile:\n\n' + daemons[0].ctl('peer', 'list'))
        across.finish(daemons, guests)
        say('done')
        print('\n' + table(chosen, figures, made))
        print('In all %.0f s.' % (time.monotonic() - say.start), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=3,
                        help='runs per program; the median is shown')
    args = parser.parse_args()
    return script.run('demo-hosts', lambda: run_demo(max(args.rounds, 1)))


if __name__ == '__main__':
    sys.exit(main())
