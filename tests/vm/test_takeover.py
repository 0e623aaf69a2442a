# SPDX-License-Identifier: GPL-2.0-or-later
"""An address that moves from one guest to another, which sets it before the first removes
it, as the new master of VRRP does: both kernels have a GID at once, and it works for the
one that may have it, with either driver.  And with ours, an interface that goes down: its
adapter is without a cable then, and commands meanwhile end as they have to.
"""

import re
import time

from lib import fixture, parts
from lib.kernellog import log_problems
from lib.programs import LISTENS, _ports, check_pings
from lib.pvrdma_vm import Daemon, VmError, built_program, end_well, start_guests

ADDRESS = '10.83.0.100'


@fixture.shard('demos')
class TakeoverTest(fixture.PrivateTest):
    def setUp(self):
        super().setUp()
        self.daemon = Daemon(self.session, {name: {'addresses': 'any', 'max-pd': 64}
                                            for name in ('vm1', 'vm2')})
        files = parts.guest_files()
        files['usr/local/bin/linkcheck'] = built_program('linkcheck')
        self.guests = start_guests(self.session, self.daemon, cpus=2, files=files)
        for number, guest in enumerate(self.guests, 1):
            guest.run('ip addr add 10.83.0.%d/24 dev vmx0' % number)

    def pings(self, server, client):
        """Connections to the address, which @server has."""
        port = next(_ports)
        first = server.spawn('rping -s -v -a %s -p %d -C 5' % (ADDRESS, port))
        parts.wait_in_guest(server, LISTENS % port, 'listener')
        second = client.run('rping -c -v -V -a %s -p %d -C 5' % (ADDRESS, port))
        check_pings(first.wait(check=True), second, 5)

    def waiting(self, name):
        return [w['gid'] for vm in self.daemon.ctl_json('vm', 'list')['vms']
                if vm['name'] == name for w in vm['waiting_gids']]

    def wait_granted(self, name):
        end = time.monotonic() + 20
        while self.waiting(name):
            if time.monotonic() > end:
                raise VmError('%s has not got %s' % (name, ADDRESS))
            time.sleep(0.05)

    def moves(self, device, old, new):
        """From guest @old, which has it, to @new."""
        new.run('ip addr add %s/32 dev vmx0' % ADDRESS)
        new.gid_index(device, ADDRESS)
        self.assertEqual(self.waiting('vm%d' % new.number), [ADDRESS])
        old.run('ip addr del %s/32 dev vmx0' % ADDRESS)
        self.wait_granted('vm%d' % new.number)
        # The wire's side of it is keepalived's.
        old.run('ip neigh flush all')
        self.pings(new, old)

    def check(self, device):
        one, two = self.guests
        one.run('ip addr add %s/32 dev vmx0' % ADDRESS)
        one.gid_index(device, ADDRESS)
        self.pings(one, two)
        for _ in range(2):
            self.moves(device, one, two)
            self.moves(device, two, one)
        one.run('ip addr del %s/32 dev vmx0' % ADDRESS)

    def pingpong(self, device, rounds):
        """Between the guests' own addresses; both ends, to be waited for."""
        port = next(_ports)
        to = self.guests[0].ip('pvrdma')
        jobs = []
        for guest, server in zip(self.guests, ('', to)):
            jobs.append(guest.spawn('ibv_rc_pingpong -n %d -d %s -g %d -p %d %s' % (
                rounds, device, guest.gid_index(device, guest.ip('pvrdma')), port, server),
                                    120))
            if not server:
                guest.wait_listen(port, jobs[0])
        return jobs

    def loses_link(self, device, down, up):
        """Without the interface the adapter has no cable: tries are used up."""
        jobs = self.pingpong(device, 1 << 30)
        before = self.daemon.counters('datapath', 'tx_messages')
        end = time.monotonic() + 20
        while min(now - was for was, now in zip(
                before, self.daemon.counters('datapath', 'tx_messages'))) < 100:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        down()
        end = time.monotonic() + 60
        # One of them was about to send; the other one waits.
        while not any('retry counter exceeded' in job.out + job.err for job in jobs):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        for job in jobs:
            if not job.done:
                job.kill()
            job.wait()
        up()
        parts.wait_port(self.guests[1], 'ACTIVE', device=device)
        for job in self.pingpong(device, 500):
            job.wait(check=True)

    def links(self):
        """What the daemon was told of vm2's interface, in order."""
        with open(self.session.path('pvrdmad.log')) as log:
            return re.findall("vm2.*: the guest's interface is (up|down)", log.read())

    def wait_link(self, state, since):
        """The last that was told, more than the first @since, is @state."""
        end = time.monotonic() + 20
        while self.links()[since:][-1:] != [state]:
            self.assertLess(time.monotonic(), end, self.links()[since:])
            time.sleep(0.05)

    def commands_meanwhile(self, guest):
        """What is said of the link is nobody's answer to a command."""
        said = guest.run('linkcheck -d %s -n 100 vmx0' % parts.OWN_DEVICE, 120).out
        numbers = [int(n) for n in re.findall(r'\d+', said)]
        self.assertGreater(min(numbers[:2]), 0, said)
        self.assertEqual(numbers[2], 0, said)
        parts.wait_port(guest, 'ACTIVE')

    def interface_goes(self, guest):
        """One that is not there any more is no cable that is pulled."""
        address = guest.run('basename $(readlink /sys/class/net/vmx0/device)').out.strip()
        driver = '/sys/bus/pci/drivers/vmxnet3/'
        told = len(self.links())
        guest.run('ip link set vmx0 down')
        self.wait_link('down', told)
        told = len(self.links())
        guest.run('echo %s > %sunbind' % (address, driver))
        self.wait_link('up', told)
        told = len(self.links())
        guest.run('echo %s > %sbind' % (address, driver))
        self.wait_link('down', told)
        guest.run('cd /sys/bus/pci/devices/%s/net && ip link set * name vmx0 && '
                  'ip link set vmx0 up' % address)

    def test_moves(self):
        for guest in self.guests:
            guest.load_pvrdma()
        self.check(parts.STOCK_DEVICE)
        for guest in self.guests:
            parts.use_own(guest)
        self.check(parts.OWN_DEVICE)
        two = self.guests[1]
        self.loses_link(parts.OWN_DEVICE, lambda: two.run('ip link set vmx0 down'),
                        lambda: two.run('ip link set vmx0 up'))
        self.loses_link(parts.OWN_DEVICE, lambda: two.qmp('set_link', name='n0', up=False),
                        lambda: two.qmp('set_link', name='n0', up=True))
        self.interface_goes(two)
        self.commands_meanwhile(two)
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
        end_well(self.guests, self.daemon)
