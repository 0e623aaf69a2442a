# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon goes away: what the guest sees of its adapter, and QEMU of it."""

import os
import signal
import socket
import struct
import threading
import time
import unittest

import qemu
import vfio_server as vs
from case import ABSENT_SECONDS, Case

DSR, CMD, RESP, PDIR, TABLE, STATE, EVENTS = (
    0x200000 + 0x1000 * i for i in range(7))
MSI = 0x300000

DSRLOW, DSRHIGH, CTL, REQUEST, ERR = 4, 8, 0xc, 0x10, 0x14
PORT_ERR, DEVICE_FATAL = 10, 8
QUERY_PORT, QUERY_PKEY, CREATE_PD, DESTROY_QP = 0, 1, 2, 12
ALL_ONES = 0xffffffff


class Driver(Case):
    """A driver, as far as QEMU sees of it when the daemon is gone."""
    daemon, vm = {}, {}  # options

    def setUp(self):
        super().setUp()
        self.server = self.serve(**self.daemon)
        self.qemu = self.boot(**self.vm)
        self.qemu.enable()

    def driver(self, pages=4, tail=0, head=0, dsr=DSR):
        """What the guest's driver does: shared region, rings, interrupts."""
        guest = self.qemu
        region = bytearray(280)
        struct.pack_into('<QQ', region, 16, CMD, RESP)
        struct.pack_into('<IIQ', region, 32, pages, 0, PDIR)
        struct.pack_into('<I', region, 72 + 192, 77)
        struct.pack_into('<H', region, 72 + 196, 1)
        guest.write_bytes(DSR, bytes(region))
        guest.write(PDIR, TABLE, 8)
        for i in range(4):
            guest.write(TABLE + 8 * i, STATE + 0x1000 * i, 8)
        guest.write(STATE + 8, tail)
        guest.write(STATE + 12, head)
        guest.enable_msix(MSI)
        guest.write(qemu.BAR1 + DSRLOW, dsr & ALL_ONES)
        guest.write(qemu.BAR1 + DSRHIGH, dsr >> 32)

    def kill(self):
        self.server.kill()
        self.qemu.until(lambda: 'lost the connection' in self.qemu.log(),
                        'message')

    def event(self, slot):
        return struct.unpack('<II', self.qemu.read_bytes(EVENTS + 8 * slot, 8))

    def told(self, slots, tail):
        """Both events are in these slots, and vector 1 fired."""
        self.qemu.until(lambda: self.qemu.read(MSI + 4) == 0xc0de01,
                        'interrupt')
        self.assertEqual(self.qemu.read(STATE + 8), tail)
        self.assertEqual([self.event(slot) for slot in slots],
                         [(PORT_ERR, 1), (DEVICE_FATAL, 1)])
        self.assertEqual(self.qemu.read(MSI), 0)
        self.assertEqual(self.qemu.read(MSI + 8), 0)

    def not_told(self):
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.qemu.read(MSI + 4), 0)
        self.assertEqual(self.qemu.status(), 'running')

    def run_command(self, number):
        """Returns the ERR register and the response slot."""
        self.qemu.write_bytes(RESP, bytes(64))
        self.qemu.write_bytes(CMD, struct.pack('<QIIQ', 0x1122334455667788,
                                               number, 0, 1))
        self.qemu.write(qemu.BAR1 + REQUEST, 0)
        return (self.qemu.read(qemu.BAR1 + ERR),
                self.qemu.read_bytes(RESP, 64))


