# SPDX-License-Identifier: GPL-2.0-or-later
"""Network devices above the adapter's interface, with either driver: whose addresses
become GIDs, which work, and that the table follows when these devices change.

A macvlan, a bridge and a bond do, a VLAN does not with our driver.  A bond of two
interfaces has its addresses in the table only while the adapter's carries its traffic.
"""

from lib import fixture, parts
from lib.kernellog import log_problems
from lib.programs import LISTENS, _ports, check_pings
from lib.pvrdma_vm import Daemon, VmError, end_well, start_guests

TOP = 'top0'
# The first's address ends with its number.
NET = '10.81.0.'
VLAN = '10.5.0.1'
BOND = '/sys/class/net/%s/bonding/' % TOP
# name: made of vmx0.  (A bond's parts are down when they come.)
KINDS = {
    'macvlan': 'ip link add %s link vmx0 type macvlan' % TOP,
    'bridge': 'ip link add %s type bridge && ip link set vmx0 master %s' % (TOP, TOP),
    'bond': 'ip link set vmx0 down && ip link add {0} type bond && '
            'echo active-backup > {1}mode && echo 100 > {1}miimon && '
            'echo +vmx0 > {1}slaves'.format(TOP, BOND),
}


@fixture.shard('demos')
class NetdevsTest(fixture.PrivateTest):
    def setUp(self):
        super().setUp()
        self.daemon = Daemon(self.session, ['vm1', 'vm2'])
        self.guests = start_guests(self.session, self.daemon, files=parts.guest_files())
        for guest in self.guests:
            guest.run('modprobe macvlan && modprobe bridge && modprobe 8021q && '
                      'modprobe bonding max_bonds=0')

    @staticmethod
    def address(guest):
        return NET + str(guest.number)

    def has_gid(self, guest, address, of):
        """The table has @address as one of the network device @of."""
        index = guest.gid_index(self.device, address)
        self.assertEqual(guest.run('cat /sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/%d'
                                   % (self.device, index)).out.strip(), of)

    def no_gid(self, guest, address):
        hexa = '%02x%02x:%02x%02x' % tuple(int(n) for n in address.split('.'))
        parts.wait_in_guest(
            guest, '! grep -q ffff:%s /sys/class/infiniband/%s/ports/1/gids/*'
            % (hexa, self.device), 'a table without ' + address)

    def works(self):
        """Messages by the GIDs, and a connection made through the device itself."""
        one, two = self.guests
        to = self.address(one)
        port = next(_ports)
        template = 'ibv_rc_pingpong -c -s 4096 -n 200 -d %s -g %d -p %d %s'
        first = one.spawn(template % (self.device, one.gid_index(self.device, to), port, ''))
        one.wait_listen(port, first)
        two.run(template % (self.device, two.gid_index(self.device, self.address(two)),
                            port, to))
        first.wait(check=True)
        port = next(_ports)
        first = one.spawn('rping -s -v -a %s -p %d -C 5' % (to, port))
        parts.wait_in_guest(one, LISTENS % port, 'listener')
        second = two.run('rping -c -v -V -a %s -p %d -C 5' % (to, port))
        check_pings(first.wait(check=True), second, 5)

    def make(self, guest, kind):
        guest.run('{0} && ip addr add {1}/24 dev {2} && ip link set vmx0 up && '
                  'ip link set {2} up'.format(KINDS[kind], self.address(guest), TOP))

    def gone(self, guest):
        """Without it all is as it was before."""
        guest.run('ip link del %s; ip link set vmx0 up' % TOP)
        self.no_gid(guest, self.address(guest))
        self.has_gid(guest, guest.ip('pvrdma'), 'vmx0')
        parts.wait_port(guest, 'ACTIVE', device=self.device)

    def vlan(self, guest, below, works):
        """Our driver refuses what would leave untagged; the in-tree one does not."""
        guest.run('ip link add link %s name vlan5 type vlan id 5 && ip addr add %s/24 dev '
                  'vlan5 && ip link set vlan5 up' % (below, VLAN))
        # GIDs are added in order, so this one comes last.
        guest.run('ip addr add 10.6.0.1/24 dev vmx0')
        self.has_gid(guest, '10.6.0.1', 'vmx0')
        if works:
            self.has_gid(guest, VLAN, 'vlan5')
        else:
            with self.assertRaisesRegex(VmError, 'has no GID'):
                guest.gid_index(self.device, VLAN, timeout=0)
        guest.run('ip link del vlan5; ip addr del 10.6.0.1/24 dev vmx0')
        self.no_gid(guest, VLAN)

    def failover(self, guest):
        """The bond's address is in the table while its traffic goes by vmx0."""
        guest.run('ip link set vio0 down && echo +vio0 > %sslaves' % BOND)
        for _ in range(2):
            guest.run('echo vio0 > %sactive_slave' % BOND)
            self.no_gid(guest, self.address(guest))
            guest.run('echo vmx0 > %sactive_slave' % BOND)
            self.has_gid(guest, self.address(guest), TOP)
        guest.run('ip link set vmx0 down')
        self.no_gid(guest, self.address(guest))
        guest.run('ip link set vmx0 up; echo vmx0 > %sprimary' % BOND)
        self.has_gid(guest, self.address(guest), TOP)

    def check(self, device):
        self.device = device
        own = device == parts.OWN_DEVICE
        self.vlan(self.guests[0], 'vmx0', not own)
        for kind in KINDS:
            for guest in self.guests:
                self.make(guest, kind)
            for guest in self.guests:
                self.has_gid(guest, self.address(guest), TOP)
            self.works()
            if kind == 'bond':
                self.vlan(self.guests[0], TOP, not own)
                self.failover(self.guests[0])
                self.works()
            for guest in self.guests:
                self.gone(guest)

    def test_above_the_interface(self):
        for guest in self.guests:
            guest.load_pvrdma()
        self.check(parts.STOCK_DEVICE)
        for guest in self.guests:
            parts.use_own(guest)
        self.check(parts.OWN_DEVICE)
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
        end_well(self.guests, self.daemon)
