# SPDX-License-Identifier: GPL-2.0-or-later
"""A server that breaks the protocol: QEMU refuses to start, or loses the
device and lives."""

import fcntl
import os
import struct
import signal
import tempfile
import time
import unittest

import qemu
import vfio_server as vs
from case import Case

# What goes wrong with a reply, whatever the command is.
BROKEN = {
    'close': lambda msg: vs.CLOSE,
    'header cut': lambda msg: (vs.reply(msg)[:7], 'close'),
    'wrong id': lambda msg: vs.reply(msg, id=msg.id ^ 1),
    'wrong command': lambda msg: vs.reply(msg, command=msg.command + 1),
    'command for a reply': lambda msg: vs.reply(msg, flags=0),
    'unknown type': lambda msg: vs.reply(msg, flags=2),
    'size 0': lambda msg: vs.reply(msg, size=0),
    'size 15': lambda msg: vs.reply(msg, size=15),
    'size 4 GiB': lambda msg: vs.reply(msg, size=0xffffffff),
    'error 0': lambda msg: vs.refuse(msg, 0),
    'error beyond errno': lambda msg: vs.refuse(msg, 1 << 31),
    'error with a body': lambda msg: vs.reply(msg, b'x' * 8, 0x21, 22),
    'no payload': lambda msg: vs.reply(msg),
    'long payload': lambda msg: vs.reply(msg, b'\0' * 100000),
}


def broken(how):
    def hook(server, msg):
        answer = BROKEN[how](msg)
        if isinstance(answer, tuple):
            server.conn.sendall(answer[0])
            return vs.CLOSE
        return answer
    return hook


class AtStart(Case):
    """Each command of realize, each kind of bad reply."""

    def each_way(self, command, harmless=()):
        server = self.serve()
        for how in BROKEN:
            if how in harmless:
                continue
            with self.subTest(how=how):
                server.hooks[command] = broken(how)
                self.refused(self.sock)

    def test_version(self):
        self.each_way(vs.VERSION)

    def test_device_info(self):
        self.each_way(vs.GET_INFO)

    def test_config_read(self):
        self.each_way(vs.REGION_READ)

    def test_region_info(self):
        self.each_way(vs.REGION_INFO)

    def test_irq_info(self):
        self.each_way(vs.IRQ_INFO)

    def test_doorbell_eventfd(self):
        self.each_way(vs.IO_FDS)

    def test_dma_map(self):
        # Its reply has no payload.
        self.each_way(vs.DMA_MAP, harmless=('no payload',))

    def test_silence(self):
        server = self.serve()
        server.hooks[vs.VERSION] = lambda _, msg: vs.SILENT
        self.refused('no answer from pvrdmad within 5000 ms')

    def test_slow(self):
        """Each answer comes in time, all of them together do not."""
        server = self.serve()

        def slow(_, __):
            time.sleep(2.5)
            return vs.DEFAULT
        for command in (vs.GET_INFO, vs.IRQ_INFO, vs.IO_FDS):
            server.hooks[command] = slow
        begin = time.monotonic()
        self.refused('no answer from pvrdmad within 5000 ms')
        self.assertLess(time.monotonic() - begin, 10)

    def test_unexpected_descriptors(self):
        server = self.serve()
        server.hooks[vs.GET_INFO] = lambda srv, msg: (
            vs.reply(msg, struct.pack('<IIII', 16, 3, 10, 3)), [srv.db_fd])
        self.refused('unexpected file descriptors')

    def test_too_many_descriptors(self):
        server = self.serve()
        server.hooks[vs.GET_INFO] = lambda srv, msg: (
            vs.reply(msg, struct.pack('<IIII', 16, 3, 10, 3)),
            [srv.db_fd] * 40)
        self.refused('too many file descriptors')

    def test_device_numbers(self):
        server = self.serve()
        for flags, regions, irqs in ((1, 10, 3), (2, 10, 3), (3, 7, 3),
                                     (3, 101, 3), (3, 1 << 31, 3), (3, 10, 2),
                                     (3, 10, 1 << 31)):
            with self.subTest(flags=flags, regions=regions, irqs=irqs):
                server.hooks[vs.GET_INFO] = lambda _, msg: vs.reply(
                    msg, struct.pack('<IIII', 16, flags, regions, irqs))
                self.refused('not pvrdmad')


