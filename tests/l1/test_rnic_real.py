# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon on a host with an RDMA NIC: libibverbs, librdmacm, the kernel and its NIC are
real, but for the wire (level1.py).

The core has soft-RoCE on the guest image's kernel; shard `rnic-l1` a newer kernel, whose
soft-RoCE is another, and soft-iWARP.
"""

import itertools
import re

import level1
from lib import fixture, parts
from lib.programs import LISTENS, Pair, check_pings, pingpong

PINGS = 20
MODEL = 'tests/softnic/verbs-model'
_ports = itertools.count(7300)


class RxeTest(fixture.SessionTest):
    """Soft-RoCE of Linux 6.1.  A test leaves the NIC as it found it: there, and up."""

    series, kind = '6.1', 'rxe'
    # Cases of verbs-model that are not for this NIC, and what it lacks.
    skips = {}

    @classmethod
    def require(cls):
        level1.images(cls.series)

    @classmethod
    def boot(cls):
        cls.host = level1.Host(cls.session, cls.series, [MODEL]).start().wait_boot()
        cls.device = cls.host.load(cls.kind)

    def tearDown(self):
        self.assertEqual(self.host.problems(), [])

    @classmethod
    def tearDownClass(cls):
        try:
            cls.host.powerdown()
        finally:
            super().tearDownClass()

    def test_native(self):
        """Programs of the distribution's: what the tests here are about does work without
        any of our code."""
        self.assertIn(' %s.' % self.series, ' ' + self.host.run('uname -r').out)
        port = next(_ports)
        ends = '-v -C %d -a %s -p %d' % (PINGS, self.host.ip('virtio'), port)
        server = self.host.spawn('rping -s ' + ends)
        parts.wait_in_guest(self.host, LISTENS % port, 'listener')
        client = self.host.run('rping -c ' + ends)
        check_pings(server.wait(check=True), client, PINGS)
        if self.kind == 'rxe':  # iWARP connects by the connection manager alone
            pingpong(events=True, iters=50).run(
                Pair([self.host, self.host], 'virtio', self.device))

    def test_verbs_model(self):
        """What the daemon relies on, and what softnic does in its tests, this NIC does."""
        out = self.host.run('verbs-model %s %s' % (self.device, self.host.ip('virtio')),
                            300).out
        cases = re.findall(r'(?m)^ok \d+ (\S+)(?: # SKIP (.*))?$', out)
        self.assertEqual(re.findall(r'(?m)^1\.\.(\d+)$', out), [str(len(cases))], out)
        self.assertEqual({name: lacks for name, lacks in cases if lacks}, self.skips)


@fixture.shard('rnic-l1')
class NewRxeTest(RxeTest):
    """Soft-RoCE of Linux 6.12, which works in threads of its own."""

    series = '6.12'


@fixture.shard('rnic-l1')
class SiwTest(RxeTest):
    """Soft-iWARP: neither immediate data nor atomics, and successes that come early."""

    kind = 'siw'
    skips = {'imm': 'imm', 'cut': 'imm', 'unsignalled-fails': 'iwarp', 'rnr': 'iwarp',
             'peer-in-error': 'iwarp', 'rights-off': 'rights'}
