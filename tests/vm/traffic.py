# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that go on in two guests while something happens to these or to the daemon."""

import itertools
import re

import parts
from programs import Pair

DATACHECK = 'datacheck -d {dev} -g {gid} -p {port} -n %d'
BOTH_DIRECTIONS = 'ib_write_bw -b -d {dev} -x {gid} -p {port} -s 65536 -n %d -F'

_ports = itertools.count(18700)


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
    """Before a TestCase: it has self.rdma, a Pair whose first guest serves."""

    def start(self, template, timeout=600):
        """Run @template in both: the jobs."""
        port = next(_ports)
        server, client = self.rdma.guests
        one, two = [template.format(dev=self.rdma.device, gid=gid, port=port)
                    for gid in self.rdma.gids]
        first = server.spawn(one, timeout)
        server.wait_listen(port, first)
        jobs = [first, client.spawn('%s %s' % (two, server.ip(self.rdma.kind)), timeout)]
        self.still_running(jobs)
        return jobs

    def still_running(self, jobs):
        for job in jobs:
            self.assertFalse(job.done, job.describe())

    def during(self, template, action):
        """Run @template while @action is going on, which gets a function that fails if
        it ended too early; the jobs, which have succeeded."""
        jobs = self.start(template)
        action(lambda: self.still_running(jobs))
        for job in jobs:
            job.wait(600, check=True)
        return jobs

    def datacheck(self, action, rounds=4):
        """Every byte of every operation, both ways."""
        for job in self.during(DATACHECK % rounds, action):
            self.assertRegex(job.out, re.compile(r'^\d+ checks, 0 errors$', re.M))
