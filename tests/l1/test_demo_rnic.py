# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make demo-rnic` does, for a shorter time."""

import demo_rnic
from lib import fixture
from lib.pvrdma_vm import VmError


@fixture.shard('rnic-l1')
class DemoRnicTest(fixture.PrivateTest):
    def test_table_and_traffic(self):
        place = demo_rnic.Level1(self.session)
        text = demo_rnic.run_demo(place, rounds=1, seconds=0.2, lines=1)
        for title, *_ in demo_rnic.FIGURES.values():
            self.assertIn('\n%s ' % title, text)
        for column in [demo_rnic.NATIVE, *demo_rnic.PATHS]:
            self.assertEqual(text.count(' %s ' % column), len(demo_rnic.FIGURES), text)
        self.assertRegex(text, r'\n[1-9]\d* messages were sent and have arrived')
        self.assertEqual(place.host.problems(), [])
        place.finish()

    def test_this_machine(self):
        """--device: all but the NIC, which must be there for that."""
        place = demo_rnic.Machine(self.session, 'none', '127.0.0.1')
        ends = {path: demo_rnic.Ends(place, path) for path in ('copy', 'tcp')}
        with self.assertRaisesRegex(VmError, 'bench-verbs .*status 1'):
            demo_rnic.measure(place, ends, 1)
        said = place.run(demo_rnic.commands(place, ends, 0.2)['tcp'])
        self.assertEqual([line.split()[0] for line in said.splitlines()],
                         list(demo_rnic.FIGURES))
        self.assertGreater(demo_rnic.down_and_up(place, ends, 1), 0)
        for one in ends.values():
            self.assertEqual(one.daemon.stop(), 0)
