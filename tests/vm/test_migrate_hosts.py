# SPDX-License-Identifier: GPL-2.0-or-later
"""Two guests of which either may be on any of three hosts, and go to any other, also both
at the same time, while their programs go on.

A move from one host to another whose peer is on the third leads from TCP to TCP; where
both end on one host it is a memory copy.  What goes on: fetch-and-add, whose result is
compared with what succeeded; the data check, of every byte; and connections that the
connection manager makes, which are in the middle of that when a guest stops.

In shard moves the guests have the addresses that the key files name, one has our guest
parts and the other the stock ones.  In shard drawn there are many moves to places that are
drawn as well, and other parts and addresses.
"""

import functools
import random
import time

from lib import fixture, hosts, migrate, ongoing, parts
from lib.kernellog import log_problems
from lib.pvrdma_vm import say

# Both guests stand still for so long: the connection manager asks again after 4 s.
HELD = 5
DRAWN = 12
# Where the guests are at the beginning of each test, and at its end.
START = 0, 2


def still(seconds):
    """They stand still for so long."""
    return functools.partial(time.sleep, seconds)


class AnyHosts(fixture.SessionTest):
    """The guests, for all tests of a class."""

    on_hosts = True
    # Which have our driver and library.
    own = (True, False)

    @staticmethod
    def addresses(number):
        """What the key file of each host allows guest @number."""
        return '10.77.0.%d;52:54:00:77:00:%02x' % (number, number)

    @classmethod
    def boot(cls):
        cls.hosts = hosts.Hosts(cls.session, 3)
        cls.daemons = cls.hosts.start_daemons(
            {'vm%d' % number: {'addresses': cls.addresses(number)} for number in (1, 2)})
        cls.guests = cls.hosts.start_guests(cls.daemons, START, wire=hosts.Lan,
                                            files=parts.guest_files())
        cls.places = list(START)
        cls.devices = [parts.OWN_DEVICE if own else parts.STOCK_DEVICE for own in cls.own]
        for guest, own in zip(cls.guests, cls.own):
            if own:
                parts.use_own(guest)
            else:
                guest.load_pvrdma()

    def ends(self):
        return [ongoing.end_of(guest, device)
                for guest, device in zip(self.guests, self.devices)]

    def setUp(self):
        self.go(*START)

    def tearDown(self):
        """What a test that failed has left is not in the way of the next."""
        try:
            for guest in self.guests:
                guest.agent.kill_jobs()
        finally:
            super().tearDown()

    def go(self, *places, **how):
        """The guests that are not on the hosts of these numbers go there, at once."""
        moving = [i for i in (0, 1) if self.places[i] != places[i]]
        moved = migrate.together(
            [(self.guests[i], self.daemons[places[i]].socket(self.guests[i].name),
              self.hosts[places[i]]) for i in moving], **how)
        for i, guest in zip(moving, moved):
            self.guests[i] = guest
            self.places[i] = places[i]

    def wait_path(self, program):
        """The queue pair by which @program is judged leads to where the other guest is:
        by TCP, if that is another host."""
        place = self.places[[guest.name for guest in self.guests].index(program.name)]
        peer = sum(self.places) - place
        want = {'transport': 'copy'} if place == peer else \
            {'transport': 'tcp', 'host': self.hosts[peer].name, 'connection': 'up'}

        def leads():
            qps = self.daemons[place].ctl_json('qp', 'list', program.name)['qps']
            return any(qp['qpn'] == program.qpn and want.items() <= qp.items()
                       for qp in qps) or None
        program.wait(leads, 'path from host%d to host%d' % (place, peer))

    def moves(self, *moves):
        """(places, how) of each, under the data check and beside two that count, each in
        the other's memory; these get further after each."""
        ends = self.ends()
        counting = [ongoing.Counting(pair, self.daemons) for pair in (ends, ends[::-1])]
        datacheck = ongoing.Datacheck(ends)
        for places, how in moves:
            datacheck.more_messages(self.daemons)
            self.go(*places, **how)
            for program in counting:
                program.more()
                self.wait_path(program)
        rounds, counts = datacheck.end(), [program.end() for program in counting]
        say('counted to %d and %d; the data check ended %d times' % (*counts, rounds))

    def connecting(self, *moves):
        """The same with connections that are made over and over, both ways."""
        ends = self.ends()
        programs = [ongoing.Connecting(pair) for pair in 2 * (ends, ends[::-1])]
        for places, how in moves:
            for program in programs:
                program.more()
            self.go(*places, **how)
            for program in programs:
                program.more()
        made, refused = zip(*(program.end() for program in programs))
        made, refused = sum(made), sum(refused, [])
        say('%d connections were made; %s' % (made, refused or 'no other'))
        self.assertLess(10 * len(refused), made)


class Moves:
    """Before AnyHosts."""

    def test_tcp_to_tcp(self):
        """One moves; the other stays on a third host."""
        self.moves(((1, 2), {}), (START, {}))

    def test_both(self):
        """Each to the other's host, also if both have stopped before either begins."""
        self.moves(((2, 0), {}), (START, {'held': still(0)}))

    def test_daemons_replaced(self):
        """Of all hosts, while both stand still on their way."""
        def replace():
            for daemon in self.daemons:
                daemon.ctl_json('restart')
            self.assertEqual([sorted(vm['state'] for vm in daemon.ctl_json(
                'vm', 'migrate-status')['vms']) for daemon in self.daemons],
                             [['running', 'stop'], ['running', 'running'],
                              ['running', 'stop']])
        self.moves(((2, 0), {'held': replace}))

    def test_connections(self):
        self.connecting(((2, 1), {}), (START, {'held': still(HELD)}))

    def test_zz_kernel_log(self):
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])


@fixture.shard('moves')
class MixedTest(Moves, AnyHosts):
    pass


class Drawn(Moves):
    """Places that are drawn: also both on one host."""

    time_limit = 3600
    random = random.Random(11)

    def drawn(self):
        """DRAWN moves, and the way back."""
        places = START
        for _ in range(DRAWN):
            others = [(i, k) for i in range(3) for k in range(3) if (i, k) != places]
            places = self.random.choice(others)
            yield places, {'held': self.random.choice((None, still(0), still(0.5)))}
        yield START, {}

    def test_drawn(self):
        self.moves(*self.drawn())

    def test_drawn_connections(self):
        self.connecting(*self.drawn())


@fixture.shard('drawn')
class DrawnMixedTest(Drawn, AnyHosts):
    pass


@fixture.shard('drawn')
class DrawnOwnTest(Drawn, AnyHosts):
    own = (True, True)

    @staticmethod
    def addresses(number):
        return 'any'


@fixture.shard('drawn')
class DrawnStockTest(Drawn, AnyHosts):
    own = (False, False)
