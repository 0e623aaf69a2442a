# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the device share: a folder, a server, a QEMU."""

import os
import shutil
import tempfile
import unittest

import qemu
from vfio_server import Server


# For what must not happen: when it does, it takes a few ms.
ABSENT_SECONDS = 0.2


class Case(unittest.TestCase):
    time_limit = 60

    def setUp(self):
        if not os.path.exists(qemu.BINARY):
            self.no_binary()
        self.dir = tempfile.mkdtemp(prefix='pvrdma-hw-')
        self.addCleanup(shutil.rmtree, self.dir)
        self.sock = os.path.join(self.dir, 'vm1.sock')

    def no_binary(self):
        """A skip only if configure was told to do without."""
        try:
            with open(os.path.join(qemu.BUILD, 'config.mak')) as stream:
                absent = 'WITH_QEMU = no' in stream.read()
        except FileNotFoundError:
            absent = False
        if absent:
            self.skipTest('configured with --disable-qemu')
        self.fail('%s is not built' % qemu.BINARY)

    def serve(self, **options):
        server = Server(self.sock, **options)
        self.addCleanup(self._end, server)
        return server

    def _end(self, server):
        server.close()
        self.assertEqual(server.violations, [])

    def boot(self, **options):
        machine = qemu.Qemu(self.sock, **options)
        self.addCleanup(self._judge, machine)
        return machine

    def _judge(self, machine):
        """End QEMU; a sanitizer may have had to say something of our code."""
        text = machine.close()
        for line in text.splitlines():
            self.assertNotIn('AddressSanitizer', line, text)
            self.assertFalse('runtime error' in line and '/rdma/' in line,
                             line)
        self.assertEqual(machine.process.returncode, 0, text)

    def refused(self, *expected, args=None, memory=None):
        """QEMU must not start, and say all of `expected`."""
        text = qemu.fails_to_start(
            (qemu.MEMORY if memory is None else memory) + qemu.NIC +
            (args or ['-device', 'pvrdma,addr=5.1,socket=' + self.sock]))
        for part in expected:
            self.assertIn(part, text)
        return text
