# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make demo` does, with fewer programs."""

import demo
import fixture
from programs import latency, pingpong


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