class Lost(Driver):
    # -- without a driver ---------------------------------------------------------

    def test_registers_read_all_ones(self):
        self.kill()
        for register in (0, 4, ERR, 0x24, 0xffc):
            self.assertEqual(self.qemu.read(qemu.BAR1 + register), ALL_ONES)
        self.assertEqual(self.qemu.read(qemu.BAR2), ALL_ONES)
        self.qemu.write(qemu.BAR1 + CTL, 0)
        self.qemu.write(qemu.BAR2, 1 << 30)
        self.assertEqual(self.qemu.read(qemu.BAR1 + ERR), ALL_ONES)

    def test_vm_goes_on(self):
        self.kill()
        self.assertEqual(self.qemu.status(), 'running')
        self.assertNotIn('is stopped', self.qemu.log())
        self.qemu.execute('system_reset')
        self.qemu.enable()
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.qemu.config(0x90, 0x10, 1, devfn=0)
        self.qemu.write_bytes(0x200000, b'alive')
        self.assertEqual(self.qemu.read_bytes(0x200000, 5), b'alive')

    # -- with one -------------------------------------------------------------------

    def test_events(self):
        self.driver()
        self.assertTrue(self.qemu.connected())
        self.kill()
        self.told((0, 1), 2)
        self.assertFalse(self.qemu.connected())
        self.assertEqual(self.qemu.connections(), [(False, False)])
        data = self.qemu.events[-1]['data']
        self.assertEqual((data['id'], data['qom-path']),
                         ('rdma', '/machine/peripheral/rdma'))
        self.assertIn('closed the connection', data['reason'])

    def test_events_while_the_guest_waits(self):
        """The connection ends in the middle of a register access."""
        self.driver()
        self.server.hooks[vs.REGION_READ] = lambda _, msg: vs.CLOSE
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.told((0, 1), 2)
        self.assertNotIn('is stopped', self.qemu.log())

    def test_events_wrap(self):
        """1536 slots in power-of-two arithmetic: indices end at 1023, and
        their low nine bits are the slot."""
        self.driver(tail=1023, head=1020)
        self.kill()
        self.told((511, 0), 1)

    def test_ring_full(self):
        self.driver(tail=512, head=0)
        self.kill()
        self.not_told()
        self.assertEqual(self.qemu.read(STATE + 8), 512)

    def nonsense(self, **ring):
        self.driver(**ring)
        self.kill()
        self.not_told()

    def test_impossible_producer(self):
        self.nonsense(tail=ALL_ONES)

    def test_impossible_consumer(self):
        self.nonsense(head=ALL_ONES)

    def test_index_in_the_gap(self):
        """Bit 10 is never set by the odd arithmetic."""
        self.nonsense(tail=0x400)

    def test_too_many_pages(self):
        self.nonsense(pages=1 << 31)

    def test_no_pages(self):
        self.nonsense(pages=1)

    def test_shared_region_outside_of_memory(self):
        self.nonsense(dsr=1 << 52)

    def test_rings_in_the_device_itself(self):
        """Guest-made addresses reach memory only, no registers."""
        self.driver()
        self.qemu.write(TABLE, qemu.BAR1, 8)
        self.qemu.write(TABLE + 8, qemu.BAR0, 8)
        self.kill()
        self.not_told()

    def test_no_bus_master(self):
        self.driver()
        self.qemu.config(4, 2, 2)
        self.kill()
        self.not_told()
        self.assertEqual(self.qemu.read(STATE + 8), 0)

    def test_driver_gone_before(self):
        self.driver()
        self.qemu.write(qemu.BAR1 + CTL, 2)
        self.kill()
        self.not_told()
        self.assertEqual(self.qemu.read(STATE + 8), 0)

    def test_port_is_down(self):
        self.driver()
        self.kill()
        self.told((0, 1), 2)
        err, response = self.run_command(QUERY_PORT)
        self.assertEqual(err, 0)
        self.assertEqual(struct.unpack_from('<QI', response),
                         (0x1122334455667788, 0x80000000))
        self.assertEqual(struct.unpack_from('<IIII', response, 16)[0::3],
                         (1, 77))
        self.assertEqual(response[16 + 45], 3)
        self.qemu.until(lambda: self.qemu.read(MSI) == 0xc0de00, 'response')

    def test_pkey(self):
        self.driver()
        self.kill()
        err, response = self.run_command(QUERY_PKEY)
        self.assertEqual(err, 0)
        self.assertEqual(struct.unpack_from('<I', response, 8)[0], 0x80000001)
        self.assertEqual(struct.unpack_from('<H', response, 16)[0], 0xffff)

    def test_other_commands(self):
        """Objects can be destroyed, which is silent, and nothing else."""
        self.driver()
        self.kill()
        self.told((0, 1), 2)
        for number in range(24):
            if number in (QUERY_PORT, QUERY_PKEY):
                continue
            err, response = self.run_command(number)
            destroys = number in (3, 5, 8, 12, 14, 16, 20)
            self.assertEqual(err, 0 if destroys else ALL_ONES, number)
            self.assertEqual(response, bytes(64))
        self.assertEqual(self.qemu.read(MSI), 0)

    def test_link_does_not_come_back(self):
        self.driver()
        self.kill()
        self.assertEqual(self.run_command(DESTROY_QP)[0], 0)
        self.qemu.write(qemu.BAR1 + CTL, 1)
        self.assertEqual(self.qemu.read(qemu.BAR1 + ERR), ALL_ONES)

    def test_driver_reloaded(self):
        self.driver()
        self.kill()
        self.qemu.write(qemu.BAR1 + CTL, 2)
        self.driver()
        self.assertEqual(self.run_command(QUERY_PORT)[0], ALL_ONES)
        self.assertEqual(self.run_command(DESTROY_QP)[0], ALL_ONES)


