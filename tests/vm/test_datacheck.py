# SPDX-License-Identifier: GPL-2.0-or-later
"""datacheck: every operation, every byte compared (see datacheck.c)."""

import re

import fixture


class DatacheckTest(fixture.PairTest):
    def check(self, server, rounds=1):
        jobs = self.rdma.run('datacheck -d {dev} -g {gid} -p {port} -n %d'
                             % rounds, timeout=300, server=server)
        for job in jobs:
            found = re.search(r'^(\d+) checks, (\d+) errors$', job.out,
                              re.MULTILINE)
            self.assertTrue(found, job.describe())
            self.assertGreater(int(found.group(1)), 100)
            self.assertEqual(int(found.group(2)), 0, job.describe())

    def test_first_guest_serves(self):
        self.check(0, rounds=2)

    def test_second_guest_serves(self):
        self.check(1)
