# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's device and the real daemon: a DIMM beyond what the daemon lets a VM have.

The limits count address space, so no guest has to run, and sparse memory will do.
"""

import json
import os
import subprocess
import time

import qemu
from case import Case

MIB = 1 << 20


class Budget(Case):
    def daemon(self, settings, vm_settings):
        """Start pvrdmad with one VM; its log is in self.log_path."""
        config = os.path.join(self.dir, 'pvrdmad.conf')
        self.control = os.path.join(self.dir, 'control.sock')
        self.log_path = os.path.join(self.dir, 'pvrdmad.log')
        with open(config, 'w') as stream:
            stream.write('[daemon]\nsocket-dir=%s\ncontrol-socket=%s\n%s\n'
                         '[vm vm1]\naddresses=any\n%s\n' % (
                             self.dir, self.control, settings, vm_settings))
        program = os.path.join(qemu.BACKEND, 'pvrdmad')
        with open(self.log_path, 'wb') as log:
            # pylint: disable-next=consider-using-with
            process = subprocess.Popen([program, '--config', config],
                                       stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log)
        self.addCleanup(self.end, process)
        while not (os.path.exists(self.sock) and os.path.exists(self.control)):
            self.assertIsNone(process.poll(), self.daemon_log())
            time.sleep(0.02)

    def end(self, process):
        process.terminate()
        self.assertEqual(process.wait(qemu.TIMEOUT), 0, self.daemon_log())

    def daemon_log(self):
        with open(self.log_path, errors='replace') as stream:
            return stream.read()

    def status(self):
        """Of the VM's memory and all of it, once nothing is being unmapped."""
        while True:
            text = subprocess.run(
                [os.path.join(qemu.BACKEND, 'pvrdmactl'), '--socket',
                 self.control, '--json', 'status'], check=True,
                stdout=subprocess.PIPE).stdout
            answer = json.loads(text)
            if not answer['guest_memory']['unmapping_bytes']:
                return answer['vms'][0]['memory'], answer['guest_memory']
            time.sleep(0.02)

    def plug(self, machine, name, size):
        """The answer to a DIMM of `size` bytes."""
        machine.execute('object-add', **{
            'qom-type': 'memory-backend-memfd', 'id': 'mem-' + name,
            'size': size, 'share': True})
        return machine.execute('device_add', driver='pc-dimm', id=name,
                               memdev='mem-' + name)

    def fill(self, sizes, too_much, key):
        """DIMMs of these sizes can be plugged, another one cannot, for @key's sake."""
        machine = self.boot(args=['-m', '16M,slots=8,maxmem=8G'])
        machine.enable()
        before = self.status()[0]['ram_bytes']
        for i, size in enumerate(sizes):
            self.assertNotIn('error', self.plug(machine, 'd%d' % i, size))
        vm, all_vms = self.status()
        self.assertEqual(vm['ram_bytes'], before + sum(sizes))
        self.assertEqual(vm['refused'], 0)
        self.assertEqual(machine.log(), '')

        error = self.plug(machine, 'late', too_much)['error']['desc']
        self.assertIn("refuses memory 'mem-late' of %d bytes" % too_much, error)
        self.assertIn('No space left', error)
        self.assertIn(key, self.daemon_log())
        # What was asked left nothing behind, on either side.
        now, all_now = self.status()
        self.assertEqual(now, dict(vm, refused=1))
        self.assertEqual(all_now, all_vms)
        self.assertEqual(
            len(machine.execute('query-memory-devices')['return']), len(sizes))
        self.assertEqual(machine.log(), '')
        # And the device works, with the memory it has.
        self.assertEqual(machine.read(qemu.BAR1), 20)
        return machine

    def test_max_memory(self):
        """The VM's own limit; less than was refused is still to be had."""
        self.daemon('', 'max-memory=512M')
        machine = self.fill([128 * MIB], 512 * MIB, 'max-memory')
        before = self.status()[0]['ram_bytes']
        self.assertNotIn('error', self.plug(machine, 'small', 128 * MIB))
        self.assertEqual(self.status()[0]['ram_bytes'], before + 128 * MIB)
        self.assertEqual(machine.log(), '')

    def test_max_mapped(self):
        """The daemon's: half of it is reserved for other VMs."""
        self.daemon('max-mapped=1G', '')
        self.fill([128 * MIB, 128 * MIB], 256 * MIB, 'max-mapped')
