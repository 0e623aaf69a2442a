# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon comes back, or another does: the adapter works again once the guest has reset
it, and not before."""

import os
import re
import socket
import struct
import threading
import time
import unittest

import qemu
import vfio_server as vs
from case import ABSENT_SECONDS, Case
from test_lost import (ALL_ONES, CREATE_PD, CTL, DESTROY_QP, DSRLOW, ERR, MSI, QUERY_PORT,
                       STATE, Driver, loses)
from test_migrate import ABLE

RESET = 2
VERSION = 20
# As a client of the daemon tries again after one that did not fit.
LONG_PAUSE = 20


class Back(Driver):
    vm = {'reconnect': True}

    def another(self, **options):
        """The next daemon at the same place."""
        if os.path.exists(self.sock):
            os.unlink(self.sock)
        self.server = self.serve(**dict(self.daemon, **options))
        struct.pack_into('<I', self.server.registers, 0, VERSION)
        return self.server

    def lose(self):
        """There is no daemon, and the guest's driver knows."""
        self.driver()
        self.kill()
        self.told((0, 1), 2)

    def until_events(self, *events):
        """These PVRDMA_CONNECTIONs have come: (connected, failed)."""
        def come():
            self.qemu.status()
            self.seen = [(e['data']['connected'], e['data']['failed'])
                         for e in self.qemu.events if e['event'] == 'PVRDMA_CONNECTION']
            return len(self.seen) >= len(events)
        self.qemu.until(come, 'events', LONG_PAUSE)
        self.assertEqual(self.seen, list(events))

    def until_fresh(self):
        self.qemu.until(self.qemu.connected, 'daemon', LONG_PAUSE)
        self.assertTrue(self.qemu.property('failed'))

    def works(self):
        """Registers, doorbells, interrupts and guest memory are the new daemon's."""
        server = self.server
        self.assertTrue(self.qemu.connected())
        self.assertFalse(self.qemu.property('failed'))
        self.assertEqual(self.qemu.status(), 'running')
        for each in range(3):
            self.qemu.write(MSI + 4 * each, 0)
        self.qemu.write(STATE + 8, 0)
        self.driver()
        self.assertEqual(self.qemu.read(qemu.BAR1), VERSION)
        self.qemu.write(qemu.BAR1 + 0x40, 0x1234)
        self.assertEqual(struct.unpack_from('<I', server.registers, 0x40)[0], 0x1234)
        self.assertEqual(server.command & 6, 6)
        self.qemu.write(qemu.BAR2, 1 << 30 | 3)
        self.assertEqual(server.doorbell(vs.DB_SEND + 0x1000), 1 << 3)
        os.eventfd_write(server.vectors[2], 1)
        self.qemu.until(lambda: self.qemu.read(MSI + 8) == 0xc0de02, 'interrupt')
        self.qemu.write_bytes(0x280000, b'anew')
        self.assertEqual(server.guest_memory(0x280000, 4), b'anew')

    def registers_of(self, server):
        """What became of BAR1 there: (offset, data) of each write, and False for reads."""
        with server.changed:
            log = list(server.log)
        return [(offset, data if command == vs.REGION_WRITE else False)
                for command, (region, offset, data) in
                ((entry[0], vs.Message(vs.HEADER.pack(0, 0, 0, 0, 0), entry[2],
                                       []).access())
                 for entry in log if entry[0] in (vs.REGION_READ, vs.REGION_WRITE))
                if region == 1]


