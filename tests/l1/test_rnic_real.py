# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon on a host with an RDMA NIC: libibverbs, librdmacm, the kernel and its NIC are
real, but for the wire (level1.py).

The core has soft-RoCE on the guest image's kernel; shard `rnic-l1` a newer kernel, whose
soft-RoCE is another, and soft-iWARP.
"""

import itertools
import re
import time

import demo_rnic
import host_case
import level1
from lib import fixture, parts
from lib.agent import AgentError
from lib.programs import LISTENS, Pair, check_pings, pingpong

PINGS = 20
# Seconds until what has happened to a NIC is seen; the daemon looks once a second.
PATIENCE = 60
MODEL = 'tests/softnic/verbs-model'
GUESTS = 'tests/vguest/nic-guests'
CASES = {'/nic-guests/%s/%s' % (what, style) for style in ('stock', 'extended')
         for what in ('sizes', 'mixed', 'srq', 'failures')}
# How often a cable is pulled, and put back: twice as many changes of the path.
PULLS = 10
_ports = itertools.count(7300)


class RxeTest(host_case.HostTest):
    """Soft-RoCE of Linux 6.1.  A test leaves the NIC as it found it: there, and up."""

    programs = [MODEL, GUESTS, *demo_rnic.PROGRAMS]
    # Cases of verbs-model that are not for this NIC, and what it lacks.
    skips = {}

    def tearDown(self):
        self.host.agent.kill_jobs()  # of a test that has failed
        self.host.cable('up')
        self.host.link('up')
        there = self.host.run('[ -e /sys/class/infiniband/%s ]' % self.device,
                              check=False).ok
        if there and not self._outcome.success:  # it may be of no use any more (link())
            self.host.delete(self.kind)
            there = False
        if not there:
            self.host.add(self.kind)
        self.assertEqual(self.host.problems(), [])

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

    def daemon(self, groups=None, settings=None, name='pvrdmad'):
        """With this NIC."""
        daemon = level1.HostDaemon(self.host, {'nic rail0': {
            'device': self.device, 'address': self.host.ip('virtio')}, **(groups or {})},
            settings, name)
        self.addCleanup(daemon.keep_log)
        return daemon

    def two_daemons(self):
        """Each other's peers, with a VM each."""
        parts.put_in_guest(self.host, '/etc/secret', b'of this test, and this test alone')
        self.host.run('chmod 600 /etc/secret')
        port = next(_ports)
        names = ['host0', 'host1']
        groups = dict(demo_rnic.groups_of(demo_rnic.VMS))
        return [self.daemon(
            {vm: groups[vm], 'peer ' + names[1 - i]: {
                'address': '127.0.0.%d:%d' % (2 - i, port), 'secret-file': '/etc/secret'}},
            {'host-name': name, 'listen': '127.0.0.%d:%d' % (1 + i, port)}, name)
            for i, (name, vm) in enumerate(zip(names, groups))]

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
        self.delete()
        self.assertIn('there is no RDMA device', self.wait_state(daemon, 'absent')['reason'])
        self.host.add(self.kind)
        self.assertEqual(self.wait_state(daemon, 'up')['failures'], 0)
        daemon.stop()

    def run_guests(self, *daemons):
        """All that virtual guests do, over the NIC."""
        out = self.host.run('PVRDMACTL=pvrdmactl nic-guests %s %s' % (
            daemons[0].sockets, daemons[-1].sockets), 300).out
        self.assertEqual(set(re.findall(r'(?m)^ok \d+ (\S+)$', out)), CASES, out)

    def wait_path(self, traffic, path):
        end = time.monotonic() + PATIENCE
        while traffic.look()[0] != {path}:
            self.assertFalse(traffic.job.done, traffic.job.describe())
            self.assertLess(time.monotonic(), end, 'not by %s: %s' % (path, traffic.look()))

    def test_one_daemon(self):
        """Both VMs are its own."""
        daemon = self.daemon(demo_rnic.groups_of(demo_rnic.VMS), {'path': 'rnic'})
        self.run_guests(daemon)
        daemon.stop()

    def test_two_daemons(self):
        """Then the path changes under traffic: its NIC loses its link, and is gone."""
        daemons = self.two_daemons()
        self.run_guests(*daemons)
        traffic = demo_rnic.Traffic(lambda command: self.host.spawn(
            command, level1.LIFETIME, stdin=True), daemons[0],
            *[daemon.sockets for daemon in daemons])
        self.wait_path(traffic, 'rnic')
        for _ in range(PULLS):
            self.loses_link('down')
            self.wait_path(traffic, 'tcp')
            self.loses_link('up')
            self.wait_path(traffic, 'rnic')
        self.host.link('down')
        self.wait_path(traffic, 'tcp')
        self.host.link('up')
        self.delete()
        for daemon in daemons:
            self.wait_state(daemon, 'absent')
        self.host.add(self.kind)
        self.wait_path(traffic, 'rnic')
        self.assertGreater(traffic.end(), 0)
        for daemon in daemons:
            self.assertEqual(self.wait_state(daemon, 'up')['failures'], 0)
            daemon.stop()

    def loses_link(self, state):
        """In the way that its driver notes."""
        self.host.cable(state)

    def delete(self):
        try:
            self.host.delete(self.kind)
        except AgentError as exc:
            self.fail('the device is not closed: %s' % exc)

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

    def loses_link(self, state):
        self.host.link(state)
