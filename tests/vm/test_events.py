# SPDX-License-Identifier: GPL-2.0-or-later
"""Asynchronous events of the port and the device, with our driver, and what the port
follows.  Those of objects are tests/vm/eventcheck.c's, see test_provider.py.
"""

import time

from lib import fixture
from lib.parts import load_own_driver, wait_port
from lib.pvrdma_vm import Daemon, VmError, start_guests
from test_driver import DEVICE, DriverCase


@fixture.shard('demos')
class EventTest(DriverCase):
    def watch(self, guest):
        job = guest.spawn('verbscheck events -d ' + DEVICE, 120)
        job.wait_output('ready')
        return job

    def comes(self, job, *events):
        """These come, in this order, and after them nothing else by now."""
        lines = list(events)
        end = time.monotonic() + 30
        while len(job.out.splitlines()) <= len(self.seen) + len(lines) - 1 and \
                time.monotonic() < end:
            time.sleep(0.05)
        self.seen += lines
        self.assertEqual(job.out.splitlines(), self.seen)

    def test_port_and_device(self):
        self.daemon = Daemon(self.session, ['vm1', 'vm2'])
        # QEMU does not bear set_link on a cable without another end.
        self.guests = start_guests(self.session, self.daemon, files=self.files)
        guest = self.guests[0]
        load_own_driver(guest)
        guest.gid_index(DEVICE, guest.ip('pvrdma'))
        # The other interface is none of the adapter's: neither its address nor
        # its state.
        with self.assertRaisesRegex(VmError, 'has no GID'):
            guest.gid_index(DEVICE, guest.ip('virtio'), timeout=0)
        job = self.watch(guest)
        self.seen = ['ready']
        other = guest.run("ip -o addr | grep '%s/' | cut -d' ' -f2"
                          % guest.ip('virtio')).out.strip()
        guest.run('ip link set %s down; ip link set %s up' % (other, other))

        guest.run('ip addr add 10.6.0.1/24 dev vmx0')
        guest.gid_index(DEVICE, '10.6.0.1')
        self.comes(job, 'GID table change')

        # The wire, then the interface, then the daemon.
        guest.qmp('set_link', name='n0', up=False)
        wait_port(guest, 'DOWN')
        self.comes(job, 'port error')
        guest.qmp('set_link', name='n0', up=True)
        wait_port(guest, 'ACTIVE')
        self.comes(job, 'port active')

        self.daemon.kill()
        wait_port(guest, 'DOWN')
        end = time.monotonic() + 30
        lines = []
        while len(lines) < 2 and time.monotonic() < end:
            time.sleep(0.05)
            lines = job.out.splitlines()[len(self.seen):]
        # Whether the program hears first of the port or of the device is no matter.
        self.assertEqual(sorted(lines), ['local catastrophic error', 'port error'])
        job.kill(9)
        job.wait()
        self.finish()