class Found(Back):
    def test_reset_by_the_driver(self):
        maps = {addr: part[:3] for addr, part in self.server.maps.items()}
        self.lose()
        server = self.another()
        self.until_fresh()
        self.assertEqual({addr: part[:3] for addr, part in server.maps.items()}, maps)
        self.assertEqual(len(server.vectors), 10)
        self.assertEqual(server.command, 6)
        # The driver takes down what it had; nothing of that is the new daemon's.
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.assertEqual(self.run_command(DESTROY_QP)[0], 0)
        self.assertEqual(self.run_command(QUERY_PORT)[0], 0)
        self.assertEqual(self.run_command(CREATE_PD)[0], ALL_ONES)
        self.qemu.write(qemu.BAR1 + CTL, 1)
        self.qemu.write(qemu.BAR2, 1 << 30)
        self.assertEqual(self.qemu.read(qemu.BAR1 + ERR), ALL_ONES)
        self.assertEqual(self.registers_of(server), [
            (offset, False) for offset, _ in self.registers_of(server)])
        self.assertEqual(server.doorbell(vs.DB_WRITES), 0)
        # Until it resets the device.
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.assertEqual(self.registers_of(server)[-1], (CTL, struct.pack('<I', RESET)))
        self.until_events((False, True), (True, True), (True, False))
        self.works()
        # Nobody was told again of the old daemon's end.
        self.assertEqual(self.qemu.read(STATE + 8), 0)
        self.assertIn('when the guest has reset it', self.qemu.log())

    def test_reset_while_there_is_none(self):
        self.lose()
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.another()
        self.until_events((False, True), (True, False))
        self.works()

    def test_driver_begins_while_there_is_none(self):
        """The next access finds one."""
        self.lose()
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.qemu.write(qemu.BAR1 + DSRLOW, 0x7000)
        server = self.another()
        self.until_events((False, True), (True, False))
        server.wait(lambda: struct.unpack_from('<I', server.registers, DSRLOW) ==
                    (0x7000,), 'address')
        self.works()

    def test_driver_begins_without_a_reset(self):
        """One that was put out of action, as a kernel before kexec."""
        self.lose()
        server = self.another()
        self.until_fresh()
        self.qemu.write(qemu.BAR1 + DSRLOW, 0x7000)
        self.assertEqual(struct.unpack_from('<I', server.registers, DSRLOW), (0x7000,))
        self.works()

    def test_never_used(self):
        """No driver: nobody has to reset anything."""
        self.kill()
        self.another()
        self.until_events((False, True), (True, False))
        self.works()

    def test_machine_reset(self):
        self.lose()
        self.another()
        self.until_fresh()
        self.qemu.execute('system_reset')
        self.until_events((False, True), (True, True), (True, False))
        self.assertEqual(self.server.command, 0)
        self.assertEqual(self.server.vectors, {})
        self.qemu.enable()
        self.works()

    def test_machine_reset_while_there_is_none(self):
        self.lose()
        self.qemu.execute('system_reset')
        self.another()
        self.until_events((False, True), (True, False))
        self.qemu.enable()
        self.works()

    def test_function_reset(self):
        self.lose()
        self.another()
        self.until_fresh()
        cap = self.qemu.capability(0x10)
        self.qemu.config(cap + 8, self.qemu.config(cap + 8, size=2) | 1 << 15, 2)
        self.assertFalse(self.qemu.property('failed'))
        self.qemu.enable()
        self.works()

    def test_while_stopped(self):
        self.lose()
        self.qemu.execute('stop')
        self.another()
        self.until_fresh()
        self.qemu.execute('cont')
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.works()

    def test_doorbells_by_message(self):
        """Another kind of daemon: without the region."""
        self.lose()
        server = self.another(doorbells=False)
        self.until_fresh()
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.qemu.write(qemu.BAR2, 1 << 30 | 3)
        server.wait(lambda: any(
            entry[0] == vs.REGION_WRITE and entry[2][8:12] == b'\2\0\0\0'
            for entry in server.log), 'doorbell')

    def test_many_times(self):
        """Nothing is left of any."""
        fds = '/proc/%d/fd' % self.qemu.process.pid
        before = len(os.listdir(fds))
        for _ in range(3):
            self.driver()
            self.kill()
            # The log tells of an earlier one.
            self.qemu.until(lambda: self.qemu.property('failed'), 'loss')
            self.another()
            self.until_fresh()
            self.qemu.write(qemu.BAR1 + CTL, RESET)
            self.works()
        self.assertEqual(len(os.listdir(fds)), before)

    def test_not_wanted(self):
        self.server.kill()
        self.sock += '2'
        self.server = self.serve()
        self.qemu.close()
        self.qemu = self.boot(device='reconnect=off', reconnect=True)
        self.kill()
        server = self.another()
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(server.connections, 0)
        self.assertIn('until the VM is started again', self.qemu.log())

    def test_descriptor(self):
        """What others have connected only they can connect again."""
        self.server.kill()
        self.sock += '2'
        self.server = self.serve()
        self.qemu.close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.sock)
            self.qemu = self.boot(reconnect=True, fds=[client.fileno()], socket_json={
                'type': 'fd', 'str': str(client.fileno())})
        self.kill()
        self.assertIn('until the VM is started again', self.qemu.log())


