# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon is replaced under guests whose programs go on and see nothing of it but the
time."""

import time

from lib import fixture, hosts, ongoing, parts
from lib.pvrdma_vm import Daemon, say, start_guests
from lib.traffic import Traffic

ROUNDS = 5
# Of each daemon, in one go under the data check.
IN_A_ROW = 100 if fixture.LONG else ROUNDS
# Seconds that the same traffic goes on without, to compare.
UNDISTURBED = 20 if fixture.LONG else 4
# Seconds from one to the next: guests get something done between them.
APART = 0.2


class Restarts(Traffic, fixture.SessionTest):
    """A pair of guests for all tests of a class."""

    time_limit = 3600 if fixture.LONG else 0  # 0: as others have
    # Of all tests: how many, and the longest pause in us.
    restarts = longest = 0

    @classmethod
    def make(cls):
        cls.daemons = [Daemon(cls.session, ['vm1', 'vm2'])]
        cls.guests = start_guests(cls.session, cls.daemons[0], virtio=False,
                                  files=parts.guest_files())

    def restart(self, goes_on=lambda: None, times=ROUNDS):
        """Each daemon in turn, so many times."""
        goes_on()
        longest = 0
        cls = type(self)
        for number in range(times * len(self.daemons)):
            daemon = self.daemons[number % len(self.daemons)]
            said = daemon.ctl_json('restart')
            self.assertGreater(said['vms'], 0)
            longest = max(longest, said['pause_us'])
            time.sleep(APART)
            goes_on()
        cls.restarts += number + 1
        cls.longest = max(cls.longest, longest)
        say('%s: %d restarts, the longest pause was %.1f ms' % (
            self.id().split('.', 1)[-1], number + 1, longest / 1000))

    def test_in_a_row(self):
        """Under the data check, and beside one that counts."""
        counting = ongoing.Counting(self.ends(), self.daemons)
        datacheck = ongoing.Datacheck(self.ends())

        def goes_on():
            counting.more()
            datacheck.check()
        time.sleep(UNDISTURBED)
        before = counting.waits()
        self.restart(goes_on, IN_A_ROW)
        rounds = datacheck.end()
        count = counting.end()
        # The first is of the start, and without the data check.
        still = [max(waits, default=0) / 1000
                 for waits in (counting.waits()[len(before):], before[1:])]
        say('%s: counted to %d, and stood still for %.1f ms at most, %.1f ms without '
            'restarts; the data check ended %d times' % (
                self.id().split('.', 1)[-1], count, *still, rounds))

    def test_both_directions(self):
        self.both_directions(self.restart)

    def test_other_users(self):
        """Connections of the connection manager, atomics and a kernel's at the same time."""
        ends = self.ends()
        programs = [ongoing.Rping(ends, self.daemons), ongoing.Counting(ends, self.daemons),
                    ongoing.NvmeCopy(ends)]

        def goes_on():
            for program in programs:
                program.more()
        self.restart(goes_on)
        for program in reversed(programs):
            program.end()

    def test_new_connections(self):
        """The adapters are as good as before."""
        self.restart()
        self.rdma.run('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 16384 -n 100')

    @classmethod
    def tearDownClass(cls):
        say('%s: %d restarts in all, the longest pause was %.1f ms' % (
            cls.__name__, cls.restarts, cls.longest / 1000))
        super().tearDownClass()


@fixture.shard('restarts')
class StockTest(Restarts):
    pass


@fixture.shard('restarts')
class OwnTest(Restarts):
    own = True


@fixture.longer('restarts')
class HostsTest(Restarts):
    """On two hosts, whose daemons are replaced in turn."""

    on_hosts = True
    own = True

    @classmethod
    def make(cls):
        cls.hosts = hosts.Hosts(cls.session, 2)
        cls.daemons = cls.hosts.start_daemons(
            {name: {'addresses': 'any'} for name in ('vm1', 'vm2')})
        cls.guests = cls.hosts.start_guests(cls.daemons, [0, 1],
                                            files=parts.guest_files())


# No test itself.
del Restarts
