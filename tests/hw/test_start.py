# SPDX-License-Identifier: GPL-2.0-or-later
"""What QEMU says when the device cannot start, and what a good start does."""

import errno
import os
import socket
import subprocess
import struct
import unittest

import qemu
import vfio_server as vs
from case import Case


# The extension window, docs/extensions.md.
EXT_MAGIC, FEAT_MAC = 0x58525650, 1 << 3


class Configuration(Case):
    """Errors an administrator makes."""

    def test_daemon_not_running(self):
        self.sock = os.path.join(self.dir, 'nothing', 'vm1.sock')
        self.refused('cannot connect to pvrdmad', 'pvrdmad is not running',
                     'systemctl start pvrdmad')

    def test_folder(self):
        self.sock = self.dir
        self.refused('cannot connect to pvrdmad', "is a folder; property 'socket'")

    def test_help(self):
        """Each property of the device's own says what it is for."""
        text = subprocess.run([qemu.BINARY, '-device', 'pvrdma,help'],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in ('socket', 'vectors', 'regs-size', 'uar-size', 'flr', 'express',
                     'reconnect', 'connected', 'failed'):
            line = next(each for each in text.splitlines()
                        if each.strip().startswith(name + '='))
            self.assertRegex(line, ' - [^ (]')

    def test_stale_socket(self):
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(self.sock)
        self.refused('Connection refused', 'pvrdmad is not running',
                     'systemctl start pvrdmad')

    def test_vm_not_declared(self):
        self.refused('No such file', 'pvrdmactl vm add vm1 addresses=', '[vm vm1]')

    def test_socket_of_vm_name(self):
        self.refused("'/run/pvrdma/no-such-vm.sock'",
                     args=['-name', 'no-such-vm', '-device',
                           'pvrdma,addr=5.1'])

    def test_no_vm_name(self):
        self.refused('which VM this is', '-name NAME', 'socket=PATH',
                     args=['-device', 'pvrdma,addr=5.1'])

    def test_vm_name_with_slash(self):
        self.refused('slash', args=['-name', '../x', '-device',
                                    'pvrdma,addr=5.1'])

    def test_socket_path_too_long(self):
        self.sock = '/' + 'x' * 200
        self.refused('longer than 107 bytes')

    def test_function_0(self):
        self.serve()
        self.refused('cannot be function 0', 'vmxnet3', 'addr=5.1', 'mac=',
                     args=['-device', 'pvrdma,addr=6,socket=' + self.sock])

    def test_function_0_of_a_daemon_without_mac(self):
        """The feature bit counts behind the magic number only."""
        server = self.serve()
        for magic, features in ((EXT_MAGIC, 0xfffffff7), (0, FEAT_MAC)):
            struct.pack_into('<IIII', server.registers, 0x800, magic, 0x18, 1,
                             features)
            self.refused('cannot be function 0', args=[
                '-device', 'pvrdma,addr=6,socket=' + self.sock])

    def test_memory_without_backend(self):
        self.serve()
        self.refused('is not shared', 'memory-backend-memfd', 'share=on',
                     'memory-backend=mem', memory=[])

    def test_memory_private(self):
        self.serve()
        self.refused('is not shared', 'share=on', memory=[
            '-object', 'memory-backend-memfd,id=mem,size=16M,share=off',
            '-machine', 'memory-backend=mem'])

    def test_memory_refused(self):
        server = self.serve()
        server.hooks[vs.DMA_MAP] = lambda _, msg: vs.refuse(msg, 1)
        self.refused('refuses to map guest memory', 'sealed memfd')

    def test_viommu(self):
        """Whether it comes before the device or after it."""
        self.serve()
        device = ['-device', 'pvrdma,addr=5.1,socket=' + self.sock]
        viommu = ['-device', 'intel-iommu']
        for args in (viommu + device, device + viommu):
            text = self.refused('does not support a vIOMMU', args=args)
            self.assertNotIn('lost the connection', text)

    def test_only_migratable(self):
        self.serve()
        self.refused('migrat', args=[
            '-only-migratable', '-device',
            'pvrdma,addr=5.1,socket=' + self.sock])


class WrongServer(Case):
    """Errors of what listens on the socket."""

    def test_protocol_version(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.reply(
            msg, struct.pack('<HH', 1, 0) + b'{}\0')
        self.refused('wrong protocol version', 'vfio-user 1.0')

    def test_another_device(self):
        server = self.serve()
        server.hooks[vs.REGION_READ] = lambda _, msg: vs.reply(
            msg, vs.ACCESS.pack(0, 7, 4) + struct.pack('<HH', 0x8086, 0x10d3))
        self.refused('not pvrdmad', '8086:10d3')

    def test_another_protocol(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: b'220 mail.example ESMTP\r\n'
        self.refused('no agreement on the vfio-user protocol',
                     "pvrdmad's socket")

    def test_busy(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.CLOSE
        self.refused('closed the connection', 'no other QEMU')

    def test_second(self):
        """It is tried again for as long as the first may be about to end."""
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.refuse(msg, errno.EBUSY)
        self.refused('another QEMU is connected as this VM')
        self.assertGreater(server.connections, 3)

    def test_wrong_user(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.refuse(msg, errno.EPERM)
        self.refused("does not accept this QEMU's user %d for the VM" % os.geteuid(), 'uid=')
        self.assertEqual(server.connections, 1)

    def test_busy_for_a_while(self):
        """The last QEMU has not quite gone."""
        server = self.serve()
        server.hooks[vs.VERSION] = lambda srv, msg: (
            vs.CLOSE if srv.connections < 3 else
            vs.refuse(msg, errno.EBUSY) if srv.connections < 4 else vs.DEFAULT)
        self.assertEqual(self.boot().log(), '')
        self.assertEqual(server.connections, 4)

    def test_too_few_vectors(self):
        server = self.serve()
        server.hooks[vs.IRQ_INFO] = lambda _, msg: vs.reply(
            msg, struct.pack('<IIII', 16, 1, 2, 2))
        self.refused('2 interrupt vectors')

    def test_capabilities(self):
        server = self.serve()
        for text in ('', '[]', '{"capabilities":1}', '{"capabilities":',
                     '{"capabilities":{"max_msg_fds":"16"}}',
                     '{"capabilities":{"max_msg_fds":0}}',
                     '{"capabilities":{"max_msg_fds":-1}}',
                     '{"capabilities":{"pgsizes":0}}',
                     '{"capabilities":{"max_data_xfer_size":1}}',
                     '[' * 2000):
            with self.subTest(text=text[:50]):
                server.hooks[vs.VERSION] = lambda _, msg: vs.reply(
                    msg, struct.pack('<HH', 0, 0) + text.encode() + b'\0')
                self.refused('capabilities')

    def test_version_without_nul(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.reply(
            msg, struct.pack('<HH', 0, 0) + b'{}')
        self.refused('malformed vfio-user version reply')


class Socket(Case):
    """The forms of the property."""

    def test_address(self):
        self.serve()
        machine = self.boot(socket_json={'type': 'unix', 'path': self.sock})
        self.assertTrue(machine.connected())
        self.assertEqual(machine.execute(
            'qom-get', path='/machine/peripheral/rdma', property='socket'),
            {'return': {'type': 'unix', 'path': self.sock}})

    def test_descriptor(self):
        self.serve()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.sock)
            machine = self.boot(fds=[client.fileno()], socket_json={
                'type': 'fd', 'str': str(client.fileno())})
        self.assertTrue(machine.connected())

    def test_global(self):
        self.refused("cannot connect to pvrdmad at '/nowhere'", args=[
            '-global', 'pvrdma.socket=/nowhere', '-device', 'pvrdma,addr=5.1'])

    def test_other_types(self):
        for address, text in (
                ('{"type":"vsock","cid":"2","port":"1"}', "of type 'vsock'"),
                ('{"type":"unix","path":"x","abstract":true}', 'abstract'),
                ('{"type":"fd","str":"77"}', "descriptor '77'"),
                ('{"type":"unix"}', "socket.path' is missing"), ('7', 'socket')):
            self.refused(text, args=[
                '-device', '{"driver":"pvrdma","addr":"5.1","socket":%s}'
                % address])


class GoodStart(Case):
    def test_order_and_contents(self):
        server = self.serve()
        self.boot()
        server.wait(lambda: server.resets, 'reset')
        commands = server.commands()
        self.assertEqual(commands[0], vs.VERSION)
        self.assertLess(commands.index(vs.DMA_MAP), commands.index(vs.RESET))
        self.assertFalse(any(entry[1] for entry in server.log),
                         'a command without reply')

    def test_bare_version_reply(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.reply(
            msg, struct.pack('<HH', 0, 0))
        self.boot()

    def test_pc_machine(self):
        self.serve()
        self.assertEqual(self.boot(machine='pc').config(0), 0x082015ad)

    def test_function_0_if_the_nic_is_named(self):
        server = self.serve()
        struct.pack_into('<IIII', server.registers, 0x800, EXT_MAGIC, 0x18, 1,
                         FEAT_MAC)
        machine = qemu.Qemu(self.sock, place='6')
        self.addCleanup(machine.close)
        self.assertEqual(machine.config(0, devfn=6 << 3), 0x082015ad)
        self.assertEqual(machine.log(), '')

    def test_migration_refused(self):
        self.serve()
        answer = self.boot().execute('migrate', uri='exec:cat >/dev/null')
        self.assertIn('cannot migrate', answer['error']['desc'])


if __name__ == '__main__':
    unittest.main()
