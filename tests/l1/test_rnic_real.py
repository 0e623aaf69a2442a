# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon on a host with an RDMA NIC: libibverbs, librdmacm, the kernel and its NIC are
real, but for the wire (level1.py).

The core has soft-RoCE on the guest image's kernel; shard `rnic-l1` a newer kernel, whose
soft-RoCE is another, and soft-iWARP.
"""

import itertools
import re
import time

import level1
from lib import fixture, parts
from lib.agent import AgentError
from lib.programs import LISTENS, Pair, check_pings, pingpong

PINGS = 20
# Seconds until what has happened to a NIC is seen; the daemon looks once a second.
PATIENCE = 60
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

    def daemon(self):
        """With this NIC."""
        daemon = level1.HostDaemon(self.host, {'nic rail0': {
            'device': self.device, 'address': self.host.ip('virtio')}})
        self.addCleanup(daemon.keep_log)
        return daemon

    def wait_state(self, daemon, state):
        """The NIC, in this state, as `pvrdmactl nic list` reports it."""
        end = time.monotonic() + PATIENCE
        while True:
            nic, = daemon.ctl_json('nic', 'list')['nics']
            if nic['state'] == state:
                return nic
            self.assertLess(time.monotonic(), end, 'not %s: %s' % (state, nic))
            time.sleep(0.1)

    def test_state(self):
        """The NIC's state is that of its link, and of the device, which can be taken away
        though the daemon has it open."""
        daemon = self.daemon()
        nic = self.wait_state(daemon, 'up')
        self.assertEqual((nic['kind'], nic['port'], nic['atomics']),
                         ('RoCE', 1, True) if self.kind == 'rxe' else ('iWARP', 1, False))
        self.host.link('down')
        self.assertIn('is down', self.wait_state(daemon, 'down')['reason'])
        self.host.link('up')
        self.wait_state(daemon, 'up')
        try:
            self.host.delete(self.kind)
        except AgentError as exc:
            self.fail('the device is not closed: %s' % exc)
        self.assertIn('there is no RDMA device', self.wait_state(daemon, 'absent')['reason'])
        self.host.add(self.kind)
        self.assertEqual(self.wait_state(daemon, 'up')['failures'], 0)
        daemon.stop()

    def test_no_device_files(self):
        """What the kernel's modules or udev make is not there when the daemon starts, and
        then is."""
        self.host.run('mv /dev/infiniband /dev/away')
        self.addCleanup(self.host.run, '[ ! -d /dev/away ] || mv /dev/away /dev/infiniband')
        daemon = self.daemon()
        self.assertIn('no /dev/infiniband', self.wait_state(daemon, 'absent')['reason'])
        self.host.run('mv /dev/away /dev/infiniband')
        self.wait_state(daemon, 'up')
        daemon.stop()


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
