# SPDX-License-Identifier: GPL-2.0-or-later
"""The device at work: registers, doorbells, memory, interrupts, reset."""

import os
import struct
import threading
import time
import unittest

import qemu
import vfio_server as vs
from case import ABSENT_SECONDS, Case

UAR = qemu.BAR2
PAGE = 4096
SEND, RECV = 1 << 30, 1 << 31
ARM_SOLICITED, ARM, POLL = 1 << 29, 1 << 30, 1 << 31
MSI = 0x300000


class Registers(Case):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.qemu = self.boot()
        self.qemu.enable()

    def test_identity(self):
        self.assertEqual(self.qemu.config(0), 0x082015ad)
        self.assertEqual(self.qemu.config(8) >> 16, 0x0280)
        self.assertEqual(self.qemu.config(0x3d, size=1), 0)

    def test_bar_sizes(self):
        self.qemu.config(4, 0, 2)
        for bar, size in ((1, 4096), (2, 2 << 20)):
            self.qemu.config(0x10 + 4 * bar, 0xffffffff)
            self.assertEqual(self.qemu.config(0x10 + 4 * bar),
                             0x100000000 - size)

    def test_read_and_write(self):
        self.server.registers[0:4] = struct.pack('<I', 20)
        self.assertEqual(self.qemu.read(qemu.BAR1), 20)
        self.qemu.write(qemu.BAR1 + 0xffc, 0x12345678)
        self.assertEqual(self.server.registers[0xffc:],
                         struct.pack('<I', 0x12345678))

    def test_other_access_sizes_never_reach_the_daemon(self):
        before = len(self.server.commands())
        self.qemu.write(qemu.BAR1 + 4, 0xffff, size=2)
        self.qemu.read(qemu.BAR1 + 2, size=2)
        self.assertEqual(len(self.server.commands()), before)

    def test_write_waits_for_its_reply(self):
        done = []

        def slow(_, msg):
            time.sleep(0.3)
            done.append(msg.access()[1])
            return vs.DEFAULT
        self.server.hooks[vs.REGION_WRITE] = slow
        for register in (4, 8, 0xc):
            self.qemu.write(qemu.BAR1 + register, 2)
            self.assertEqual(done[-1], register)

    def test_refused_access(self):
        self.server.hooks[vs.REGION_READ] = lambda _, msg: vs.refuse(msg, 22)
        self.assertEqual(self.qemu.read(qemu.BAR1), 0xffffffff)
        del self.server.hooks[vs.REGION_READ]
        self.assertEqual(self.qemu.read(qemu.BAR1), 0)

    def test_command_register(self):
        self.assertEqual(self.server.command & 6, 6)
        writes = self.server.commands().count(vs.REGION_WRITE)
        self.qemu.config(4, 6, 2)
        self.assertEqual(self.server.commands().count(vs.REGION_WRITE), writes)
        self.qemu.config(4, 2, 2)
        self.assertEqual(self.server.command & 6, 2)

    def test_reset(self):
        self.qemu.enable_msix(MSI)
        resets = self.server.resets
        start = len(self.server.log)
        self.qemu.execute('system_reset')
        self.server.wait(lambda: self.server.resets > resets, 'reset')
        self.assertEqual(self.server.command, 0)
        self.assertEqual(self.server.vectors, {})
        self.assertEqual(
            [entry[0] for entry in self.server.log[start:] if entry[0] in
             (vs.SET_IRQS, vs.REGION_WRITE, vs.RESET)],
            [vs.SET_IRQS, vs.REGION_WRITE, vs.RESET])
        self.qemu.enable()
        self.assertEqual(self.qemu.read(qemu.BAR1), 0)


    def test_function_level_reset(self):
        cap = self.qemu.capability(0x10)
        self.assertTrue(self.qemu.config(cap + 4) >> 28 & 1, 'not offered')
        self.qemu.enable_msix(MSI)
        resets = self.server.resets
        self.qemu.config(cap + 8, self.qemu.config(cap + 8, size=2) | 1 << 15,
                         2)
        self.assertEqual(self.server.resets, resets + 1)
        self.assertEqual(self.server.command, 0)
        self.assertEqual(self.server.vectors, {})
        self.assertEqual(self.qemu.config(4, size=2) & 6, 0)
        self.assertFalse(self.qemu.config(cap + 8, size=2) >> 15)
        self.qemu.enable()
        self.assertEqual(self.qemu.read(qemu.BAR1), 0)