class Regions(Case):
    def answer(self, index, make):
        """Let make(server, message) answer for one region."""
        self.server.hooks[vs.REGION_INFO] = lambda server, msg: (
            make(server, msg)
            if struct.unpack_from('<III', msg.body)[2] == index
            else vs.DEFAULT)

    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def test_sizes(self):
        for bar in (1, 2):
            for size in (0, 3, 2048, 4097, 1 << 29, 1 << 63, (1 << 64) - 1):
                with self.subTest(bar=bar, size=size):
                    self.answer(bar, lambda _, msg: vs.region_reply(msg, size))
                    self.refused('BAR%d of %d bytes' % (bar, size))

    def test_another_index(self):
        self.answer(1, lambda _, msg: vs.region_reply(msg, 4096, index=2))
        self.refused('another region')

    def test_descriptors(self):
        for flags, count in ((7, 0), (7, 2), (3, 1)):
            with self.subTest(flags=flags, count=count):
                self.answer(1, lambda srv, msg: (
                    vs.region_reply(msg, 4096, flags), [srv.db_fd] * count))
                self.refused('wrong number of file descriptors')

    def test_capability_lists(self):
        sparse = struct.pack('<HHIII', 1, 1, 0, 1 << 31, 0)
        for caps, at, text in (
                (vs.type_cap(following=32), None, 'endless'),
                (vs.type_cap(following=36), None, 'endless|outside'),
                (vs.type_cap(following=0xffffffff), None, 'outside'),
                (vs.type_cap(), 31, 'outside'),
                (vs.type_cap(), 1, 'outside'),
                (vs.type_cap(), 48, 'outside'),
                (vs.type_cap(), 0xfffffffc, 'outside'),
                (vs.type_cap()[:12], None, 'truncated type'),
                (sparse[:12], None, 'truncated sparse'),
                (sparse, None, 'sparse areas'),
                (b'', 0, 'no capability list')):
            with self.subTest(caps=caps, at=at):
                self.answer(1, lambda _, msg: vs.region_reply(
                    msg, 4096, caps=caps, cap_offset=at))
                self.assertRegex(self.refused(), text)

    def test_sparse_bar_without_areas(self):
        """What a server does to keep stock QEMU from posting writes."""
        sparse = struct.pack('<HHIII', 1, 1, 0, 0, 0)
        self.answer(1, lambda srv, msg: (
            vs.region_reply(msg, 4096, 7, sparse), [srv.db_fd]))
        self.boot()


class DoorbellRegion(Case):
    def offer(self, fd, size=vs.DB_SIZE, caps=None):
        self.server = self.serve()
        self.addCleanup(os.close, fd)
        self.server.hooks[vs.REGION_INFO] = lambda _, msg: (
            (vs.region_reply(msg, size, 7, caps or vs.type_cap()), [fd])
            if struct.unpack_from('<III', msg.body)[2] == vs.DB_INDEX
            else vs.DEFAULT)

    def test_unsealed(self):
        self.offer(vs.doorbell_memfd(seal=False))
        self.refused('not a sealed memfd')

    def test_sealed_against_growing_only(self):
        fd = vs.doorbell_memfd(seal=False)
        fcntl.fcntl(fd, vs.F_ADD_SEALS, vs.F_SEAL_GROW)
        self.offer(fd)
        self.refused('not a sealed memfd')

    def test_no_memfd(self):
        self.offer(os.open('/dev/zero', os.O_RDWR))
        self.refused('not a sealed memfd')

    def test_short_file(self):
        self.offer(vs.doorbell_memfd(size=vs.DB_SIZE - 4096))
        self.refused('larger than its file')

    def test_small_region(self):
        self.offer(vs.doorbell_memfd(), size=4096)
        self.refused('unknown layout')

    def test_sparse(self):
        sparse = struct.pack('<HHIII', 1, 1, 0, 0, 0)
        self.offer(vs.doorbell_memfd(),
                   caps=vs.type_cap(following=48) + sparse)
        self.refused('unknown layout')

    def test_version(self):
        self.offer(vs.doorbell_memfd(version=2))
        self.refused('unknown version')

    def test_not_an_eventfd(self):
        server = self.serve()
        ends = os.pipe()
        for end in ends:
            self.addCleanup(os.close, end)
        entry = struct.pack('<QQIIIIQ', 0, 2 << 20, 0, 0, 0, 0, 0)
        server.hooks[vs.IO_FDS] = lambda _, msg: (
            vs.reply(msg, struct.pack('<IIII', 56, 0, 2, 1) + entry),
            [ends[1]])
        self.refused('not an eventfd')