def loses(go_on):
    """A hook that loses the connection at once, and not after the client's timeout;
    the daemon's end stays open until @go_on."""
    def hook(server, msg):
        server.conn.sendall(vs.reply(msg, id=msg.id ^ 1))
        go_on.wait(60)
        return vs.SILENT
    return hook


class Stalled(Driver):
    """The connection is lost, but the daemon's end of it is not closed."""

    def setUp(self):
        super().setUp()
        self.go_on = threading.Event()
        self.addCleanup(self.go_on.set)
        self.broken = loses(self.go_on)
        self.driver()

    def silent(self, _server, _msg):
        self.assertTrue(self.go_on.wait(60))
        return vs.DEFAULT

    def lose(self):
        self.server.hooks[vs.REGION_READ] = self.broken
        self.qemu.read(qemu.BAR1)
        self.qemu.wait_status('paused')

    def not_told(self):
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.qemu.read(MSI + 4), 0)
        self.assertEqual(self.qemu.read(STATE + 8), 0)
        self.assertEqual(self.run_command(DESTROY_QP)[0], ALL_ONES)
        self.assertIn('pvrdmad may still write', self.qemu.log())
        self.assertNotIn('lost the connection', self.qemu.log())

    def test_no_answer(self):
        self.server.hooks[vs.REGION_READ] = self.silent
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)
        self.qemu.wait_status('paused')
        self.not_told()
        self.assertEqual(self.qemu.connections(), [(False, True)])
        self.go_on.set()
        self.told((0, 1), 2)
        self.qemu.wait_status('running')
        self.assertEqual(self.qemu.connections(), [(False, True),
                                                   (False, False)])
        self.assertIn('lost the connection to pvrdmad: no answer',
                      self.qemu.log())
        self.assertEqual(self.run_command(DESTROY_QP)[0], 0)

    def test_cont_has_no_effect(self):
        self.lose()
        for _ in range(3):
            self.qemu.execute('cont')
            self.assertEqual(self.qemu.status(), 'paused')
        self.not_told()
        self.go_on.set()
        self.told((0, 1), 2)
        self.qemu.wait_status('running')

    def test_daemon_is_killed(self):
        self.lose()
        self.server.conn.shutdown(socket.SHUT_RDWR)
        self.told((0, 1), 2)
        self.qemu.wait_status('running')

    def test_stopped_by_the_user_before(self):
        self.server.hooks[vs.REGION_READ] = self.broken
        self.qemu.execute('stop')
        self.qemu.read(qemu.BAR1)
        self.not_told()
        self.go_on.set()
        self.told((0, 1), 2)
        self.assertEqual(self.qemu.status(), 'paused')
        self.qemu.execute('cont')
        self.assertEqual(self.qemu.status(), 'running')

    def test_stopped_by_the_user_meanwhile(self):
        """QEMU itself forgets such a stop."""
        self.lose()
        self.qemu.execute('stop')
        self.go_on.set()
        self.told((0, 1), 2)
        self.qemu.until(lambda: 'stays stopped' in self.qemu.log(), 'message')
        time.sleep(ABSENT_SECONDS)
        self.assertEqual(self.qemu.status(), 'paused')
        self.qemu.execute('cont')
        self.assertEqual(self.qemu.status(), 'running')

    def test_continued_after_a_stop_meanwhile(self):
        """The last word counts."""
        self.lose()
        self.qemu.execute('stop')
        self.qemu.execute('cont')
        self.assertEqual(self.qemu.status(), 'paused')
        self.go_on.set()
        self.qemu.wait_status('running')

    def test_reset_meanwhile(self):
        self.lose()
        self.qemu.execute('system_reset')
        self.qemu.wait_status('prelaunch')
        self.go_on.set()
        self.qemu.until(lambda: 'stays stopped' in self.qemu.log(), 'message')
        self.assertEqual(self.qemu.status(), 'prelaunch')

    def allow_sleep(self):
        """PMBASE, and that it counts."""
        lpc = 0x1f << 3
        self.qemu.config(0x40, 0x601, devfn=lpc)
        self.qemu.config(0x44, 0x80, 1, devfn=lpc)

    def ask_for_sleep(self):
        self.allow_sleep()
        self.qemu.command(qemu.S3)

    def sleep(self):
        self.ask_for_sleep()
        self.qemu.wait_status('suspended')

    def sleep_on(self):
        """A sleep that was asked for in vain, or was it?"""
        self.ask_for_sleep()
        self.qemu.until(lambda: 'SUSPEND' in self.qemu.happened(), 'sleep')
        self.assertEqual(self.qemu.status(), 'paused')
        self.assertIn('error', self.qemu.execute('system_wakeup'))

    def test_suspended_meanwhile(self):
        """As one vCPU may ask while another waits for the daemon."""
        self.lose()
        self.sleep_on()
        self.not_told()
        self.go_on.set()
        self.told((0, 1), 2)
        self.qemu.wait_status('suspended')
        self.qemu.execute('system_wakeup')
        self.qemu.wait_status('running')

    def test_suspended_when_let_go(self):
        """In the same turn of QEMU's main loop, so that nobody holds the VM any
        more, but it does not run yet."""
        self.lose()
        self.allow_sleep()
        pid = self.qemu.process.pid
        os.kill(pid, signal.SIGSTOP)
        self.server.conn.shutdown(socket.SHUT_RDWR)
        # What comes after a long command finds that the daemon is gone.
        self.qemu.qtest.sendall(b'read 0x100000 0x800000\n')
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.004)
        self.qemu.qtest.sendall(qemu.S3.encode() + b'\n')
        for _ in range(2):
            self.qemu.qtest_file.readline()
        self.qemu.until(lambda: 'SUSPEND' in self.qemu.happened(), 'sleep')
        self.qemu.wait_status('suspended')
        self.qemu.until(lambda: 'RESUME' in self.qemu.happened(), 'end of the stop')
        self.assertNotIn('another stop', self.qemu.log())
        self.qemu.execute('system_wakeup')
        self.qemu.wait_status('running')

    def test_suspended_and_stopped_meanwhile(self):
        """The user's stop is not forgotten for that."""
        self.lose()
        self.qemu.execute('stop')
        self.sleep_on()
        self.go_on.set()
        self.qemu.until(lambda: 'stays stopped' in self.qemu.log(), 'message')
        self.assertEqual(self.qemu.status(), 'paused')
        self.qemu.execute('cont')
        self.qemu.wait_status('suspended')

    def test_suspended_after_a_stop(self):
        """Nor is one from before."""
        self.server.hooks[vs.REGION_READ] = self.broken
        self.qemu.execute('stop')
        self.qemu.read(qemu.BAR1)
        self.sleep_on()
        self.go_on.set()
        self.told((0, 1), 2)
        self.assertEqual(self.qemu.status(), 'paused')
        self.qemu.execute('cont')
        self.qemu.wait_status('suspended')

    def test_suspended(self):
        """A guest that sleeps is paused, and sleeps on."""
        self.server.hooks[vs.REGION_READ] = self.broken
        self.sleep()
        self.qemu.read(qemu.BAR1)
        self.qemu.wait_status('paused')
        self.qemu.execute('cont')
        self.qemu.wait_status('paused')
        self.go_on.set()
        self.told((0, 1), 2)
        self.qemu.wait_status('suspended')

    def test_reset(self):
        self.server.hooks[vs.RESET] = self.broken
        self.qemu.execute('system_reset')
        self.qemu.wait_status('paused')
        self.go_on.set()
        self.qemu.wait_status('running')
        self.qemu.enable()
        self.assertEqual(self.qemu.read(qemu.BAR1), ALL_ONES)