class Doorbells(Case):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        for table in (vs.DB_QP_OWNER, vs.DB_CQ_OWNER, vs.DB_SRQ_OWNER):
            self.server.db[table:table + 2 * 65536] = b'\xff' * (2 * 65536)
            self.server.set_doorbell(table + 2 * 4097, 3, 2)
        self.qemu = self.boot()
        self.qemu.enable()
        self.before = len(self.server.commands())

    def tearDown(self):
        self.assertEqual(len(self.server.commands()), self.before,
                         'a doorbell became a message')

    def bits(self, at):
        """(handles set, summary bits set) in the map at this offset."""
        found = []
        for start, count in ((at + 4096, 1024), (at, 16)):
            words = struct.unpack_from('<%dQ' % count, self.server.db, start)
            found.append([64 * i + b for i, word in enumerate(words) if word
                          for b in range(64) if word >> b & 1])
        return tuple(found)

    def bad(self):
        return self.server.doorbell(vs.DB_BAD)

    def test_send_and_receive(self):
        for bits, where in ((SEND, vs.DB_SEND), (RECV, vs.DB_RECV)):
            self.qemu.write(UAR, bits | 65535)
            self.qemu.write(UAR + 3 * PAGE, bits | 4097)
            self.assertEqual(self.bits(where), ([4097, 65535], [64, 1023]))
        self.assertEqual(self.bits(vs.DB_SRQ), ([], []))
        self.assertEqual(self.bad(), 0)

    def test_send_and_receive_at_once(self):
        self.qemu.write(UAR, SEND | RECV | 7)
        self.assertEqual(self.bits(vs.DB_SEND), ([7], [0]))
        self.assertEqual(self.bits(vs.DB_RECV), ([7], [0]))

    def test_srq(self):
        self.qemu.write(UAR + 8, SEND | 64)
        self.assertEqual(self.bits(vs.DB_SRQ), ([64], [1]))
        self.qemu.write(UAR + 8, 65)
        self.assertEqual(self.bits(vs.DB_SRQ), ([64], [1]))

    def test_kick_only_when_asked_for(self):
        for addr, value in ((UAR, SEND | 1), (UAR, RECV | 1),
                            (UAR + 8, SEND | 1)):
            self.server.set_doorbell(vs.DB_KICK, 0, 4)
            self.qemu.write(addr, value)
            self.assertEqual(self.server.kicks(), 0)
            self.server.set_doorbell(vs.DB_KICK, 1, 4)
            self.qemu.write(addr, value)
            self.assertEqual(self.server.kicks(), 1)

    def test_full_eventfd_does_not_block(self):
        os.set_blocking(self.server.kick_fd, True)
        os.eventfd_write(self.server.kick_fd, (1 << 64) - 2)
        self.server.set_doorbell(vs.DB_KICK, 1, 4)
        self.qemu.write(UAR, SEND | 1)
        self.assertEqual(self.bits(vs.DB_SEND), ([1], [0]))

    def test_arm(self):
        at = vs.DB_ARM + 4 * 4097
        self.server.set_doorbell(vs.DB_KICK, 1, 4)
        for value, before, after in (
                (ARM, 0, 1), (ARM, 2, 1), (ARM, 1, 1), (ARM_SOLICITED, 0, 2),
                (ARM_SOLICITED, 1, 1), (ARM_SOLICITED, 2, 2),
                (ARM | ARM_SOLICITED, 0, 1), (POLL, 0, 0), (POLL, 2, 2)):
            self.server.set_doorbell(at, before, 4)
            self.qemu.write(UAR + 3 * PAGE + 4, value | 4097)
            self.assertEqual(self.server.doorbell(at, 4), after)
        self.assertEqual(self.server.kicks(), 0)
        self.assertEqual(self.bad(), 0)

    def test_foreign_page(self):
        for offset in (0, 4, 8):
            for page in (1, 2, 4, 511):
                bad = self.bad()
                self.qemu.write(UAR + page * PAGE + offset,
                                SEND | ARM | 4097)
                self.assertEqual(self.bad(), bad + 1)
                # A handle without an owner.
                self.qemu.write(UAR + page * PAGE + offset, SEND | ARM | 5)
                self.assertEqual(self.bad(), bad + 2)
        self.nothing_set()

    def test_impossible_handles(self):
        for offset in (0, 4, 8):
            for handle in (65536, 0xffffff):
                bad = self.bad()
                self.qemu.write(UAR + offset, SEND | ARM | handle)
                self.assertEqual(self.bad(), bad + 1)
        self.nothing_set()

    def test_unknown_registers(self):
        for offset in (12, 16, PAGE - 4):
            bad = self.bad()
            self.qemu.write(UAR + offset, SEND | 1)
            self.assertEqual(self.bad(), bad + 1)
        self.nothing_set()

    def nothing_set(self):
        for where in (vs.DB_SEND, vs.DB_RECV, vs.DB_SRQ):
            self.assertEqual(self.bits(where), ([], []))
        self.assertFalse(any(self.server.db[vs.DB_ARM:vs.DB_QP_OWNER]))

    def test_writes_are_counted(self):
        for value in (SEND, POLL, ARM):
            self.qemu.write(UAR + 4, value | 1)
        self.assertEqual(self.server.doorbell(vs.DB_WRITES), 3)

    def test_reads(self):
        self.assertEqual(self.qemu.read(UAR), 0)
        self.assertEqual(self.qemu.read(UAR + (2 << 20) - 4), 0)


