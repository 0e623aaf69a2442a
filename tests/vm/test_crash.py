# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon dies under running guests, and another is started: the guests recover by a
reset of their adapters, and none is started anew."""

import re
import time

import test_driver
from lib import fixture, parts
from lib.kernellog import log_problems
from lib.programs import Pair, pingpong
from lib.pvrdma_vm import Daemon, start_guests

ADAPTER = '0000:00:05.1'
TRAFFIC = 'ib_write_bw -d %s -p 18570 -F -s 65536 -q 4 -n 10000000'


class CrashTest(fixture.PrivateTest):
    def boot(self):
        self.daemon = Daemon(self.session, ['vm1', 'vm2'])
        self.guests = start_guests(self.session, self.daemon, virtio=False,
                                   files=dict(parts.guest_files(),
                                              **test_driver.guest_files()))

    def traffic(self, pair):
        """Both ends of what does not end by itself, when it has begun."""
        one, two = pair.guests
        before = self.daemon.counters('datapath', 'tx_messages')[0]
        server = two.spawn(TRAFFIC % pair.device, 240)
        two.wait_listen(18570, server)
        client = one.spawn('%s %s' % (TRAFFIC % pair.device, two.ip(pair.kind)), 240)
        end = time.monotonic() + 60
        while self.daemon.counters('datapath', 'tx_messages')[0] < before + 100:
            for job in (server, client):
                self.assertFalse(job.done, job.describe())
            self.assertLess(time.monotonic(), end, 'no traffic')
            time.sleep(0.1)
        return server, client

    def crash(self):
        """The daemon ends, and the guests know it."""
        self.daemon.kill()
        for guest in self.guests:
            end = time.monotonic() + 30
            while self.property(guest, 'connected'):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            self.assertTrue(self.property(guest, 'failed'))

    def come_back(self):
        """Another is there, and the VMMs have found it."""
        self.daemon.start()
        for guest in self.guests:
            end = time.monotonic() + 30
            while not self.property(guest, 'connected'):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)

    @staticmethod
    def property(guest, name):
        return guest.qmp('qom-get', path='/machine/peripheral/rdma0', property=name)

    def end(self, jobs):
        """Programs that wait for a device that is gone can be ended."""
        for job in jobs:
            if not job.done:
                job.kill(9)
            job.wait(30)

    def works(self, device):
        for guest in self.guests:
            self.assertFalse(self.property(guest, 'failed'))
            parts.wait_port(guest, 'ACTIVE', device=device)
        pair = Pair(self.guests, 'pvrdma', device)
        pingpong(True, 4096, 100).run(pair)
        self.daemon.check()
        return pair

    def ends_well(self):
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
            guest.powerdown()
        self.assertEqual(self.daemon.stop(), 0)

    def reload(self, guest):
        guest.run('rmmod vmw_pvrdma')
        guest.load_pvrdma()

    def rebind(self, guest):
        where = '/sys/bus/pci/drivers/vmw_pvrdma/'
        guest.run('echo %s >%sunbind && echo %s >%sbind' % (ADAPTER, where, ADAPTER, where))

    @fixture.shard('driver')
    def test_stock(self):
        """Whoever administers the guest loads the driver anew, or binds it."""
        self.boot()
        for guest in self.guests:
            guest.load_pvrdma()
        pair = self.works(parts.STOCK_DEVICE)
        # The driver goes while there is no daemon, and comes back when there is.
        jobs = self.traffic(pair)
        self.crash()
        self.end(jobs)
        for guest in self.guests:
            guest.run('rmmod vmw_pvrdma')
        self.come_back()
        for guest in self.guests:
            guest.load_pvrdma()
        pair = self.works(parts.STOCK_DEVICE)
        # The daemon comes back first: what the drivers end is not that one's.
        for again in (self.reload, self.rebind):
            jobs = self.traffic(pair)
            self.crash()
            self.come_back()
            for guest in self.guests:
                self.assertTrue(self.property(guest, 'failed'))
                self.assertIn('DOWN', guest.run(
                    'cat /sys/class/infiniband/%s/ports/1/state' % pair.device).out)
            self.end(jobs)
            for guest in self.guests:
                again(guest)
            pair = self.works(parts.STOCK_DEVICE)
        self.ends_well()

    def recovered(self, guests=None):
        """Without anybody's doing in the guests; the logs until then."""
        logs = ''
        for guest in guests or self.guests:
            parts.wait_in_guest(guest, 'dmesg | grep -q "pvrdma .*: recovered"',
                                'recovery', 90)
            self.assertEqual(log_problems(guest), [])
            logs += guest.run('dmesg -c').out
        return logs

    def test_own(self):
        """Our driver does so by itself."""
        self.boot()
        for guest in self.guests:
            parts.use_own(guest)
        one, two = self.guests
        pair = self.works(parts.OWN_DEVICE)
        # While there is no daemon the driver waits; programs end.
        jobs = self.traffic(pair)
        self.crash()
        for guest in self.guests:
            parts.wait_port(guest, 'DOWN')
        self.end(jobs)
        self.come_back()
        self.recovered()
        pair = self.works(parts.OWN_DEVICE)
        # Programs and kernel users have it open until it goes.
        one.run('insmod %s hold=1' % parts.KLOOP)
        jobs = self.traffic(pair)
        self.crash()
        self.come_back()
        self.assertIn(' flushed, 0, 0 stray events\n', self.recovered())
        self.end(jobs)
        self.works(parts.OWN_DEVICE)
        # The module goes while it waits for a daemon, with a device and without,
        # and begins then; and so does the machine.
        self.crash()
        for _ in range(2):
            two.run('rmmod pvrdma', 60)
            two.run('insmod ' + parts.MODULE)
            self.assertEqual(two.run('ls /sys/class/infiniband').out, '')
        self.come_back()
        self.recovered()
        self.works(parts.OWN_DEVICE)
        self.crash()
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
            guest.powerdown()

    GONE = 'cqcheck %s -d %s -g %d'

    def poll(self, pair):
        """Programs in the first guest that will poll when the adapter is gone."""
        one = self.guests[0]
        jobs = [one.spawn(self.GONE % (mode, pair.device, pair.gids[0]), 240)
                for mode in ('gone', 'gone-ex')]
        for job in jobs:
            job.wait_output('ready')
        return jobs

    def told(self, jobs):
        """They came to know it, without an event or a call that fails."""
        for job in jobs:
            job.wait(check=True)
            self.assertRegex(job.out, r'[1-9][0-9]* checks, 0 errors')

    def test_pollers(self):
        """Who polls learns that the adapter is gone: the daemon has ended for good, and
        the module; what others' programs that know nothing of it do then is to end."""
        self.boot()
        for guest in self.guests:
            parts.use_own(guest)
        pair = self.works(parts.OWN_DEVICE)
        jobs = self.poll(pair)
        self.guests[0].run('rmmod pvrdma', 60)
        self.told(jobs)
        parts.load_own_driver(self.guests[0])
        pair = self.works(parts.OWN_DEVICE)
        jobs, traffic = self.poll(pair), self.traffic(pair)
        self.crash()
        self.told(jobs)
        for job in traffic:
            job.wait()
            self.assertFalse(job.ok, job.describe())
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
            guest.powerdown()

    @fixture.shard('driver')
    def test_own_often(self):
        """The last of many deaths in turn is not waited for longer than the first: only
        attempts that fail make the driver wait."""
        self.boot()
        for guest in self.guests:
            parts.use_own(guest)
        for _ in range(5):
            self.crash()
            self.come_back()
            log = self.recovered()
        for failed, recovered in re.findall(
                r'\[ *([0-9.]+)\] pvrdma .*device failed(?:.|\n)*?'
                r'\[ *([0-9.]+)\] pvrdma .*: recovered', log):
            self.assertLess(float(recovered) - float(failed), 30)
        self.works(parts.OWN_DEVICE)
        self.ends_well()
