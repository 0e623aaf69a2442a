# SPDX-License-Identifier: GPL-2.0-or-later
"""The stock driver and provider find a working adapter."""

import re

from lib import fixture
from lib.pvrdma_vm import Daemon, built_program, start_guests


class BootTest(fixture.PairTest):
    booted = True

    def test_devinfo(self):
        for guest in self.guests:
            out = guest.run('ibv_devinfo -v -d vmw_pvrdma0').out
            for want in ('PORT_ACTIVE', '0x15ad', 'Ethernet', 'max_qp:'):
                self.assertIn(want, out)
            part = [line.split()[1] for line in out.splitlines()
                    if 'vendor_part_id:' in line]
            self.assertEqual(part, [str(0x0820)])

    def test_pci_identity(self):
        for guest in self.guests:
            out = guest.run('cat /sys/class/infiniband/vmw_pvrdma0/device/'
                            'vendor /sys/class/infiniband/vmw_pvrdma0/device/'
                            'device; readlink /sys/class/infiniband/'
                            'vmw_pvrdma0/device/driver').out.split()
            self.assertEqual(out[:2], ['0x15ad', '0x0820'])
            self.assertTrue(out[2].endswith('/vmw_pvrdma'))

    def test_three_msix_vectors(self):
        for guest in self.guests:
            out = guest.run('grep -c vmw_pvrdma /proc/interrupts').out
            self.assertEqual(out.strip(), '3')

    def test_gids_are_the_interface_addresses(self):
        for guest in self.guests:
            guest.gid_index('vmw_pvrdma0', guest.ip('pvrdma'))
            out = guest.run('cat /sys/class/infiniband/vmw_pvrdma0/ports/1/'
                            'gids/0').out.strip()
            self.assertTrue(out.startswith('fe80:'), out)

    def test_second_address_gets_and_loses_a_gid(self):
        guest = self.guests[0]
        guest.run('ip addr add 10.77.9.1/32 dev vmx0')
        try:
            guest.gid_index('vmw_pvrdma0', '10.77.9.1')
        finally:
            guest.run('ip addr del 10.77.9.1/32 dev vmx0')
        guest.run('for i in $(seq 100); do grep -q 0a4d:0901 '
                  '/sys/class/infiniband/vmw_pvrdma0/ports/1/gids/* || exit 0;'
                  ' usleep 50000; done; exit 1')

    def test_no_complaints_in_kernel_log(self):
        for guest in self.guests:
            bad = guest.run(
                'dmesg | grep -E "BUG: |WARNING: |Oops|vmw_pvrdma|infiniband" '
                '| grep -v -e "module verification failed" -e taint '
                '-e "dev_port" -e "eth dev"', check=False)
            kept = [line for line in bad.out.splitlines()
                    if re.search('BUG|WARNING|Oops|fail|error|timeout|could',
                                 line, re.IGNORECASE)]
            self.assertEqual(kept, [])

    def test_reload_driver(self):
        guest = self.guests[0]
        for _ in range(5):
            guest.run('rmmod vmw_pvrdma')
            guest.load_pvrdma()
            guest.gid_index('vmw_pvrdma0', guest.ip('pvrdma'))
        out = guest.run('ibv_devinfo -d vmw_pvrdma0').out
        self.assertIn('PORT_ACTIVE', out)
        # The GIDs may have other places now.
        self.rdma.find_gids()


class ProcessorsTest(fixture.PrivateTest):
    def test_memory_map_changes(self):
        """What hw/tcg-memory-map.patch mends: one processor's switching of our BARs
        leads no access of another one astray."""
        daemon = Daemon(self.session, ['vm1'])
        guest = start_guests(
            self.session, daemon, count=1, virtio=False, cpus=2, boot=True,
            files={'usr/local/bin/maprace': built_program('maprace')})[0]
        device = '/sys/bus/pci/devices/0000:00:05.'
        done = guest.run('maprace %s1/config %s0/resource2 5' % (device, device))
        self.assertRegex(done.out,
                         r'^[1-9]\d* switches, [1-9]\d* reads, 0 errors')