class DoorbellMessages(Case):
    """A daemon without the doorbell region gets messages without reply."""

    def test_posted(self):
        server = self.serve(doorbells=False)
        machine = self.boot()
        machine.enable()
        start = len(server.log)
        machine.write(UAR + 5 * PAGE, SEND | 9)
        machine.write(UAR + 4, POLL | 9)
        machine.write(UAR + 4, ARM | 9)
        machine.read(qemu.BAR1)
        got = server.log[start:]
        self.assertEqual([entry[:2] for entry in got], [
            (vs.REGION_WRITE, vs.NO_REPLY), (vs.REGION_WRITE, vs.NO_REPLY),
            (vs.REGION_READ, 0)])
        self.assertEqual([entry[2] for entry in got[:2]], [
            vs.ACCESS.pack(5 * PAGE, 2, 4) + struct.pack('<I', SEND | 9),
            vs.ACCESS.pack(4, 2, 4) + struct.pack('<I', ARM | 9)])

    def test_foreign_region_9_is_not_used(self):
        server = self.serve()

        def other(srv, msg):
            if struct.unpack_from('<III', msg.body)[2] != vs.DB_INDEX:
                return vs.DEFAULT
            return (vs.region_reply(msg, vs.DB_SIZE, 7, vs.type_cap(subtype=2)),
                    [srv.db_fd])
        server.hooks[vs.REGION_INFO] = other
        machine = self.boot()
        machine.enable()
        machine.write(UAR, SEND | 9)
        machine.read(qemu.BAR1)
        self.assertEqual(server.log[-2][:2], (vs.REGION_WRITE, vs.NO_REPLY))
        self.assertEqual(server.doorbell(vs.DB_WRITES), 0)