class Running(Case):
    """A guest whose firmware counts how often it starts."""

    COUNT = 0x7000

    def setUp(self):
        super().setUp()
        self.bios = os.path.join(self.dir, 'bios')
        with open(self.bios, 'wb') as out:
            out.write(bytes(0xfff0))
            # incl [COUNT]; hlt; jmp to the hlt
            out.write(bytes.fromhex('66ff060070f4ebfd').ljust(16, b'\0'))

    def once(self, number):
        self.sock = os.path.join(self.dir, '%d.sock' % number)
        server = self.serve()
        machine = self.boot(accel='tcg', args=['-bios', self.bios])
        starts = lambda: machine.read(self.COUNT)
        machine.until(lambda: starts() == 1, 'start')
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        server.hooks[vs.RESET] = loses(go_on)
        # The vCPU gets the processor as soon as it may run.
        main = machine.process.pid
        vcpu = machine.execute('query-cpus-fast')['return'][0]['thread-id']
        for thread in main, vcpu:
            os.sched_setaffinity(thread, {min(os.sched_getaffinity(main))})
        os.sched_setscheduler(main, os.SCHED_BATCH, os.sched_param(0))
        machine.execute('system_reset')
        machine.wait_status('paused')
        self.assertEqual(starts(), 1)
        go_on.set()
        machine.until(lambda: starts() == 2, 'second start')
        machine.close()

    def test_reset(self):
        """Not one instruction after a reset in which the daemon is lost."""
        for number in range(5):
            self.once(number)


if __name__ == '__main__':
    unittest.main()
