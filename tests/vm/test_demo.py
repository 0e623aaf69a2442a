# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make demo`, `make demo-hosts` and `make demo-migrate` do, with fewer programs and
moves."""

import unittest

import demo
import demo_hosts
import demo_migrate
from lib import across, fixture, hosts
from lib.programs import latency, pingpong


@fixture.shard('demos')
class DemoTest(fixture.PrivateTest):
    def test_columns_and_table(self):
        daemon, guests = demo.boot(self.session, False)
        columns = demo.Columns(guests)
        programs = [pingpong(True, 64, 200), latency('ib_write_lat', iters=100)]
        (figures, exits), made = demo.measure(
            columns, programs, 1, lambda: sum(daemon.doorbells()))
        self.assertEqual(made, 1)
        for values in figures.values():
            self.assertGreater(min(values), 0)
        # The stock provider rings for every post and every empty poll.
        self.assertGreater(exits[demo.STOCK][0], 2 * 200)
        self.assertEqual(exits[demo.RXE], [0, 0])
        text = demo.table(programs, figures, exits, made)
        for program in programs:
            self.assertIn('\n%s ' % program.title, text)

        # And back from the stock parts to ours.
        columns.use(demo.OWN)
        for guest in guests:
            self.assertIn('pvrdma0', demo.devinfo(guest))
            guest.powerdown()
        self.assertEqual(daemon.stop(), 0)


@fixture.shard('demos')
class DemoHostsTest(fixture.PrivateTest):
    def setUp(self):
        if not hosts.may_be_made():
            raise unittest.SkipTest('network namespaces need root')
        super().setUp()

    def test_columns_and_table(self):
        daemons, guests = across.boot(self.session)
        chosen = [one for one in demo_hosts.programs() if
                  one.title in ('ib_write_lat 8 B', 'ib_atomic_lat 8 B')]
        figures, made = demo_hosts.measure(across.Columns(guests), chosen, 1)
        self.assertEqual(made, 1)
        self.assertIsNone(figures[across.SIW][1])
        for values in figures.values():
            self.assertGreater(min(filter(None, values)), 0)
        text = demo_hosts.table(chosen, figures, made)
        for one in chosen:
            self.assertIn('\n%s ' % one.title, text)
        for guest in guests:
            guest.powerdown()
        for daemon in daemons:
            self.assertEqual(daemon.stop(), 0)


@fixture.shard('demos')
class DemoMigrateTest(fixture.PrivateTest):
    def setUp(self):
        if not hosts.may_be_made():
            raise unittest.SkipTest('network namespaces need root')
        super().setUp()

    def test_there_and_back(self):
        text = demo_migrate.run_demo(self.session, 1, pause=1)
        for name in ('vm2', 'vm3'):
            for host in ('host0', 'host1'):
                self.assertIn('\n%s to %s ' % (name, host), text)
        self.assertIn('\n4 moves in ', text)