class Memory(Case):
    def test_ram(self):
        server = self.serve()
        machine = self.boot()
        machine.write_bytes(0x200000, b'through the descriptor')
        self.assertEqual(server.guest_memory(0x200000, 22),
                         b'through the descriptor')
        size, flags, offset, _ = server.maps[0x100000]
        self.assertEqual((size, flags, offset), (15 << 20, 3, 1 << 20))

    def test_backend_with_offset(self):
        server = self.serve()
        path = os.path.join(self.dir, 'ram')
        with open(path, 'wb') as stream:
            stream.truncate(20 << 20)
        machine = self.boot(memory=[
            '-object', 'memory-backend-file,id=mem,size=16M,share=on,'
            'offset=4M,mem-path=' + path, '-machine', 'memory-backend=mem'])
        machine.write_bytes(0x200000, b'behind an offset')
        self.assertEqual(server.guest_memory(0x200000, 16),
                         b'behind an offset')
        self.assertEqual(server.maps[0x100000][2], 5 << 20)

    def test_shadowed_rom_is_read_only(self):
        server = self.serve()
        machine = self.boot()
        # PAM0 of the q35 host bridge, bits 5:4: 0xf0000 reads, writes RAM.
        machine.config(0x90, 0x10, 1, devfn=0)
        self.assertEqual(server.maps[0xf0000][:2], (0x10000, 1))
        machine.config(0x90, 0x30, 1, devfn=0)
        for addr, (size, flags, _, _) in server.maps.items():
            if addr <= 0xf0000 < addr + size:
                self.assertEqual(flags, 3)
                break
        else:
            self.fail('0xf0000 is not mapped')

    def test_churn(self):
        server = self.serve()
        machine = self.boot()
        for _ in range(50):
            for value in (0x10, 0x30, 0):
                machine.config(0x90, value, 1, devfn=0)
        self.assertGreater(server.commands().count(vs.DMA_UNMAP), 50)

    def test_hot_plug(self):
        server = self.serve()
        machine = self.boot(args=['-m', '16M,slots=1,maxmem=256M'])
        machine.execute('object-add', **{
            'qom-type': 'memory-backend-memfd', 'id': 'more',
            'size': 128 << 20, 'share': True})
        before = set(server.maps)
        answer = machine.execute('device_add', driver='pc-dimm', id='dimm',
                                 memdev='more')
        self.assertNotIn('error', answer)
        addr, = set(server.maps) - before
        self.assertEqual(server.maps[addr][:3], (128 << 20, 3, 0))
        machine.write_bytes(addr, b'new')
        self.assertEqual(server.guest_memory(addr, 3), b'new')

    def test_hot_plug_of_private_memory(self):
        """Refused before it is there: nobody can refuse it later."""
        server = self.serve()
        machine = self.boot(args=['-m', '16M,slots=1,maxmem=256M'])
        machine.execute('object-add', **{
            'qom-type': 'memory-backend-ram', 'id': 'more',
            'size': 128 << 20})
        before = set(server.maps)
        answer = machine.execute('device_add', driver='pc-dimm', id='dimm',
                                 memdev='more')
        self.assertIn("'more' is not shared", answer['error']['desc'])
        self.assertEqual(set(server.maps), before)
        self.assertEqual(machine.execute('query-memory-devices')['return'], [])

    def test_memory_of_the_machine_alone(self):
        """RAM that is no memory backend's is left out, also if it is shared."""
        server = self.serve()
        machine = self.boot(args=['-machine', 'aux-ram-share=on', '-device',
                                  'VGA,vgamem_mb=1,romfile='])
        machine.config(0x10, 0xd0000000, devfn=2 << 3)
        machine.config(4, 3, 2, devfn=2 << 3)
        self.assertTrue(all(addr + m[0] <= 16 << 20
                            for addr, m in server.maps.items()))
        self.assertEqual(machine.log(), '')

    def test_nvdimm(self):
        """Needed by no buffer: a warning."""
        self.serve()
        machine = self.boot(args=[
            '-machine', 'nvdimm=on', '-m', '16M,slots=1,maxmem=256M',
            '-object', 'memory-backend-ram,id=nv,size=128M',
            '-device', 'nvdimm,memdev=nv'])
        self.assertIn("warning: pvrdma 'rdma': guest RAM 'nv'", machine.log())

    def ivshmem(self, share):
        """A BAR of memory, and pvrdma after it; its move."""
        machine = self.boot(args=[
            '-object', 'memory-backend-memfd,id=ivm,size=1M,share=' + share,
            '-device', 'ivshmem-plain,memdev=ivm,addr=7'])

        def move(addr):
            machine.config(4, 0, 2, devfn=7 << 3)
            machine.config(0x18, addr, devfn=7 << 3)
            machine.config(0x1c, 0, devfn=7 << 3)
            machine.config(4, 2, 2, devfn=7 << 3)
        return machine, move

    def test_memory_of_a_bar(self):
        server = self.serve()
        machine, move = self.ivshmem('on')
        for addr in (0xd0000000, 0xd1000000, 0xd0000000):
            move(addr)
            self.assertEqual(server.maps[addr][0], 1 << 20)
        self.assertEqual(machine.log(), '')

    def test_private_memory_of_a_bar(self):
        self.serve()
        machine, move = self.ivshmem('off')
        for addr in (0xd0000000, 0xd1000000) * 20:
            move(addr)
        self.assertEqual(machine.log().count("warning: pvrdma 'rdma': guest RAM"), 1)

    def test_refused_memory_of_a_bar(self):
        """One message, and no unmap of what was never mapped."""
        server = self.serve()
        machine, move = self.ivshmem('on')
        server.hooks[vs.DMA_MAP] = lambda _, msg: vs.refuse(msg, 1)
        unmaps = server.commands().count(vs.DMA_UNMAP)
        for addr in (0xd0000000, 0xd1000000) * 20:
            move(addr)
        self.assertEqual(machine.log().count('pvrdmad refuses'), 1)
        self.assertEqual(server.commands().count(vs.DMA_UNMAP), unmaps)
        del server.hooks[vs.DMA_MAP]
        move(0xd2000000)
        self.assertIn(0xd2000000, server.maps)

    def plug(self, machine):
        """The answer to a DIMM that QEMU can make."""
        machine.execute('object-add', **{
            'qom-type': 'memory-backend-memfd', 'id': 'more',
            'size': 128 << 20, 'share': True})
        return machine.execute('device_add', driver='pc-dimm', id='dimm',
                               memdev='more')

    def test_hot_plug_that_the_daemon_refuses(self):
        """Asked before it is there, about all of it; what was asked is undone."""
        server = self.serve()
        machine = self.boot(args=['-m', '16M,slots=1,maxmem=256M'])
        machine.enable()
        before = dict(server.maps)
        for error, text, hint in ((28, 'No space left', 'names the limit'),
                                  (1, 'not permitted', 'sealed memfd')):
            asked = []

            def no(_, msg, error=error, asked=asked):
                asked.append(struct.unpack('<IIQQQ', msg.body))
                return vs.refuse(msg, error)
            server.hooks[vs.DMA_MAP] = no
            desc = self.plug(machine)['error']['desc']
            self.assertIn("refuses memory 'more' of 134217728 bytes", desc)
            self.assertIn(text, desc)
            self.assertEqual(asked, [(32, 3, 0, 1 << 63, 128 << 20)])
            # A hint is for people: QEMU's monitor for them prints it.
            self.assertIn(hint, machine.execute(
                'human-monitor-command', **{
                    'command-line': 'device_add pc-dimm,id=d,memdev=more'})
                ['return'])
            self.assertEqual(
                machine.execute('query-memory-devices')['return'], [])
        self.assertEqual(server.maps, before)
        del server.hooks[vs.DMA_MAP]
        self.assertNotIn('error', self.plug(machine))
        self.assertEqual(len(server.maps), len(before) + 1)
        self.assertNotIn(1 << 63, server.maps)
        self.assertEqual(machine.log(), '')

    def test_refused_later(self):
        """Nobody can object any more: it is reported, and the rest goes on."""
        server = self.serve()
        machine = self.boot(args=['-m', '16M,slots=1,maxmem=256M'])
        machine.enable()
        server.hooks[vs.DMA_MAP] = lambda _, msg: (
            vs.DEFAULT if struct.unpack('<IIQQQ', msg.body)[3] == 1 << 63
            else vs.refuse(msg, 28))
        self.assertNotIn('error', self.plug(machine))
        self.assertIn("refuses to map guest memory 'more'", machine.log())
        self.assertIn('No space left', machine.log())
        self.assertEqual(machine.read(qemu.BAR1), 0)
        self.assertTrue(machine.connected())

    def test_plug_without_daemon(self):
        """An adapter that is lost keeps no memory away."""
        server = self.serve()
        machine = self.boot(args=['-m', '16M,slots=1,maxmem=256M'])
        server.kill()
        machine.until(lambda: not machine.connected(), 'loss')
        self.assertNotIn('error', self.plug(machine))


