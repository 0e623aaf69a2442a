# SPDX-License-Identifier: GPL-2.0-or-later
"""A VM of QEMU's on a host with an RDMA NIC: stock driver, stock provider and programs of the
distribution's, over channels.

The host is a guest (level1.py), so the VM is a guest's guest, of which one is enough: it is
connected with itself, and `path=rnic` has its messages go by the NIC.  It does not boot, which
takes a quarter of an hour there: it begins from a template (lib/template.py), which the host
has as a disk.  Its agent's port is one of the host's, so it is used as any guest is.
"""

import os
import shlex

import level1
from lib import fixture, parts, template
from lib.kernellog import log_problems
from lib.programs import bandwidth, check_pings, latency
from lib.pvrdma_vm import BUILD, Guest, qemu_binary

PINGS = 10
COUNT, SIZE = 20, 65536
PROGRAMS = [latency('ib_write_lat', 8, COUNT), bandwidth('ib_send_bw', SIZE, COUNT),
            bandwidth('ib_read_bw', SIZE, COUNT)]
# How many times longer than elsewhere all may take.
SLOWER = 10
PORT = 'org.pvrdma.nested'
FIRMWARE = '/nested'
# What QEMU needs only for a boot.
TO_BOOT = {'-kernel', '-initrd', '-append'}


class Nested(Guest):
    """A guest of a host that is a guest: make_host(), then begin()."""

    def __init__(self, session):
        super().__init__(session, 1, {'pvrdma': level1.Nowhere()}, '/run/pvrdmad/vm1.sock')
        self.patience *= SLOWER
        self.host = self.job = None

    def programs(self):
        """QEMU and its firmware, as Guest's @files."""
        files = level1.programs(os.path.relpath(qemu_binary(), BUILD))
        for folder in self.program()[2::2]:
            for name in ('bios-256k.bin', 'kvmvapic.bin'):
                if os.path.exists(os.path.join(folder, name)):
                    files.setdefault('%s/%s' % (FIRMWARE, name), os.path.join(folder, name))
        return files

    def make_host(self):
        """A host that has all that is needed."""
        with template.ready(self) as state:
            self.host = level1.Host(
                self.session, '6.1', files=self.programs(), memory=1024, extra_args=[
                    '-chardev',
                    'socket,id=nested,path=%s,server=on,wait=off' % self._sock('ctl'),
                    '-device', 'virtserialport,chardev=nested,name=' + PORT,
                    '-drive', 'if=none,id=state,format=raw,readonly=on,file=/proc/%d/fd/%d' % (
                        os.getpid(), state.fileno()),
                    '-device', 'virtio-blk-pci,drive=state']).start().wait_boot()
        self.host.run('modprobe virtio_blk')
        return self.host

    def there(self):
        """Its command line in the host."""
        port = self.host.run('cd /sys/class/virtio-ports && grep -lx %s */name' % PORT).out
        chardevs = {'ctl': 'pipe,id=ctl,path=/dev/' + port.split('/')[0], 'con': 'null,id=con'}
        argv = ['qemu-system-x86_64', '-L', FIRMWARE]
        old = self.command_line()[len(self.program()):]
        for option, word in zip([''] + old, old):
            if option == '-chardev':
                word = chardevs[word.split(',')[1].split('=')[1]]
            elif option == '-qmp':
                word = 'null'
            if not TO_BOOT & {option, word}:
                argv.append(word)
        return argv + ['-global', 'migration.mapped-ram=on',
                       '-global', 'migration.announce-rounds=0', '-incoming', 'file:/dev/vda']

    def begin(self):
        # First: QEMU does not look again at a port to which nobody is connected.
        self.connect()
        self.job = self.host.spawn('exec ' + shlex.join(self.there()), level1.LIFETIME)
        self.agent.is_up()
        template.begin(self)

    @property
    def alive(self):
        return not (self.job and self.job.done)

    def powerdown(self):
        self.spawn('poweroff -f')
        self.job.wait(120, check=True)
        self.agent_close()

    def both(self, server, client):
        """Run these commands: their jobs.  To look whether a server listens yet would take
        longer than to try."""
        first = self.spawn(server)
        second = self.run('until %s; do usleep 500000; done' % client)
        return first.wait(check=True), second


@fixture.shard('rnic-l1')
class NestedTest(fixture.PrivateTest):
    def test_programs(self):
        guest = Nested(self.session)
        if not template.fits(guest):
            self.skipTest('such a guest does not boot in time, and now all have to')
        host = guest.make_host()
        daemon = level1.HostDaemon(host, {
            'nic rail0': {'device': host.load('rxe'), 'address': host.ip('virtio')},
            'vm vm1': {'network': 'lan', 'addresses': guest.ip('pvrdma')}}, {'path': 'rnic'})
        self.addCleanup(daemon.keep_log)
        guest.begin()
        guest.load_pvrdma()
        address = guest.ip('pvrdma')
        ends = ' -v -C %d -a %s' % (PINGS, address)
        check_pings(*guest.both('rping -s' + ends, 'rping -c' + ends), PINGS)
        for port, program in enumerate(PROGRAMS, 18600):
            command = program.template.format(dev=parts.STOCK_DEVICE, port=port)
            _, client = guest.both(command, command + ' ' + address)
            self.assertIsNotNone(program.parse(client.out), client.describe())
        counters, = daemon.ctl_json('counters')['vms']
        sent = counters['datapath']['tx_bytes']
        self.assertGreater(sent, 2 * COUNT * SIZE)
        # With headers: all of it, but for what may go before there is a channel.
        self.assertGreater(counters['channels']['received_bytes'], sent)
        self.assertEqual(log_problems(guest), [])
        guest.powerdown()
        daemon.stop()
        self.assertEqual(host.problems(), [])
        host.powerdown()
