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

import hosts
import parts
import script
from agent import CommandFailed
from programs import LISTENS, PERFTEST, TRIES, Pair, Program, _ports, parse_bw, parse_lat
from pvrdma_vm import Session, VmError, end_well, say

# Seconds from the start after which no further round begins to fit.
TIME_BUDGET = 150
OWN, RXE, SIW = 'pvrdma', 'soft-RoCE', 'siw'


class CmPair(Pair):
    """Of siw, whose queue pairs only the connection manager connects."""

    def find_gids(self):
        pass  # it has none by address

    def run(self, template, timeout=60, server=0):
        for left in reversed(range(TRIES)):
            try:
                return self.run_once(template, timeout, server)
            except CommandFailed:
                # perftest listens twice; who is faster than the second time fails.
                if not left:
                    raise
        return None

    def run_once(self, template, timeout, server):
        port = next(_ports)
        one, two = self.guests[server], self.guests[1 - server]
        command = template.replace('-x {gid}', '-R').format(dev=self.device, port=port)
        first = one.spawn(command, timeout)
        try:
            try:
                parts.wait_in_guest(one, LISTENS % port, 'listener')
            except VmError:
                if first.done:
                    raise CommandFailed(first) from None
                raise
            second = two.run('%s %s' % (command, one.ip(self.kind)), timeout)
            first.wait(check=True)
        finally:
            if not first.done and one.alive:
                first.kill(9)
        return first, second


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


def boot(session):
    say('two hosts: network namespaces with a link, and pvrdmad in each')
    two = hosts.Hosts(session, 2)
    daemons = two.start_daemons({name: {'addresses': 'any'} for name in ('vm1', 'vm2')})
    say('booting a guest on each, with -device pvrdma')
    guests = two.start_guests(daemons, [0, 1], virtio=True, files=parts.guest_files())
    for guest in guests:
        parts.use_own(guest)
        guest.load_rxe()
    return daemons, guests


class Columns:
    """The table's columns.  soft-RoCE and siw do not like to share an interface, so they
    take turns on it."""

    def __init__(self, guests):
        self.guests = guests
        self.soft = 'rxe'
        self.own = Pair(guests, 'pvrdma', parts.OWN_DEVICE)

    def use(self, name):
        if name == OWN:
            return self.own
        kind = {RXE: 'rxe', SIW: 'siw'}[name]
        if kind != self.soft:
            for guest in self.guests:
                guest.run('rdma link delete %s0; modprobe %s && '
                          'rdma link add %s0 type %s netdev vio0'
                          % (self.soft, {'rxe': 'rdma_rxe'}.get(kind, kind), kind, kind))
            self.soft = kind
        return (Pair if kind == 'rxe' else CmPair)(self.guests, 'virtio', kind + '0')


def measure(columns, chosen, rounds):
    """The median figures by column, None where a device cannot, and the rounds made."""
    figures = {name: [[] for _ in chosen] for name in (OWN, RXE, SIW)}
    made, longest = 0, 0.0
    while made < rounds and (not made or time.monotonic() - say.start + longest
                             < TIME_BUDGET):
        begin = time.monotonic()
        for names in ((OWN, RXE), (SIW,)):
            for i, one in enumerate(chosen):
                for name in names:
                    if name not in one.unlike:
                        figures[name][i].append(one.run(columns.use(name)))
                say('round %d  %-28s %s  %s' % (made + 1, one.title, '  '.join(
                    '%s %s' % (name, cell((figures[name][i] or [None])[-1]))
                    for name in names), one.unit))
        made += 1
        longest = max(longest, time.monotonic() - begin)
    return {name: [statistics.median(values) if values else None for values in column]
            for name, column in figures.items()}, made


NOTES = '''\
us: perftest's median of one way.  Medians of %d run(s).  pvrdma: our guest driver and
provider; iWARP over TCP between the two daemons.  soft-RoCE, siw: rdma_rxe and siw in
the same two guests, on virtio-net, whose frames take the same link between the hosts.
x: how many times better pvrdma is.  -: not supported by that device.'''


def cell(value, form='%.2f'):
    return '-' if value is None else form % value


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
        daemons, guests = boot(session)
        chosen = programs()
        figures, made = measure(Columns(guests), chosen, rounds)
        print('\nOn the first host, meanwhile:\n\n' + daemons[0].ctl('peer', 'list'))
        end_well(guests, daemons[0])
        if daemons[1].stop():
            raise VmError('the second daemon did not end well')
        say('done')
        print('\n' + table(chosen, figures, made), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=3,
                        help='runs per program; the median is shown')
    args = parser.parse_args()
    return script.run('demo-hosts', lambda: run_demo(max(args.rounds, 1)))


if __name__ == '__main__':
    sys.exit(main())
