# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon stores while a VM moves: its log of that, by messages and shared."""

import struct
import unittest

import vfio_server as vs
from test_migrate import ABLE, PAGE, STATE, Logged, only


class DirtyLog(Logged):
    def test_stores(self):
        self.stores_arrive()
        self.assertGreater(self.reports(), 0)

    def test_off_without_a_migration(self):
        self.assertIsNone(self.server.logged)
        self.begin(fails=True)
        self.assertEqual(len(self.server.logged), 1)
        self.qemu.execute('migrate_cancel')
        self.until_migration('cancelled')
        self.qemu.wait_status('running')
        self.server.wait(lambda: self.server.logged is None, 'end of the log')
        self.assertEqual(self.server.state, vs.RUNNING)

    def test_remapped_memory(self):
        self.remapped_memory()

    def test_refused_report(self):
        """All counts as written."""
        machine = self.begin()
        self.server.store(PAGE, b'by the daemon', log=False)
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_REPORT, vs.GET, lambda _, msg: vs.refuse(msg, 2))
        self.finish(machine)
        self.assertEqual(machine.read_bytes(PAGE, 13), b'by the daemon')

    def test_bits_beyond_the_range(self):
        """They are not believed."""
        def all_ones(_, msg):
            return vs.reply(msg, msg.body[:32] + b'\xff' * -(
                -struct.unpack_from('<Q', msg.body, 16)[0] // 4096 // 64 * 8))
        machine = self.begin()
        self.server.hooks[vs.FEATURE] = only(vs.LOG_REPORT, vs.GET, all_ones)
        self.finish(machine)

    def test_refused_start(self):
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_START, vs.SET, lambda _, msg: vs.refuse(msg, 12))
        self.target(fails=True)
        self.migrate(self.uri)
        self.fails('cannot log writes', 'Cannot allocate memory')
        self.assertTrue(self.qemu.connected())

    def test_another_page_size(self):
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_START, vs.SET, lambda _, msg: vs.reply(
                msg, msg.body[:8] + struct.pack('<Q', 1 << 21) + msg.body[16:]))
        self.target(fails=True)
        self.migrate(self.uri)
        self.fails('cannot log writes')
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')

    def test_another_range(self):
        def other(_, msg):
            words = -(-struct.unpack_from('<Q', msg.body, 16)[0] // 4096 // 64)
            return vs.reply(msg, msg.body[:8] + bytes(24 + 8 * words))
        self.server.hooks[vs.FEATURE] = only(vs.LOG_REPORT, vs.GET, other)
        self.target(fails=True)
        self.migrate(self.uri)
        self.fails()
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')

    def test_daemon_lost(self):
        """What it wrote last is unknown: the VM stays here, without its adapter."""
        self.begin(fails=True)
        self.server.kill()
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        self.qemu.execute('migrate-continue', state='pre-switchover')
        self.fails('pvrdma')

    def test_unplug(self):
        """The last report is taken before the device goes."""
        self.qemu.close()
        self.sock += 'x'
        self.server = self.serve(features=ABLE)
        self.qemu = self.boot(machine='pc')
        self.qemu.enable()
        self.qemu.execute('device_del', id='rdma')
        self.qemu.execute('calc-dirty-rate', **{'calc-time': 20,
                                                'mode': 'dirty-bitmap'})
        self.server.wait(lambda: self.server.logged, 'log')
        self.server.store(PAGE, b'by the daemon')
        self.qemu.command('outl 0xae08 0x20')
        self.server.wait(lambda: self.server.conn is None, 'end')
        self.assertEqual(self.server.dirty, set())
        self.assertEqual(self.qemu.log(), '')


class SharedLog(Logged):
    """The daemon's log is in memory of both."""

    def setUp(self):
        super().setUp()
        self.server.features += (vs.LOG_SHARE,)

    def share(self, **how):
        """The daemon shares its log in another way than it should."""
        self.server.hooks[vs.FEATURE] = only(vs.LOG_SHARE, vs.SET, self.answer(**how))

    def answer(self, **how):
        def each(server, msg):
            data = msg.feature()[2]
            server.logged = list(struct.iter_unpack('<QQ', data[16:]))
            return server.share_log(msg, **how)
        return each

    def test_stores(self):
        self.stores_arrive()
        self.assertEqual(self.reports(), 0)

    def test_all_taken(self):
        machine = self.begin()
        for page in range(256, 4096, 63):  # above what is no memory
            self.server.store(page * 4096, b'by the daemon')
        self.finish(machine)
        self.assertFalse(any(self.server.shared[:]))
        for page in range(256, 4096, 63):
            self.assertEqual(machine.read_bytes(page * 4096, 13), b'by the daemon')

    def test_again(self):
        """Another migration has another log."""
        self.begin(fails=True)
        first = self.server.shared
        self.qemu.execute('migrate_cancel')
        self.until_migration('cancelled')
        self.qemu.wait_status('running')
        self.server.wait(lambda: self.server.logged is None, 'end of the log')
        first[:] = bytes(len(first))
        self.assertIsNone(self.migrate(pause_before_switchover=False))
        self.until_migration('completed')
        self.assertEqual(self.reports(), 0)

    def test_remapped_memory(self):
        self.remapped_memory()

    def by_messages(self):
        """It is not shared, and works all the same."""
        self.stores_arrive()
        self.assertGreater(self.reports(), 0)

    def test_refused(self):
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_SHARE, vs.SET, lambda _, msg: vs.refuse(msg, 27))
        self.by_messages()

    def test_switched_off(self):
        self.qemu.close()
        self.sock += 'x'
        self.server = self.serve(features=ABLE + (vs.LOG_SHARE,))
        self.server.saved = STATE
        self.qemu = self.boot(device='x-shared-log=off')
        self.qemu.enable()
        self.by_messages()

    def test_too_short(self):
        self.share(short=4096)
        self.by_messages()
        self.assertIn('cannot be shared', self.qemu.log())

    def test_not_sealed(self):
        self.share(seal=False)
        self.by_messages()
        self.assertIn('cannot be shared', self.qemu.log())

    def test_no_file(self):
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_SHARE, vs.SET, lambda _, msg: vs.reply(msg, msg.body))
        self.target(fails=True)
        self.migrate(self.uri)
        self.fails('cannot log writes')
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')

    def test_another_page_size(self):
        self.server.hooks[vs.FEATURE] = only(
            vs.LOG_SHARE, vs.SET, lambda server, msg: (
                vs.reply(msg, msg.body[:8] + struct.pack('<Q', 1 << 21) + msg.body[16:]),
                [server.db_fd]))
        self.target(fails=True)
        self.migrate(self.uri)
        self.fails('cannot log writes')
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')

    def test_daemon_lost(self):
        self.begin(fails=True)
        self.server.kill()
        self.qemu.until(lambda: 'lost the connection' in self.qemu.log(), 'loss')
        self.qemu.execute('migrate-continue', state='pre-switchover')
        self.fails()


if __name__ == '__main__':
    unittest.main()