class Unfit(Back):
    """What answers is no daemon for this VM, or ends in the middle."""

    def refuses(self, *hooks, text, **options):
        server = self.another(hooks=dict(hooks), **options)
        self.qemu.until(lambda: text in self.qemu.log(), text, LONG_PAUSE)
        self.assertFalse(self.qemu.connected())
        self.assertEqual(self.qemu.status(), 'running')
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        server.wait(lambda: server.conn is None, 'end of the connection')
        self.server.kill()

    def recovers(self):
        self.another()
        self.until_fresh()
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.works()

    def test_other_version(self):
        self.lose()
        self.refuses((vs.VERSION, lambda _, msg: vs.reply(
            msg, struct.pack('<HH', 1, 0) + b'{}\0')), text='wrong protocol version')
        self.recovers()

    def test_fewer_interrupts(self):
        self.lose()
        self.refuses((vs.IRQ_INFO, lambda _, msg: vs.reply(
            msg, struct.pack('<IIII', 16, 1, 2, 9))), text='9 interrupt vectors')
        self.recovers()

    def test_other_bar(self):
        self.lose()
        self.refuses((vs.REGION_INFO, lambda _, msg: vs.region_reply(
            msg, 4 << 20 if struct.unpack_from('<III', msg.body)[2] == 2 else 4096)),
            text='BAR2 of 4194304 bytes')
        self.recovers()

    def test_memory_refused(self):
        self.lose()
        self.refuses((vs.DMA_MAP, lambda _, msg: vs.refuse(msg, 1)),
                     text='refuses to map guest memory')
        self.recovers()

    def test_malformed(self):
        self.lose()
        self.refuses((vs.GET_INFO, lambda _, msg: vs.reply(msg, b'x')), text='short reply')
        self.recovers()

    def test_ends_at_each_message(self):
        """As a daemon that crashes again."""
        self.lose()
        for command in (vs.GET_INFO, vs.REGION_INFO, vs.IO_FDS, vs.DMA_MAP, vs.SET_IRQS):
            server = self.another(hooks={command: lambda _, msg: vs.CLOSE})
            server.wait(lambda: command in [entry[0] for entry in server.log], 'message',
                        LONG_PAUSE)
            server.kill()
            self.assertEqual(self.qemu.status(), 'running')
        self.recovers()
        self.assertEqual(self.qemu.read(STATE + 8), 0)

    def test_told_once(self):
        self.lose()
        server = self.another(hooks={vs.REGION_READ: lambda _, msg: vs.refuse(msg, 95)})
        # The second has been refused then.
        server.wait(lambda: server.connections >= 3, 'third attempt', LONG_PAUSE)
        self.assertEqual(self.qemu.log().count('there is another pvrdmad'), 1)

    def test_pauses(self):
        """They differ from one QEMU to the next: all lose a daemon at once."""
        def pauses():
            return [int(ms) for ms in re.findall(r'pvrdma_reconnect_pause \S+: (\d+) ms',
                                                 self.qemu.log())]
        self.qemu.execute('trace-event-set-state', name='pvrdma_reconnect_pause',
                          enable=True)
        self.lose()
        self.qemu.until(lambda: len(pauses()) >= 6, 'attempts', LONG_PAUSE)
        schedule = (100, 200, 400, 800, 1600, 2000)
        for ms, middle in zip(pauses(), schedule):
            self.assertLessEqual(abs(ms - middle), middle / 4)
        self.assertNotEqual(tuple(pauses()[:6]), schedule)

    def test_no_answer(self):
        """Nobody waits for it, neither the guest nor the monitor."""
        self.lose()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        server = self.another(hooks={
            vs.VERSION: lambda srv, msg: go_on.wait(60) and vs.SILENT})
        self.qemu.until(server.commands, 'VERSION')
        begin = time.monotonic()
        for _ in range(50):
            self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
            self.assertEqual(self.qemu.status(), 'running')
        self.assertLess(time.monotonic() - begin, 4)
        self.qemu.until(lambda: 'no answer from pvrdmad within' in self.qemu.log(),
                        'end of the wait', LONG_PAUSE)
        go_on.set()
        server.kill()
        self.recovers()

    def test_ends_before_the_guest_uses_it(self):
        self.lose()
        self.another()
        self.until_fresh()
        self.server.kill()
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.assertEqual(self.qemu.read(STATE + 8), 2)
        self.recovers()

    def test_fails_before_the_guest_uses_it(self):
        """It has had no memory to write to: the VM need not wait for its end."""
        self.lose()
        server = self.another()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.until_fresh()
        server.hooks[vs.SET_IRQS] = loses(go_on)
        self.qemu.config(self.qemu.capability(0x11) + 2, 0, 2)
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.qemu.status(), 'running')
        self.assertNotIn('STOP', self.qemu.happened())
        go_on.set()
        server.kill()
        self.recovers()

    def test_fails_when_it_is_used(self):
        """From there on it is a daemon like any."""
        self.lose()
        server = self.another()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.until_fresh()
        server.hooks[vs.REGION_WRITE] = loses(go_on)
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.qemu.wait_status('paused')
        go_on.set()
        server.kill()
        self.qemu.wait_status('running')
        self.another()
        self.qemu.until(self.qemu.connected, 'daemon', LONG_PAUSE)
        self.works()

    def test_held_before(self):
        """The VM was stopped because the old daemon did not answer."""
        self.driver()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        old = self.server
        old.hooks[vs.REGION_READ] = loses(go_on)
        self.qemu.read(qemu.BAR1)
        self.qemu.wait_status('paused')
        self.another()
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.server.connections, 0)
        go_on.set()
        self.qemu.wait_status('running')
        self.until_fresh()
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.works()
        old.kill()


