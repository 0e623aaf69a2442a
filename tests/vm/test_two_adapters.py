# SPDX-License-Identifier: GPL-2.0-or-later
"""Two adapters in one guest, each beside a network interface of its own.

To the daemon they are two VMs (vm1 and vm3) of one network, whose sockets one QEMU
uses; vm2 is another guest.  Both interfaces of the first guest and its cable to the
second one are on a hub of QEMU's.
"""

from lib import fixture, parts
from lib.kernellog import log_problems
from lib.programs import LISTENS, NO_ERRORS, _ports, check_pings
from lib.pvrdma_vm import Daemon, Guest, Link, end_well

# Of the second interface, and of vm2 on the same wire.
ADDRESS, PEER = '10.79.0.1', '10.79.0.2'
DATACHECK = 'datacheck -d %s -g %d -p %d %s'
PINGPONG = 'ibv_rc_pingpong -c -s 4096 -n 500 -d %s -g %d -p %d %s'


class TwoAdapters(Guest):
    """@second: the socket of the second adapter."""

    def __init__(self, *args, second='', **options):
        super().__init__(*args, **options)
        self.second = second

    def config(self):
        return super().config().replace(
            ',1500"', ',1500 52:54:00:79:00:01,vmx1,%s/24,1500"' % ADDRESS)

    def _devices(self):
        args = super()._devices()
        at = args.index('-device') + 1
        args[at] = args[at].replace('netdev=n0', 'netdev=h1')
        return ['-netdev', 'hubport,id=h0,hubid=0,netdev=n0',
                '-netdev', 'hubport,id=h1,hubid=0',
                '-netdev', 'hubport,id=h2,hubid=0'] + args + [
                    '-device', 'vmxnet3,netdev=h2,mac=52:54:00:79:00:01,bus=pcie.0,'
                    'addr=0x8.0,multifunction=on,romfile=',
                    '-device', 'pvrdma,id=rdma1,socket=%s,bus=pcie.0,addr=0x8.1'
                    % self.second]


@fixture.shard('demos')
class TwoAdaptersTest(fixture.PrivateTest):
    def setUp(self):
        super().setUp()
        self.daemon = Daemon(self.session, ['vm1', 'vm2', 'vm3'])
        links = {'pvrdma': Link(self.session, 'vmx')}
        files = parts.guest_files()
        self.one = TwoAdapters(self.session, 1, links, self.daemon.socket('vm1'),
                               files=files, second=self.daemon.socket('vm3')).start()
        self.two = Guest(self.session, 2, links, self.daemon.socket('vm2'),
                         files=files).start()
        for guest in (self.one, self.two):
            guest.wait_boot()
        self.two.run('ip addr add %s/24 dev vmx0' % PEER)
        # Or Linux does not answer when one of its interfaces asks for another's address.
        self.one.run('echo 1 > /proc/sys/net/ipv4/conf/all/accept_local')

    def gid(self, guest, device, address):
        return guest.gid_index(device, address)

    def start(self, ends, template):
        """A program between two (guest, device, address), the first one serves."""
        port = next(_ports)
        jobs = []
        for (guest, device, address), server in zip(ends, ('', ends[0][2])):
            jobs.append(guest.spawn(template % (
                device, self.gid(guest, device, address), port, server), 240))
            if not server:
                guest.wait_listen(port, jobs[0])
        return jobs

    def messages(self):
        return self.daemon.counters('datapath', 'tx_messages')

    def check(self, name):
        """With devices @name0 and @name1 in the first guest."""
        first = (self.one, name + '0', self.one.ip('pvrdma'))
        second = (self.one, name + '1', ADDRESS)
        other = [(self.two, name + '0', address)
                 for address in (self.two.ip('pvrdma'), PEER)]
        self.assertEqual(self.one.run('ls /sys/class/infiniband').out.split(),
                         [first[1], second[1]])
        # Each has the addresses of the interface in its own slot, and no others.
        for (_, device, address), nic, foreign in ((first, 'vmx0', ADDRESS),
                                                   (second, 'vmx1', first[2])):
            at = self.gid(self.one, device, address)
            self.assertEqual(self.one.run(
                'cat /sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/%d'
                % (device, at)).out.strip(), nic)
            hexa = '%02x%02x:%02x%02x' % tuple(int(n) for n in foreign.split('.'))
            self.one.run('! grep -q ffff:%s /sys/class/infiniband/%s/ports/1/gids/*'
                         % (hexa, device))
        before = self.messages()
        # One with the other, then both at once with the other guest.
        for job in self.start((first, second), PINGPONG):
            job.wait(check=True)
        jobs = self.start((first, other[0]), DATACHECK)
        jobs += self.start((other[1], second), DATACHECK)
        for job in jobs:
            self.assertRegex(job.wait(check=True).out, NO_ERRORS)
        for was, now in zip(before, self.messages()):
            self.assertGreater(now - was, 1000)
        # The connection manager takes the adapter that has the address.
        port = next(_ports)
        before = self.messages()
        server = self.one.spawn('rping -s -v -a %s -p %d -C 20' % (ADDRESS, port), 60)
        parts.wait_in_guest(self.one, LISTENS % port, 'listener')
        client = self.two.run('rping -c -v -V -a %s -p %d -C 20' % (ADDRESS, port), 60)
        check_pings(server.wait(check=True), client, 20)
        moved = [b - a for a, b in zip(before, self.messages())]
        self.assertGreater(min(moved[1:]), 20)
        self.assertEqual(moved[0], 0)

    def test_both_at_once(self):
        for guest in (self.one, self.two):
            guest.load_pvrdma()
        self.check('vmw_pvrdma')
        for guest in (self.one, self.two):
            parts.use_own(guest)
        self.check('pvrdma')
        # One that is gone takes nothing of the other's with it.
        self.one.run('echo 0000:00:08.1 > /sys/bus/pci/drivers/pvrdma/unbind')
        for job in self.start(((self.one, 'pvrdma0', self.one.ip('pvrdma')),
                               (self.two, 'pvrdma0', self.two.ip('pvrdma'))), PINGPONG):
            job.wait(check=True)
        for guest in (self.one, self.two):
            self.assertEqual(log_problems(guest), [])
        end_well((self.one, self.two), self.daemon)
