# SPDX-License-Identifier: GPL-2.0-or-later
"""Our device, soft-RoCE and siw in the same two guests, which are on different hosts.

Ours is iWARP over TCP between the hosts' daemons; soft-RoCE (rdma_rxe) and siw are on
virtio-net, whose frames take the same link between the hosts.  They take turns with the
same programs: one round is each program once on each device.  For the demo of two hosts
and for the benchmark.
"""

from lib import hosts, parts
from lib.agent import CommandFailed
from lib.programs import LISTENS, PERFTEST, TRIES, Pair, _ports
from lib.pvrdma_vm import VmError, end_well, say

OWN, RXE, SIW = NAMES = ('pvrdma', 'soft-RoCE', 'siw')


class CmPair(Pair):
    """Of siw, whose queue pairs only the connection manager connects."""

    def find_gids(self):
        pass  # it has none by address

    def run(self, template, timeout=60, server=0):
        for left in reversed(range(TRIES)):
            try:
                return self.run_once(template, timeout, server)
            except CommandFailed:
                # Asked too early (programs.TOO_EARLY); siw says it in other words.
                if not left:
                    raise
        return None

    def run_once(self, template, timeout, server):
        port = next(_ports)
        one, two = self.guests[server], self.guests[1 - server]
        command = template.replace(PERFTEST, '-R ' + PERFTEST).format(
            dev=self.device, port=port)
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


class Columns:
    """The devices by name.  soft-RoCE and siw do not like to share an interface, so they
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


def boot(session):
    say('two hosts: network namespaces with a link, and pvrdmad in each')
    two = hosts.Hosts(session, 2)
    daemons = two.start_daemons({name: {'addresses': 'any'} for name in ('vm1', 'vm2')})
    say('booting a guest on each, with -device pvrdma')
    guests = two.start_guests(daemons, [0, 1], virtio=True, files=parts.guest_files(),
                              boot=True)
    for guest in guests:
        parts.use_own(guest)
        guest.load_rxe()
    return daemons, guests


def finish(daemons, guests):
    end_well(guests, daemons[0])
    if daemons[1].stop():
        raise VmError('the second daemon did not end well')


def cell(value, form='%.2f'):
    return '-' if value is None else form % value


def measure_round(columns, chosen, figures, number, unlike=lambda program, name: False):
    """Round @number of the programs @chosen: appends to @figures[name][i].

    @unlike: whether a program cannot be run on the device of that name."""
    for names in ((OWN, RXE), (SIW,)):
        for i, program in enumerate(chosen):
            for name in names:
                if not unlike(program, name):
                    figures[name][i].append(program.run(columns.use(name)))
            say('round %d  %-28s %s  %s' % (number, program.title, '  '.join(
                '%s %s' % (name, cell((figures[name][i] or [None])[-1]))
                for name in names), program.unit))


def no_figures(chosen):
    """What measure_round() fills."""
    return {name: [[] for _ in chosen] for name in NAMES}
