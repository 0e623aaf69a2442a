# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that go on in two guests while something happens to these or to the daemon.

However fast or slow the machine is, they go on until the test ends them, and each time
that something has happened they must get further.
"""

from lib import ongoing, parts
from lib.programs import Pair


def load_drivers(guests, own):
    """Our driver and library in @guests that have booted, or the stock ones; their
    Pair."""
    for guest in guests:
        guest.wait_boot()
        if own:
            parts.use_own(guest)
        else:
            guest.load_pvrdma()
    return Pair(guests, 'pvrdma', parts.OWN_DEVICE if own else parts.STOCK_DEVICE)


class Traffic:
    """Before a SessionTest whose make() starts a pair of guests.  @own: with our driver
    and library, else with the stock ones."""

    own = False

    @classmethod
    def boot(cls):
        cls.make()
        cls.rdma = load_drivers(cls.guests, cls.own)

    def ends(self):
        """The guest that may move serves: a program is judged by the other's QP."""
        return [ongoing.End(guest, self.rdma.device, gid) for guest, gid in
                reversed(list(zip(self.rdma.guests, self.rdma.gids)))]

    def during(self, program, action, goes_on):
        """@program goes on while @action does, and after it; @action gets @goes_on, which
        returns when it has done more."""
        action(goes_on)
        goes_on()
        program.end()

    def both_directions(self, action):
        program = ongoing.Perftest('ib_write_bw -b', self.ends(), self.daemons)
        self.during(program, action, program.more)

    def datacheck(self, action):
        """Every byte of every operation, both ways."""
        program = ongoing.Datacheck(self.ends())
        self.during(program, action, lambda: program.more_messages(self.daemons))

    def tearDown(self):
        """What a test that failed has left is not in the way of the next."""
        try:
            for guest in self.rdma.guests:
                guest.agent.kill_jobs()
        finally:
            super().tearDown()
