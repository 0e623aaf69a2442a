# SPDX-License-Identifier: GPL-2.0-or-later
"""datacheck: every operation, every byte compared (see datacheck.c)."""

import re

from lib import fixture
from lib.programs import Pair
from lib.pvrdma_vm import Daemon, start_guests


class Check:
    """@rdma: a Pair, given by the class that has guests."""

    def check(self, rdma, server, rounds=1, parts='rc srq'):
        jobs = rdma.run('datacheck -d {dev} -g {gid} -p {port} -n %d'
                        % rounds, timeout=240, server=server)
        for job in jobs:
            found = re.search(r'^(\d+) checks, (\d+) errors$', job.out,
                              re.MULTILINE)
            self.assertTrue(found, job.describe())
            self.assertGreater(int(found.group(1)), 100)
            self.assertEqual(int(found.group(2)), 0, job.describe())
            self.assertIn('parts: %s\n' % parts, job.out)


class DatacheckTest(Check, fixture.PairTest):
    def test_first_guest_serves(self):
        self.check(self.rdma, 0, rounds=2)

    def test_second_guest_serves(self):
        self.check(self.rdma, 1)

    def test_no_extended_verbs(self):
        """The stock library has none: said, and not worked around."""
        done = self.guests[0].run('datacheck -x -d %s -g %d' % (
            self.rdma.device, self.rdma.gids[0]), 60, check=False)
        self.assertEqual(done.code, 3, done.describe())


@fixture.shard('driver')
class SmpDatacheckTest(Check, fixture.PrivateTest):
    """Several vCPUs in threads of their own: driver, library and doorbells run
    at the same time, in both guests."""

    def smp(self, cpus):
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        guests = start_guests(self.session, daemon, virtio=False, cpus=cpus)
        for guest in guests:
            self.assertEqual(guest.run('nproc').out.strip(), str(cpus))
            guest.load_pvrdma()
        self.check(Pair(guests, 'pvrdma', 'vmw_pvrdma0'), 0)
        for guest in guests:
            guest.powerdown()
        self.assertEqual(daemon.stop(), 0)

    def test_two_cpus(self):
        self.smp(2)

    def test_four_cpus(self):
        self.smp(4)