class Unplug(Back):
    """At each stage."""
    vm = dict(Back.vm, machine='pc')

    def unplug(self):
        self.qemu.execute('device_del', id='rdma')
        self.qemu.command('outl 0xae08 0x20')
        self.qemu.until(lambda: self.qemu.config(0) == ALL_ONES, 'end of the device')
        self.assertEqual(self.qemu.status(), 'running')
        time.sleep(ABSENT_SECONDS)

    def test_nobody_there(self):
        self.lose()
        self.unplug()

    def test_connecting(self):
        self.lose()
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        server = self.another(hooks={
            vs.VERSION: lambda srv, msg: go_on.wait(60) and vs.SILENT})
        self.qemu.until(server.commands, 'VERSION')
        self.unplug()
        go_on.set()
        server.wait(lambda: server.conn is None, 'end of the connection')

    def test_found(self):
        self.lose()
        server = self.another()
        self.until_fresh()
        self.unplug()
        server.wait(lambda: server.conn is None, 'end of the connection')
        self.assertEqual(server.connections, 1)

    def test_not_found_again(self):
        self.lose()
        self.another()
        self.until_fresh()
        self.server.kill()
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        self.unplug()


class Plugged(Back):
    """Memory that comes while there is no daemon."""
    vm = dict(Back.vm, args=['-m', '16M,slots=1,maxmem=256M'])

    def plug(self, **backend):
        name = backend['id']
        self.assertNotIn('error', self.qemu.execute('object-add', **dict(
            backend, size=128 << 20)))
        return self.qemu.execute('device_add', driver='pc-dimm', id='d' + name, memdev=name)

    def test_memory(self):
        """What no later daemon could reach is refused, what it can reach is not."""
        self.lose()
        answer = self.plug(**{'qom-type': 'memory-backend-ram', 'id': 'private'})
        self.assertIn("'private' is not shared", answer['error']['desc'])
        self.assertEqual(self.qemu.execute('query-memory-devices')['return'], [])
        self.assertNotIn('error', self.plug(**{
            'qom-type': 'memory-backend-memfd', 'id': 'more', 'share': True}))
        server = self.another()
        self.until_fresh()
        self.assertIn(128 << 20, [part[0] for part in server.maps.values()])
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.works()

    def test_next_daemon_is_asked(self):
        """By the new connection."""
        self.lose()
        server = self.another()
        self.until_fresh()
        server.hooks[vs.DMA_MAP] = lambda _, msg: vs.refuse(msg, 28)
        answer = self.plug(**{
            'qom-type': 'memory-backend-memfd', 'id': 'more', 'share': True})
        self.assertIn("refuses memory 'more'", answer['error']['desc'])