class AtWork(Case):
    """After the guest has started: the device is lost, QEMU is not."""

    def survives(self, machine, server):
        self.assertEqual(machine.read(qemu.BAR1), 0xffffffff)
        machine.write(qemu.BAR1 + 0x10, 0)
        machine.write(qemu.BAR2, 1 << 30)
        machine.until(lambda: 'lost the connection to pvrdmad' in machine.log()
                      and machine.status() == 'running', 'end of the loss')
        self.assertEqual(server.connections, 1)

    def lost_by(self, command, how, action):
        """`action` makes QEMU send `command`, which `how` answers."""
        self.sock = tempfile.mktemp(dir=self.dir)
        server = self.serve()
        machine = self.boot()
        machine.enable()
        server.hooks[command] = how
        action(machine)
        self.survives(machine, server)
        machine.close()

    def test_read(self):
        for how in BROKEN:
            with self.subTest(how=how):
                self.lost_by(vs.REGION_READ, broken(how),
                             lambda m: m.read(qemu.BAR1))

    def test_read_of_wrong_length(self):
        def short(_, msg):
            return vs.reply(msg, vs.ACCESS.pack(0, 1, 2) + b'xx')
        self.lost_by(vs.REGION_READ, short, lambda m: m.read(qemu.BAR1))

    def test_write_of_another_count(self):
        def other(_, msg):
            region, offset, _ = msg.access()
            return vs.reply(msg, vs.ACCESS.pack(offset, region, 8))
        self.lost_by(vs.REGION_WRITE, other,
                     lambda m: m.write(qemu.BAR1 + 4, 1))

    def test_reset(self):
        self.lost_by(vs.RESET, broken('wrong id'),
                     lambda m: (m.execute('system_reset'), m.until(
                         lambda: 'lost the connection' in m.log(),
                         'loss'), m.enable()))

    def test_interrupt_setup(self):
        self.lost_by(vs.SET_IRQS, broken('close'),
                     lambda m: m.enable_msix(0x300000))

    def test_memory_change(self):
        self.lost_by(vs.DMA_UNMAP, broken('long payload'),
                     lambda m: [m.config(0x90, pam, 1, devfn=0)
                                for pam in (0x10, 0)])

    def test_silence(self):
        self.lost_by(vs.REGION_READ, lambda _, msg: vs.SILENT,
                     lambda m: self.assertEqual(m.read(qemu.BAR1),
                                                0xffffffff))

    def test_slow_memory_change(self):
        """One time limit for all messages of a change."""
        server = self.serve()
        machine = self.boot()
        machine.enable()

        def slow(_, __):
            time.sleep(1.5)
            return vs.DEFAULT
        server.hooks[vs.DMA_MAP] = server.hooks[vs.DMA_UNMAP] = slow
        begin = time.monotonic()
        before = len(server.log)
        # Four areas become RAM that is read-only, apart from each other.
        machine.config(0x90, 0x10101010, devfn=0)
        self.assertLess(time.monotonic() - begin, 8)
        # One more would take the limit to itself.
        self.assertGreater(len(server.log) - before, 2)
        self.survives(machine, server)

    def test_frozen_qemu(self):
        """Time in which QEMU itself does not run is not the daemon's."""
        server = self.serve()
        machine = self.boot()
        machine.enable()

        def freeze(_, __):
            machine.process.send_signal(signal.SIGSTOP)
            time.sleep(5.5)
            machine.process.send_signal(signal.SIGCONT)
            time.sleep(0.5)
            return vs.DEFAULT
        server.hooks[vs.REGION_READ] = freeze
        self.assertEqual(machine.read(qemu.BAR1), 0)
        self.assertEqual(machine.log(), '')

    def test_unasked_bytes(self):
        """Found by the next request; they cost nothing before."""
        server = self.serve()
        machine = self.boot()
        machine.enable()
        server.conn.sendall(b'\0' * 100)
        self.survives(machine, server)


if __name__ == '__main__':
    unittest.main()
