# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on a distribution's own QEMU, whose vfio-user-pci speaks to pvrdmad.

tests/vm/stock-qemu.sh fetches that QEMU.  The steps share a pair of guests, since
booting is what costs time, and run in the order of their names; each leaves behind
what the next one needs.  What this QEMU cannot do, docs/limits.md says.
"""

import json
import os
import re
import subprocess
import time
import unittest

from lib import fixture, parts
from lib.programs import Pair, bandwidth, latency, pingpong
from lib.pvrdma_vm import BUILD, REPO, Daemon, Guest, Link, VmError, \
    say, start_guests

QEMU = os.path.join(BUILD, 'stock-qemu', 'qemu-system-x86_64')
MIB = 1 << 20
# For a VM that must go on: QEMU ends within ms of what ends it.
ABSENT_SECONDS = 1


def get_qemu():
    """Fetch it, if that was not done before; skip if it cannot be had."""
    done = subprocess.run([os.path.join(REPO, 'tests', 'vm', 'stock-qemu.sh'),
                           BUILD], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True,
                          check=False)
    last = (done.stdout.strip() or 'it said nothing').splitlines()[-1]
    if done.returncode == 3:
        raise unittest.SkipTest('no stock QEMU: ' + last)
    if done.returncode:
        # Not the whole: it may name the machine's mirrors.
        raise VmError('stock-qemu.sh failed: ' + last)
    say(last)


class StockGuest(Guest):
    """A guest on that QEMU, which may boot again."""

    def rdma_device(self):
        return json.dumps({
            'driver': 'vfio-user-pci', 'id': 'rdma0',
            'socket': {'type': 'unix', 'path': self.socket},
            'bus': 'pcie.0', 'addr': '0x5.1'})

    def program(self):
        return [QEMU]

    def command_line(self):
        return [arg for arg in super().command_line() if arg != '-no-reboot']

    def boot_again(self, how):
        """@how makes it reset; wait_boot() must follow."""
        self.agent.expect_boot()
        how()


class StockQemuTest(fixture.SessionTest):
    time_limit = 1800  # it may have to fetch and unpack what it runs

    @classmethod
    def require(cls):
        get_qemu()

    @classmethod
    def boot(cls):
        cls.daemon = Daemon(cls.session, ['vm1', 'vm2'])
        cls.guests = start_guests(cls.session, cls.daemon, virtio=False,
                                  kind=StockGuest,
                                  files=parts.guest_files())
        for guest in cls.guests:
            guest.load_pvrdma()

    def pair(self, device=parts.STOCK_DEVICE):
        return Pair(self.guests, 'pvrdma', device)

    def programs(self, pair):
        """What programs do: poll, sleep, measure, compare every byte."""
        lat = [latency(name, 8, 200)
               for name in ('ib_send_lat', 'ib_write_lat', 'ib_read_lat')]
        bw = [bandwidth(name, 16384, 200)
              for name in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw')]
        # As many as it takes for events without a cause to fill the CQ.
        events = [latency('ib_send_lat', 8, 1000),
                  bandwidth('ib_send_bw', 4096, 200)]
        for program in events:
            program.template += ' -e'
        pongs = [pingpong(False, 4097, 100), pingpong(True, 4097, 100)]
        for program in pongs:
            program.template += ' -c'
        for program in pongs + lat + bw + events:
            with self.subTest(program.template.split(' -d')[0]):
                self.assertGreater(program.run(pair), 0)
        for job in pair.run('datacheck -d {dev} -g {gid} -p {port} -n 1', 300):
            found = re.search(r'^(\d+) checks, (\d+) errors$', job.out,
                              re.MULTILINE)
            self.assertTrue(found, job.describe())
            self.assertGreater(int(found.group(1)), 100)
            self.assertEqual(int(found.group(2)), 0, job.describe())

    def traffic(self, port):
        """Writes without end from the first guest to the second; returns the
        first one's job."""
        one, two = self.guests
        pair = self.pair()
        command = 'ib_write_bw -d %s -p %d -F -s 4096 -n 1000000' % (pair.device, port)
        server = two.spawn(command, 120)
        two.wait_listen(port, server)
        client = one.spawn('%s %s' % (command, two.ip('pvrdma')), 120)
        # It rings for each message, but for nothing before the first.
        before = self.daemon.doorbells()[0]
        end = time.monotonic() + 60
        while self.daemon.doorbells()[0] < before + 1000:
            self.assertFalse(server.done, server.describe())
            self.assertFalse(client.done, client.describe())
            self.assertLess(time.monotonic(), end, 'no traffic')
            time.sleep(0.2)
        return client

    def fails(self, client):
        """Its peer is gone, and it has been told."""
        client.wait(60)
        self.assertEqual(client.how, 'exited', client.describe())
        self.assertIn('Failed status', client.out + client.err)

    def status(self, name):
        by_name = {vm['name']: vm
                   for vm in self.daemon.ctl_json('status')['vms']}
        return by_name[name]

    def test_10_stock_guest_parts(self):
        self.programs(self.pair())
        # Doorbells come as messages here, and are counted all the same.
        for writes in self.daemon.doorbells():
            self.assertGreater(writes, 1000)
        for guest in self.guests:
            ram = self.status(guest.name)['memory']['ram_bytes']
            self.assertAlmostEqual(ram, guest.memory * MIB, delta=MIB)

    def test_15_second_vmm(self):
        """It is told, and ends in order; the first does not notice."""
        other = StockGuest(self.session, 3,
                           {'pvrdma': Link(self.session, 'second')},
                           self.guests[0].socket)
        argv = other.command_line()
        for _ in range(4):
            done = subprocess.run(argv, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=60,
                                  stdin=subprocess.DEVNULL, check=False,
                                  universal_newlines=True,
                                  cwd=self.session.dir)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn('vfio-user:' + other.socket, done.stdout)
        self.assertIn('PORT_ACTIVE', self.guests[0].run('ibv_devinfo').out)

    def test_20_own_guest_parts(self):
        for guest in self.guests:
            parts.use_own(guest)
        self.programs(self.pair(parts.OWN_DEVICE))

    def test_30_function_reset(self):
        """Asked for through configuration space; the driver sets it up anew."""
        one = self.guests[0]
        device = '/sys/class/infiniband/%s/device' % parts.OWN_DEVICE
        self.assertIn('af_flr', one.run('cat %s/reset_method' % device).out)
        one.run('echo af_flr > %s/reset_method && echo 1 > %s/reset'
                % (device, device))
        parts.wait_port(one, 'ACTIVE')
        self.assertGreater(pingpong(True, 4096, 100).run(
            self.pair(parts.OWN_DEVICE)), 0)
        for guest in self.guests:
            parts.use_stock(guest)

    def test_40_reset_and_reboot(self):
        one, two = self.guests
        client = self.traffic(18581)
        two.boot_again(lambda: two.qmp('system_reset'))
        self.fails(client)
        one.boot_again(lambda: one.spawn('reboot -f'))
        for guest in self.guests:
            guest.wait_boot().load_pvrdma()
        self.assertGreater(pingpong(True, 4096, 100).run(self.pair()), 0)

    def test_50_qemu_ends_under_traffic(self):
        one, two = self.guests
        client = self.traffic(18582)
        two.qmp('quit')
        self.assertEqual(two.proc.wait(20), 0)
        two.agent_close()
        self.fails(client)
        self.daemon.check()
        self.assertFalse(self.status('vm2')['attached'])
        self.assertEqual(self.status('vm1')['objects']['qps'], 1)
        two.start().wait_boot().load_pvrdma()
        self.assertGreater(pingpong(True, 4096, 100).run(self.pair()), 0)

    def test_60_daemon_ends_under_traffic(self):
        """Messages that are on their way then must not be this QEMU's end."""
        self.traffic(18583)
        self.assertEqual(self.daemon.stop(), 0)
        time.sleep(ABSENT_SECONDS)
        for guest in self.guests:
            self.assertTrue(guest.alive, guest.name)
            self.assertEqual(guest.qmp('query-status')['status'], 'running')
            self.assertTrue(guest.agent.ping(), guest.name)

    def test_70_beside_our_qemu(self):
        """And killed at last: the guests live on."""
        one, two = self.guests
        for guest in self.guests:
            guest.kill()
        self.daemon.start()
        own = Guest(self.session, 1, one.links, one.socket)
        self.guests[0] = own
        own.start()
        two.start()
        for guest in self.guests:
            guest.wait_boot().load_pvrdma()
        for program in (pingpong(True, 4096, 100),
                        latency('ib_write_lat', 8, 200),
                        bandwidth('ib_send_bw', 16384, 200)):
            self.assertGreater(program.run(self.pair()), 0)
        self.daemon.kill()
        time.sleep(ABSENT_SECONDS)
        for guest in self.guests:
            self.assertEqual(guest.qmp('query-status')['status'], 'running')
            self.assertTrue(guest.agent.ping(), guest.name)
        for guest in self.guests:
            guest.powerdown()