class Saved(Back):
    """Of a failed adapter nothing can be saved."""
    daemon = {'features': ABLE}

    def migrate(self):
        return self.qemu.execute('migrate', uri='exec:cat >/dev/null')

    def test_migrate(self):
        self.lose()
        self.another()
        self.until_fresh()
        self.assertIn('lost', self.migrate()['error']['desc'])
        self.qemu.execute('stop')
        self.qemu.execute('cont')
        self.qemu.write(qemu.BAR1 + CTL, RESET)
        self.works()
        self.assertNotIn('error', self.migrate())
        self.qemu.until(lambda: self.qemu.execute('query-migrate')['return'].get(
            'status') in ('completed', 'failed'), 'end of the migration')
        self.assertEqual(self.qemu.execute('query-migrate')['return']['status'],
                         'completed')
        self.assertEqual(self.server.states[-2:], [vs.STOP_COPY, vs.STOP])

    def test_stopped_in_between(self):
        """A device that was stopped when it was lost runs with the VM again."""
        self.driver()
        self.qemu.execute('stop')
        self.kill()
        self.another()
        self.until_fresh()
        self.qemu.execute('system_reset')
        self.qemu.until(lambda: not self.qemu.property('failed'), 'reset')
        self.qemu.execute('cont')
        self.qemu.wait_status('running')
        self.qemu.execute('stop')
        self.assertEqual(self.server.state, vs.STOP)
        self.qemu.execute('cont')
        self.assertEqual(self.server.state, vs.RUNNING)

    def test_cannot_migrate(self):
        """It must be able to do what the last one could."""
        self.lose()
        self.another(features=())
        self.qemu.until(lambda: 'no vfio-user feature MIGRATION' in self.qemu.log(),
                        'refusal')
        self.server.kill()
        self.another()
        self.until_fresh()

    def test_target(self):
        """The daemon restarts before the VM arrives."""
        self.server.kill()
        self.qemu.close()
        self.sock += '2'
        self.server = self.serve(**self.daemon)
        uri = 'unix:' + os.path.join(self.dir, 'migration')
        target = self.boot(reconnect=True, args=['-incoming', uri])
        self.server.kill()
        target.until(lambda: not target.connected(), 'loss')
        server = self.another()
        target.until(lambda: not target.property('failed'), 'daemon', LONG_PAUSE)
        self.sock += 'x'
        other = self.serve(**self.daemon)
        other.saved = b'all there is'
        source = self.boot()
        source.enable()
        source.execute('migrate', uri=uri)
        target.wait_status('running')
        self.assertEqual(bytes(server.loaded), other.saved)
        self.assertEqual(server.state, vs.RUNNING)


if __name__ == '__main__':
    unittest.main()