class Interrupts(Case):
    def begin(self, **options):
        self.server = self.serve(**options)
        self.qemu = self.boot()
        self.qemu.enable()

    def fire(self, vector):
        os.eventfd_write(self.server.vectors[vector], 1)

    def arrives(self, vector):
        where = MSI + 4 * vector
        self.qemu.until(lambda: self.qemu.read(where) == 0xc0de00 + vector,
                        'interrupt %d' % vector)
        self.qemu.write(where, 0)

    def silent(self, vector):
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.qemu.read(MSI + 4 * vector), 0)

    def test_delivery(self):
        self.begin()
        self.assertEqual(self.server.vectors, {})
        self.qemu.enable_msix(MSI)
        self.assertEqual(sorted(self.server.vectors), list(range(10)))
        for vector in (2, 0, 1, 1):
            self.fire(vector)
            self.arrives(vector)

    def test_one_message_for_all_vectors(self):
        self.begin()
        before = self.server.commands().count(vs.SET_IRQS)
        self.qemu.enable_msix(MSI)
        self.assertEqual(self.server.commands().count(vs.SET_IRQS), before + 1)

    def descriptor_limit(self, limit, messages):
        self.begin(max_fds=limit)
        self.qemu.enable_msix(MSI)
        self.assertEqual([entry[3] for entry in self.server.log
                          if entry[0] == vs.SET_IRQS and entry[3]], messages)
        for vector in (0, 1, 2):
            self.fire(vector)
            self.arrives(vector)

    def test_one_descriptor_per_message(self):
        self.descriptor_limit(1, [1] * 10)

    def test_three_descriptors_per_message(self):
        self.descriptor_limit(3, [3, 3, 3, 1])

    def test_masked_then_unmasked(self):
        self.begin()
        self.qemu.enable_msix(MSI, masked=2)
        self.fire(1)
        self.silent(1)
        self.qemu.until(lambda: self.qemu.read(qemu.BAR0 + 0x800) == 2,
                        'pending bit')
        self.qemu.mask(1, False)
        self.arrives(1)
        self.assertEqual(self.qemu.read(qemu.BAR0 + 0x800), 0)
        self.silent(1)

    def test_mask_storm(self):
        self.begin()
        self.qemu.enable_msix(MSI)
        for _ in range(100):
            self.qemu.mask(2, True)
            self.fire(2)
            self.qemu.mask(2, False)
            self.arrives(2)

    def test_blocking_eventfds(self):
        """O_NONBLOCK is the daemon's to clear, the counter its to drain."""
        self.begin()
        self.qemu.enable_msix(MSI, masked=2)
        for fd in self.server.vectors.values():
            os.set_blocking(fd, True)
        self.qemu.read(qemu.BAR0 + 0x800)
        self.fire(1)
        self.qemu.mask(1, False)
        self.arrives(1)
        cap = self.qemu.capability(0x11)
        self.qemu.config(cap + 2, 0, 2)
        self.qemu.config(cap + 2, 0x8000, 2)
        self.fire(0)
        self.arrives(0)

    def test_disable(self):
        self.begin()
        self.qemu.enable_msix(MSI)
        held = os.dup(self.server.vectors[0])
        self.addCleanup(os.close, held)
        cap = self.qemu.capability(0x11)
        self.qemu.config(cap + 2, 0, 2)
        self.assertEqual(self.server.vectors, {})
        os.eventfd_write(held, 1)
        self.silent(0)
        self.qemu.config(cap + 2, 0x8000, 2)
        self.silent(0)
        self.fire(0)
        self.arrives(0)


