# SPDX-License-Identifier: GPL-2.0-or-later
"""A server that breaks the protocol: QEMU refuses to start, or loses the
device and lives."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import random
import struct
import signal
import subprocess
import sys
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
            time.sleep(2) # all of them more than the limit and what QEMU may have slept
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


def without_aio():
    """In a new process: io_setup(2) finds nothing left to give."""
    number = {'x86_64': 206, 'aarch64': 0}[platform.machine()]
    # The number is the first word; SECCOMP_RET_ERRNO or SECCOMP_RET_ALLOW.
    code = b''.join(struct.pack('<HBBI', *each) for each in (
        (0x20, 0, 0, 0), (0x15, 0, 1, number),
        (0x06, 0, 0, 0x50000 | errno.EAGAIN), (0x06, 0, 0, 0x7fff0000)))
    rules = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(
        struct.pack('@HP', len(code) // 8, ctypes.addressof(rules)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), 'prctl')


# Adds one to an eventfd at the time that was ordered: number, time, number done.
FILLER = '''
import mmap, os, sys, time
order = memoryview(mmap.mmap(int(sys.argv[2]), 4096)).cast('d')
number = 0
while True:
    while order[0] == number:
        os.sched_yield()
    number = order[0]
    while time.perf_counter() < order[1]:
        pass
    os.eventfd_write(int(sys.argv[1]), 1)
    order[2] = number
'''


class Kick(Case):
    """The eventfd that wakes the daemon blocks who writes to it."""

    FULL = 2 ** 64 - 2

    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def start(self, **options):
        self.machine = self.boot(**options)
        self.machine.enable()

    def doorbell(self):
        self.machine.write(qemu.BAR2, 1 << 30)

    def fill(self, count):
        """Let it count to this, and block from now on."""
        fd = self.server.kick_fd
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
        self.server.kicks()
        os.eventfd_write(fd, count)
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)

    def sleep(self, asleep):
        self.server.set_doorbell(vs.DB_KICK, asleep, 4)

    def posts(self):
        with self.server.changed:
            return len([1 for command, _, body, _ in self.server.log
                        if command == vs.REGION_WRITE and
                        vs.ACCESS.unpack_from(body)[1] == 2])

    def test_full(self):
        self.start()
        self.fill(self.FULL)
        self.sleep(1)
        for _ in range(200):
            self.doorbell()
        self.assertEqual(self.machine.status(), 'running')
        # More than any write() can count to, so there was none.
        self.assertEqual(self.server.kicks(), self.FULL + 1)
        self.assertEqual(self.posts(), 0)

    def test_filled_meanwhile(self):
        """At any moment of the doorbell, also after a look whether it is
        full (which this finds in some 500 rounds; a slow machine does fewer, but
        test_full fails at once then)."""
        self.start()
        memory = os.memfd_create('order')
        self.addCleanup(os.close, memory)
        os.ftruncate(memory, 4096)
        order = memoryview(mmap.mmap(memory, 4096)).cast('d')
        fds = self.server.kick_fd, memory
        filler = subprocess.Popen([sys.executable, '-c', FILLER] +
                                  ['%d' % fd for fd in fds], pass_fds=fds)
        self.addCleanup(filler.wait)
        self.addCleanup(filler.kill)
        took = 1e-4
        end = time.monotonic() + 3
        number = 0
        while time.monotonic() < end:
            number += 1
            self.sleep(0)
            self.fill(self.FULL - 1)
            self.sleep(1)
            begin = time.perf_counter()
            order[1] = begin + random.uniform(0, took * 1.5)
            order[0] = number
            self.doorbell()
            took += (time.perf_counter() - begin - took) / 8
            # Frees the other if the doorbell was first.
            os.eventfd_read(self.server.kick_fd)
            while order[2] != number:
                self.assertIsNone(filler.poll())
                os.sched_yield()

    def test_many(self):
        """None is lost when requests that are over must be forgotten."""
        self.start()
        self.sleep(1)
        for _ in range(5000):
            self.doorbell()
        self.assertEqual(self.server.kicks(), 5000)
        self.assertEqual(self.posts(), 0)

    def test_no_aio(self):
        """Messages wake the daemon then, if it sleeps."""
        self.start(preexec=without_aio)
        self.assertIn('no asynchronous I/O', self.machine.log())
        self.fill(self.FULL)
        self.doorbell()
        self.assertEqual(self.machine.read(qemu.BAR1), 0)
        self.assertEqual(self.posts(), 0)
        self.sleep(1)
        for value in (0, 1 << 30, 1 << 31):
            self.machine.write(qemu.BAR2, value | 7)
        self.machine.write(qemu.BAR2 + 4, 1 << 29 | 7)
        self.machine.write(qemu.BAR2 + 8, 1 << 30 | 7)
        self.server.wait(lambda: self.posts() == 3, 'messages')
        self.assertEqual(self.machine.read(qemu.BAR1), 0)
        self.assertEqual(self.posts(), 3)
        self.assertEqual(self.server.doorbell(vs.DB_SRQ + 4096), 1 << 7)
        self.assertEqual(self.server.kicks(), self.FULL)


if __name__ == '__main__':
    unittest.main()