class GuestView(Case):
    """What a guest sees is the properties', and not the daemon's."""

    def serve_other(self, bar, size):
        """A daemon with 64 vectors, and with another size of one BAR."""
        server = self.serve()
        server.hooks[vs.IRQ_INFO] = lambda _, msg: vs.reply(
            msg, struct.pack('<IIII', 16, 1, 2, 64))
        server.hooks[vs.REGION_INFO] = lambda _, msg: (
            vs.region_reply(msg, size)
            if struct.unpack_from('<III', msg.body)[2] == bar else vs.DEFAULT)
        return server

    def test_later_daemon(self):
        server = self.serve_other(1, 8 << 10)
        machine = self.boot()
        self.assertEqual(machine.config(machine.capability(0x11) + 2, size=2)
                         & 0x7ff, 9)
        machine.config(0x14, 0xffffffff)
        self.assertEqual(machine.config(0x14), 0x100000000 - (4 << 10))
        machine.config(0x18, 0xffffffff)
        self.assertEqual(machine.config(0x18), 0x100000000 - (2 << 20))
        machine.enable()
        machine.enable_msix(MSI)
        self.assertEqual(sorted(server.vectors), list(range(10)))

    def test_as_it_was(self):
        """The number of vectors before there were completion vectors."""
        server = self.serve()
        machine = self.boot(device='vectors=3')
        self.assertEqual(machine.config(machine.capability(0x11) + 2, size=2)
                         & 0x7ff, 2)
        machine.enable()
        machine.enable_msix(MSI)
        self.assertEqual(sorted(server.vectors), [0, 1, 2])

    def test_other_values(self):
        server = self.serve_other(2, 1 << 20)
        machine = self.boot(device='vectors=20,uar-size=1M,flr=off')
        self.assertEqual(machine.config(machine.capability(0x11) + 2, size=2)
                         & 0x7ff, 19)
        machine.config(0x18, 0xffffffff)
        self.assertEqual(machine.config(0x18), 0x100000000 - (1 << 20))
        cap = machine.capability(0x10)
        self.assertFalse(machine.config(cap + 4) >> 28 & 1)
        machine.enable()
        machine.enable_msix(MSI)
        self.assertEqual(sorted(server.vectors), list(range(20)))
        self.assertEqual([entry[3] for entry in server.log
                          if entry[0] == vs.SET_IRQS and entry[3]], [16, 4])

    def test_capabilities(self):
        """Which there are, and where: a guest's saved state has them."""
        self.serve()
        for machine, device, wanted in (
                ('q35', '', {0x11: 0x40, 0x10: 0x80}),
                ('q35', 'express=off', {0x11: 0x40}),
                ('pc', '', {0x11: 0x40})):
            with self.subTest(machine=machine, device=device):
                qemu_ = self.boot(machine=machine, device=device)
                found, at = {}, qemu_.config(0x34, size=1)
                while at:
                    found[qemu_.config(at, size=1)] = at
                    at = qemu_.config(at + 1, size=1)
                self.assertEqual(found, wanted)
                if 0x10 in found:
                    # Version 2, and what its function reset needs.
                    self.assertEqual(qemu_.config(0x82, size=2) & 0xf, 2)
                    self.assertTrue(qemu_.config(0x84) >> 28 & 1)
                # The table behind the BAR's start, the PBA in its second half.
                self.assertEqual((qemu_.config(0x44), qemu_.config(0x48)),
                                 (0, 0x800))
                self._judge(qemu_)

    def test_more_than_the_daemon_has(self):
        self.serve()
        for prop, text in (('vectors=35', '34 interrupt vectors, 35'),
                           ('vectors=2', "'vectors' must be"),
                           ('uar-size=4M', 'BAR2 of 2097152 bytes'),
                           # The guest would be told of all 512 pages.
                           ('uar-size=1M', 'BAR2 of 2097152 bytes'),
                           ('uar-size=3M', 'cannot have 3145728'),
                           ('regs-size=8k', 'BAR1 of 4096 bytes')):
            self.refused(text, args=['-device', 'pvrdma,addr=5.1,socket=%s,%s'
                                     % (self.sock, prop)])


class Ringer:
    """Interrupts without end from a daemon, also while the device goes."""

    def __init__(self, vectors):
        self.fds = [os.dup(fd) for fd in vectors.values()]
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.done.is_set():
            for fd in self.fds:
                os.eventfd_write(fd, 1)

    def close(self):
        self.done.set()
        self.thread.join()
        for fd in self.fds:
            os.close(fd)


class Plug(Case):
    """Plugged and unplugged while it is at work."""
    ROUNDS = 10
    AWAY = 0x1000000
    DEVFN = 6 << 3

    def setUp(self):
        super().setUp()
        self.stays = self.serve()
        self.qemu = self.boot(machine='pc', args=[
            '-m', '16M,slots=1,maxmem=256M'])
        self.qemu.enable()

    def work(self, away=0):
        """Registers, doorbells and interrupts of one adapter."""
        for i in range(20):
            self.qemu.write(UAR + away, SEND | i)
            self.qemu.write(UAR + away + 4, ARM | i)
            self.assertEqual(self.qemu.read(qemu.BAR1 + away + 0x800),
                             0x58525650 if away else 0)

    def test_adapter(self):
        self.sock += '2'
        server = self.serve()
        # Our driver's place: any, as the daemon names the interface.
        struct.pack_into('<IIII', server.registers, 0x800, 0x58525650, 0x18,
                         1, 1 << 3)
        server.set_doorbell(vs.DB_KICK, 1, 4)
        for i in range(self.ROUNDS):
            answer = self.qemu.execute('device_add', driver='pvrdma',
                                       id='plug', addr='6', socket=self.sock)
            self.assertNotIn('error', answer)
            self.qemu.enable(devfn=self.DEVFN, away=self.AWAY)
            self.qemu.enable_msix(MSI, devfn=self.DEVFN, away=self.AWAY)
            ringer = Ringer(server.vectors)
            try:
                self.work(self.AWAY)
                self.qemu.until(lambda: self.qemu.read(MSI) == 0xc0de00,
                                'interrupt')
                self.qemu.execute('device_del', id='plug')
                self.qemu.command('outl 0xae08 0x%x' % (1 << 6))
                server.wait(lambda: server.conn is None, 'end')
            finally:
                ringer.close()
            self.assertEqual(server.command, 0)
            self.assertEqual(server.connections, i + 1)
            self.assertEqual(self.qemu.config(0, devfn=self.DEVFN), 0xffffffff)
            self.qemu.write(MSI, 0)
        self.assertEqual(self.qemu.connections(), [(True, False)] * 10)
        self.work()
        self.assertEqual(self.qemu.log(), '')

    def test_memory(self):
        before = set(self.stays.maps)
        self.qemu.enable_msix(MSI)
        ringer = Ringer(self.stays.vectors)
        self.addCleanup(ringer.close)
        for i in range(self.ROUNDS):
            # Each has its own name: QEMU 10 gives a new memory the descriptor
            # of an old one of its name, and closes that a moment later.
            more = 'more%d' % i
            answer = self.qemu.execute('object-add', **{
                'qom-type': 'memory-backend-memfd', 'id': more,
                'size': 128 << 20, 'share': True})
            self.assertNotIn('error', answer)
            answer = self.qemu.execute('device_add', driver='pc-dimm',
                                       id='dimm', memdev=more)
            self.assertNotIn('error', answer)
            addr, = set(self.stays.maps) - before
            self.work()
            self.qemu.execute('device_del', id='dimm')
            # The guest's part: the slot, and its eject bit.
            self.qemu.command('outl 0xa00 0')
            self.qemu.command('outb 0xa14 8')
            self.stays.wait(lambda: addr not in self.stays.maps, 'unmap')
            self.qemu.until(lambda: 'error' not in self.qemu.execute(
                'object-del', id=more), 'end of the memory')
            self.assertEqual(set(self.stays.maps), before)
        self.work()
        self.assertEqual(self.qemu.log(), '')


class Unplug(Case):
    def test_unplug(self):
        server = self.serve()
        machine = self.boot(machine='pc')
        machine.enable()
        machine.enable_msix(MSI)
        resets = server.resets
        machine.execute('device_del', id='rdma')
        # The guest's part of ACPI hot-unplug: eject slot 5.
        machine.command('outl 0xae08 0x20')
        server.wait(lambda: server.conn is None, 'end of the connection')
        self.assertGreater(server.resets, resets)
        self.assertEqual(server.command, 0)
        self.assertEqual(machine.config(0), 0xffffffff)
        # The blocker is gone with the device.
        answer = machine.execute('migrate', uri='exec:cat >/dev/null')
        self.assertNotIn('error', answer)

    def lose_at_unplug(self):
        """A VM that is stopped, as its adapter is gone and the daemon may not be."""
        server = self.serve()
        machine = self.boot(machine='pc')
        machine.enable()
        server.hooks[vs.RESET] = lambda _, msg: vs.reply(msg, id=msg.id ^ 1)
        machine.execute('device_del', id='rdma')
        machine.command('outl 0xae08 0x20')
        machine.wait_status('paused')
        return machine

    def test_daemon_fails(self):
        """Nobody is left to tell when it has let go of guest memory: the VM
        stops, and its user decides."""
        machine = self.lose_at_unplug()
        self.assertIn('then continue the VM', machine.log())
        machine.execute('cont')
        self.assertEqual(machine.status(), 'running')

    def test_daemon_fails_and_guest_sleeps(self):
        """No wake-up continues that VM."""
        machine = self.lose_at_unplug()
        # Of this machine: PMBASE, and that it counts.
        pm = 1 << 3 | 3
        machine.config(0x40, 0x601, devfn=pm)
        machine.config(0x80, 1, 1, devfn=pm)
        machine.command(qemu.S3)
        machine.until(lambda: 'SUSPEND' in machine.happened(), 'sleep')
        self.assertEqual(machine.status(), 'paused')
        self.assertIn('error', machine.execute('system_wakeup'))
        machine.execute('cont')
        machine.wait_status('suspended')


if __name__ == '__main__':
    unittest.main()
