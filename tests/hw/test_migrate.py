# SPDX-License-Identifier: GPL-2.0-or-later
"""The device stops and starts with its VM, and moves with it: two QEMUs, each with a
scripted daemon that can."""

import os
import random
import struct
import subprocess
import unittest

import qemu
import vfio_server as vs
from case import Case
from test_hostile import BROKEN, broken

# The first five it needs to migrate at all.
ABLE = (vs.MIGRATION, vs.MIG_STATE, vs.LOG_START, vs.LOG_STOP, vs.LOG_REPORT, vs.PUT_BACK)
MSI = 0x300000
PAGE = 0x400000
# More than two messages' worth, and no multiple of anything.
STATE = random.Random(11).randbytes((5 << 19) + 7)


def refuse_state(wanted, error):
    """A hook: the daemon refuses to enter this state."""
    def hook(_, msg):
        number, how, data = msg.feature()
        if (number, how) == (vs.MIG_STATE, vs.SET) and \
                struct.unpack('<Ii', data)[0] == wanted:
            return vs.refuse(msg, error)
        return vs.DEFAULT
    return hook


def only(wanted, method, hook):
    """The same for any one feature and method."""
    def each(server, msg):
        return hook(server, msg) if msg.feature()[:2] == (wanted, method) \
            else vs.DEFAULT
    return each


class Able(Case):
    """A VM whose daemon can do it all."""

    def setUp(self):
        super().setUp()
        self.server = self.serve(features=ABLE)
        self.server.saved = STATE
        self.qemu = self.boot()
        self.qemu.enable()

    def set_up_interrupts(self, masked=0):
        self.qemu.enable_msix(MSI, masked)

    def migrate(self, uri='exec:cat >/dev/null', **capabilities):
        """Begin one; the answer, if it is an error."""
        wanted = dict(events=True, **capabilities)
        self.qemu.execute('migrate-set-capabilities', capabilities=[
            {'capability': name.replace('_', '-'), 'state': state}
            for name, state in wanted.items()])
        return self.qemu.execute('migrate', uri=uri).get('error')

    def migration(self, machine=None):
        return (machine or self.qemu).execute('query-migrate')['return']

    def until_migration(self, status):
        self.qemu.until(lambda: self.migration().get('status') in (
            status, 'failed', 'completed'), status, 30)
        self.assertEqual(self.migration()['status'], status, self.migration())

    def fails(self, *reason):
        """The migration did, for this reason; the VM goes on as before."""
        self.until_migration('failed')
        for part in reason:
            self.assertIn(part, self.migration()['error-desc'])
        self.qemu.wait_status('running')

    def target(self, fails=False, begin=True, **options):
        """Another QEMU with another daemon, which waits for the VM, or for one that does
        not come: then it may end.  Not `begin`: it will wait when it is told to."""
        path = self.sock + '2'
        self.other = vs.Server(path, features=ABLE)
        self.addCleanup(self._end, self.other)
        self.uri = 'unix:' + os.path.join(self.dir, 'migration')
        machine = qemu.Qemu(path, args=['-incoming', self.uri if begin else 'defer'],
                            **options)
        self.addCleanup(machine.close if fails else lambda: self._judge(machine))
        return machine

    def move(self, machine):
        self.assertIsNone(self.migrate(self.uri))
        self.until_migration('completed')
        machine.wait_status('running')
        self.assertEqual(self.other.put_back, 0)

    def works(self, machine, server):
        """The guest gets @server's interrupts, and reads its registers."""
        machine.write(MSI, 0)
        os.eventfd_write(server.vectors[0], 1)
        machine.until(lambda: machine.read(MSI) == 0xc0de00, 'interrupt')
        server.registers[0:4] = struct.pack('<I', 21)
        self.assertEqual(machine.read(qemu.BAR1), 21)


class StopAndContinue(Able):
    def test_states(self):
        self.qemu.execute('stop')
        self.assertEqual(self.server.state, vs.STOP)
        self.qemu.execute('cont')
        self.assertEqual(self.server.state, vs.RUNNING)
        self.assertEqual(self.server.states, [vs.STOP, vs.RUNNING])
        self.assertEqual(self.qemu.log(), '')

    def test_interrupts(self):
        """What was signalled before the stop is delivered when it is over; what comes
        after it waits."""
        self.set_up_interrupts()
        vectors = self.server.vectors

        def last_words(_, msg):
            if msg.feature()[:2] == (vs.MIG_STATE, vs.SET):
                os.eventfd_write(vectors[0], 1)
            return vs.DEFAULT
        self.server.hooks[vs.FEATURE] = last_words
        self.qemu.execute('stop')
        self.assertEqual(self.qemu.read(MSI), 0xc0de00)
        del self.server.hooks[vs.FEATURE]
        os.eventfd_write(vectors[1], 1)
        self.qemu.status()
        self.assertEqual(self.qemu.read(MSI + 4), 0)
        self.qemu.execute('cont')
        self.qemu.until(lambda: self.qemu.read(MSI + 4) == 0xc0de01, 'interrupt')
        self.assertEqual(self.qemu.read(MSI + 8), 0)

    def test_masked_interrupts(self):
        """They are pending bits, and so part of the VM's state."""
        self.set_up_interrupts(masked=1)
        os.eventfd_write(self.server.vectors[0], 1)
        self.qemu.execute('stop')
        self.qemu.execute('cont')
        self.assertEqual(self.qemu.read(MSI), 0)
        self.qemu.mask(0, False)
        self.qemu.until(lambda: self.qemu.read(MSI) == 0xc0de00, 'interrupt')

    def test_reset_while_stopped(self):
        self.set_up_interrupts()
        self.qemu.execute('stop')
        resets = self.server.resets
        self.qemu.execute('system_reset')
        self.server.wait(lambda: self.server.resets > resets, 'reset')
        self.qemu.execute('cont')
        self.assertEqual(self.server.state, vs.RUNNING)
        self.qemu.enable()
        self.set_up_interrupts()
        os.eventfd_write(self.server.vectors[2], 1)
        self.qemu.until(lambda: self.qemu.read(MSI + 8) == 0xc0de02, 'interrupt')

    def test_refused_stop(self):
        """Reported; and not to be saved like that, also if it stops later."""
        self.server.hooks[vs.FEATURE] = refuse_state(vs.STOP, 16)
        self.qemu.execute('stop')
        self.assertIn('cannot be stopped', self.qemu.log())
        self.assertEqual(self.qemu.status(), 'paused')
        del self.server.hooks[vs.FEATURE]
        self.assertIsNone(self.migrate())
        self.until_migration('failed')
        self.assertIn('did not stop the device', self.migration()['error-desc'])
        self.qemu.execute('cont')
        self.assertEqual(self.server.state, vs.RUNNING)
        self.assertTrue(self.qemu.connected())

    def test_refused_start(self):
        """The guest's adapter fails: its addresses are somebody else's by now."""
        self.qemu.execute('stop')
        self.server.hooks[vs.FEATURE] = refuse_state(vs.RUNNING, 98)
        self.qemu.execute('cont')
        self.qemu.wait_status('running')
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        self.assertIn('the device cannot run: pvrdmad refuses: Address already in '
                      'use', self.qemu.log())
        self.assertEqual(self.qemu.read(qemu.BAR1), 0xffffffff)
        # There is nothing left that could be saved.
        self.assertIn('was lost', self.migrate()['desc'])

    def test_daemon_lost_while_stopped(self):
        self.set_up_interrupts()
        self.qemu.execute('stop')
        self.server.kill()
        self.qemu.until(lambda: 'lost the connection' in self.qemu.log(), 'loss')
        self.qemu.execute('cont')
        self.assertEqual(self.qemu.status(), 'running')
        self.assertEqual(self.qemu.read(qemu.BAR1), 0xffffffff)

    def test_broken_answers(self):
        for how in BROKEN:
            with self.subTest(how=how):
                self.sock += 'x'
                server = self.serve(features=ABLE)
                machine = self.boot()
                server.hooks[vs.FEATURE] = broken(how)
                machine.execute('stop')
                machine.until(lambda: not machine.connected(), 'loss')
                machine.close()

    def test_another_state(self):
        self.server.hooks[vs.FEATURE] = lambda _, msg: vs.reply(
            msg, msg.body[:8] + struct.pack('<Ii', vs.STOP_COPY, -1))
        self.qemu.execute('stop')
        self.qemu.until(lambda: not self.qemu.connected(), 'loss')
        self.assertIn('state 3 instead of 1', self.qemu.log())


class Blocked(Case):
    def test_missing_features(self):
        names = dict(zip(ABLE, ('MIGRATION', 'MIG_DEVICE_STATE', 'DMA_LOGGING_START',
                                'DMA_LOGGING_STOP', 'DMA_LOGGING_REPORT')))
        for missing, name in names.items():
            with self.subTest(missing=name):
                self.sock += 'x'
                server = self.serve(features=[f for f in ABLE if f != missing])
                machine = self.boot()
                answer = machine.execute('migrate', uri='exec:cat >/dev/null')
                self.assertIn('no vfio-user feature ' + name,
                              answer['error']['desc'])
                machine.execute('stop')
                machine.execute('cont')
                self.assertEqual(server.states, [])
                machine.close()

    def test_no_stop_copy(self):
        server = self.serve(features=ABLE)
        server.hooks[vs.FEATURE] = only(
            vs.MIGRATION, vs.GET, lambda _, msg: vs.reply(
                msg, msg.body[:8] + struct.pack('<Q', 6)))
        answer = self.boot().execute('migrate', uri='exec:cat >/dev/null')
        self.assertIn('no vfio-user feature MIGRATION', answer['error']['desc'])

    def test_only_migratable(self):
        self.serve(features=ABLE)
        machine = self.boot(args=['-only-migratable'])
        self.assertEqual(machine.status(), 'running')

    def test_broken_answers(self):
        server = self.serve(features=ABLE)
        for how in BROKEN:
            with self.subTest(how=how):
                server.hooks[vs.FEATURE] = broken(how)
                self.refused('cannot learn what pvrdmad can migrate')


class Refused(Able):
    def test_post_copy(self):
        self.assertIn('cannot migrate by post-copy',
                      self.migrate(postcopy_ram=True)['desc'])

    def test_background_snapshot(self):
        self.assertIn('cannot migrate to a background snapshot',
                      self.migrate(background_snapshot=True)['desc'])

    def test_reboot(self):
        self.qemu.execute('migrate-set-parameters', mode='cpr-reboot')
        self.assertIn('cannot migrate cpr-reboot', self.migrate()['desc'])

    def test_transfer(self):
        def channel(name):
            return {'channel-type': name, 'addr': {
                'transport': 'socket', 'type': 'unix', 'path': self.sock + name}}

        self.sock += 'x'
        self.serve(features=ABLE)
        machine = self.boot(args=['-machine', 'aux-ram-share=on'])
        machine.execute('migrate-set-parameters', mode='cpr-transfer')
        answer = machine.execute('migrate', channels=[channel('main'), channel('cpr')])
        self.assertIn('cannot migrate cpr-transfer', answer['error']['desc'])


class Move(Able):
    def test_state_and_memory(self):
        self.set_up_interrupts()
        self.qemu.write_bytes(PAGE, b'from the source')
        machine = self.target()
        self.move(machine)
        self.assertEqual(bytes(self.other.loaded), STATE)
        self.assertEqual(self.server.states, [vs.STOP, vs.STOP_COPY, vs.STOP])
        self.assertEqual(self.other.states,
                         [vs.STOP, vs.RESUMING, vs.STOP, vs.RUNNING])
        self.assertEqual(self.other.command & 6, 6)
        self.assertEqual(len(self.other.vectors), len(self.server.vectors))
        self.assertEqual(machine.read_bytes(PAGE, 15), b'from the source')
        # All vectors once, for what was lost on the way.
        machine.until(lambda: machine.read(MSI + 8) == 0xc0de02, 'interrupts')
        self.assertEqual(machine.read(MSI), 0xc0de00)
        self.assertEqual(machine.read(MSI + 4), 0xc0de01)
        self.works(machine, self.other)
        self.assertEqual(self.qemu.log() + machine.log(), '')

    def test_back_to_work(self):
        """The source can still go on, if it is let."""
        machine = self.target()
        self.move(machine)
        self.qemu.execute('cont')
        self.assertEqual(self.server.state, vs.RUNNING)
        self.assertEqual(self.qemu.status(), 'running')
        self.assertIsNone(self.server.logged)

    def test_without_interrupts(self):
        machine = self.target()
        self.move(machine)
        self.assertEqual(self.other.vectors, {})
        self.assertEqual(machine.log(), '')

    def test_interrupts_only_once_it_runs(self):
        self.set_up_interrupts()
        machine = self.target()
        self.qemu.execute('stop')
        self.assertIsNone(self.migrate(self.uri))
        self.until_migration('completed')
        machine.wait_status('paused')
        self.assertEqual(self.other.state, vs.STOP)
        self.assertEqual(machine.read(MSI), 0)
        machine.execute('cont')
        self.assertEqual(self.other.state, vs.RUNNING)
        machine.until(lambda: machine.read(MSI) == 0xc0de00, 'interrupt')

    def test_empty_state(self):
        self.server.saved = b''
        machine = self.target()
        self.move(machine)
        self.assertEqual(self.other.states[-1], vs.RUNNING)

    def test_whole_messages(self):
        """The end comes with no byte before it."""
        self.server.saved = STATE[:2 << 20]
        machine = self.target()
        self.move(machine)
        self.assertEqual(bytes(self.other.loaded), STATE[:2 << 20])

    def test_refused_on_arrival(self):
        """The target's adapter fails, and its VM goes on."""
        machine = self.target()
        self.other.hooks[vs.FEATURE] = refuse_state(vs.RUNNING, 98)
        self.move(machine)
        machine.until(lambda: not machine.connected(), 'loss')
        self.assertIn('the device cannot run', machine.log())


class HeldBack(Able):
    """The VM is stopped only when the device's state fits into downtime-limit."""

    def setUp(self):
        super().setUp()
        self.server.features += (vs.MIG_SIZE,)
        self.asked = 0
        self.server.hooks[vs.FEATURE] = only(vs.MIG_SIZE, vs.GET, self.count)

    def count(self, _, __):
        self.asked += 1
        return vs.DEFAULT

    def parameters(self, **wanted):
        self.assertNotIn('error', self.qemu.execute('migrate-set-parameters', **{
            name.replace('_', '-'): value for name, value in wanted.items()}))

    def waits(self, size):
        """The migration has begun, and does while the state is that long."""
        self.server.size = size
        self.assertIsNone(self.migrate())
        self.still_waits()

    def still_waits(self):
        until = self.asked + 4
        self.qemu.until(lambda: self.asked >= until, 'question for the size', 30)
        self.assertEqual(self.migration()['status'], 'active')
        self.assertEqual(self.server.state, vs.RUNNING)

    def test_until_it_fits(self):
        self.waits(1 << 40)
        self.still_waits()
        self.assertEqual(self.qemu.log().count('the migration waits'), 1)
        self.server.size = len(STATE)
        self.until_migration('completed')
        self.assertEqual(self.server.states, [vs.STOP, vs.STOP_COPY, vs.STOP])

    def test_more_time(self):
        self.waits(1 << 30)
        self.parameters(downtime_limit=1000 * 1000)
        self.until_migration('completed')

    def test_faster_network(self):
        """What the user says counts, not what little was sent of an idle VM."""
        self.waits(1 << 30)
        self.parameters(avail_switchover_bandwidth=1 << 40)
        self.until_migration('completed')

    def test_slower_network(self):
        self.parameters(avail_switchover_bandwidth=1 << 20)
        self.waits(1 << 20)
        self.parameters(avail_switchover_bandwidth=0)
        self.until_migration('completed')

    def test_stopped(self):
        """There is nobody to be held back: it is saved, say, or stopped meanwhile."""
        self.server.size = 1 << 40
        self.qemu.execute('stop')
        self.assertIsNone(self.migrate())
        self.until_migration('completed')
        self.assertNotIn('waits', self.qemu.log())

    def test_stopped_meanwhile(self):
        self.waits(1 << 40)
        self.qemu.execute('stop')
        self.until_migration('completed')

    def test_at_any_price(self):
        """Who lets QEMU throttle the guest, or leaves it no time, is not held back."""
        for wanted in ({'downtime_limit': 0}, {'capability': 'auto-converge'}):
            with self.subTest(wanted=wanted):
                self.sock += 'x'
                server = self.serve(features=ABLE + (vs.MIG_SIZE,))
                self.qemu = self.boot()
                server.size = 1 << 40
                self.switch_on(**wanted)
                self.assertIsNone(self.migrate())
                self.until_migration('completed')
                self.assertNotIn('waits', self.qemu.log())
                self.qemu.close()

    def switch_on(self, capability=None, **parameters):
        if capability:
            self.assertNotIn('error', self.qemu.execute(
                'migrate-set-capabilities',
                capabilities=[{'capability': capability, 'state': True}]))
        self.parameters(**parameters)

    def test_cancelled(self):
        self.waits(1 << 40)
        self.qemu.execute('migrate_cancel')
        self.until_migration('cancelled')
        self.assertEqual(self.server.states, [])

    def test_fits(self):
        """As long as that takes no time worth mentioning, at whatever rate."""
        self.server.size = 30 << 20
        self.assertIsNone(self.migrate())
        self.until_migration('completed')
        self.assertNotIn('waits', self.qemu.log())

    def test_nobody_knows(self):
        """A daemon that does not say it holds nobody back, nor one that is lost."""
        self.server.hooks[vs.FEATURE] = only(
            vs.MIG_SIZE, vs.GET, lambda _, msg: vs.refuse(msg, 5))
        self.assertIsNone(self.migrate())
        self.until_migration('completed')

    def test_broken_answers(self):
        for how in BROKEN:
            with self.subTest(how=how):
                self.sock += 'x'
                server = self.serve(features=ABLE + (vs.MIG_SIZE,))
                self.qemu = self.boot()
                server.hooks[vs.FEATURE] = only(vs.MIG_SIZE, vs.GET, broken(how))
                self.migrate()
                self.qemu.until(lambda: not self.qemu.connected(), 'loss')
                self.qemu.close()


class Logged(Able):
    def begin(self, fails=False, machine=None, **options):
        """All of memory was copied, and nothing of the last stores."""
        machine = machine or self.target(fails, **options)
        self.assertIsNone(self.migrate(self.uri, pause_before_switchover=True))
        self.until_migration('pre-switchover')
        return machine

    def finish(self, machine):
        self.qemu.execute('migrate-continue', state='pre-switchover')
        self.until_migration('completed')
        machine.wait_status('running')

    def stores_arrive(self):
        machine = self.begin()
        (low, size), = self.server.logged
        self.assertEqual((low, low + size), (0, 16 << 20))
        at = [PAGE, 0x1000, PAGE + 63 * 4096, PAGE + 64 * 4096, (16 << 20) - 4096]
        for addr in at:
            self.server.store(addr + 5, b'by the daemon')
        self.server.store(PAGE + 4096, b'by the daemon', log=False)
        self.finish(machine)
        for addr in at:
            self.assertEqual(machine.read_bytes(addr + 5, 13), b'by the daemon')
        # Else this test would prove nothing.
        self.assertEqual(machine.read_bytes(PAGE + 4096, 13), bytes(13))
        self.assertEqual(self.server.dirty, set())

    def remapped_memory(self):
        """What is unmapped counts as written."""
        machine = self.begin()
        self.qemu.config(0x90, 0x30, 1, devfn=0)
        self.server.store(0xf1000, b'by the daemon', log=False)
        self.qemu.config(0x90, 0x10, 1, devfn=0)
        self.finish(machine)
        machine.config(0x90, 0x30, 1, devfn=0)
        self.assertEqual(machine.read_bytes(0xf1000, 13), b'by the daemon')

    def reports(self):
        """How often the log was asked for by a message."""
        with self.server.changed:
            return sum(command == vs.FEATURE and
                       struct.unpack_from('<I', body, 4)[0] == vs.LOG_REPORT | vs.GET
                       for command, _, body, _ in self.server.log)


class Incoming(Logged):
    """What may happen at the target before and behind the device's state."""

    def begin(self, **options):
        """Memory has arrived, which the stream has behind its beginning; the daemon was
        not told of it."""
        self.set_up_interrupts()
        self.qemu.write_bytes(PAGE, b'from the source')
        machine = super().begin(**options)
        machine.until(lambda: machine.read_bytes(PAGE, 15) == b'from the source', 'memory')
        self.assertEqual(self.other.states, [])
        return machine

    def arrives(self, machine):
        self.finish(machine)
        self.assertEqual(bytes(self.other.loaded), STATE)
        self.assertEqual(self.other.states,
                         [vs.STOP, vs.RESUMING, vs.STOP, vs.RUNNING])
        self.works(machine, self.other)

    def failed(self, machine):
        """The migration has, at the target, which stays; the device runs, as new."""
        machine.until(lambda: self.migration(machine).get('status') == 'failed',
                      'failure')
        self.assertEqual(self.other.state, vs.RUNNING)
        self.assertTrue(machine.connected())

    def wait_for(self, machine, uri):
        """For a stream by @uri; if it fails, the target stays."""
        machine.execute('migrate-incoming', uri=uri, **{'exit-on-error': False})

    def test_reset_meanwhile(self):
        """Of the target's machine."""
        machine = self.begin()
        resets = self.other.resets
        machine.execute('system_reset')
        self.other.wait(lambda: self.other.resets > resets, 'reset')
        self.arrives(machine)

    def test_cancelled(self):
        machine = self.target(begin=False)
        self.wait_for(machine, self.uri)
        resets = self.other.resets
        self.begin(machine=machine)
        self.qemu.execute('migrate_cancel')
        self.until_migration('cancelled')
        self.qemu.wait_status('running')
        self.failed(machine)
        self.assertEqual(self.other.states, [])
        self.assertEqual(self.other.resets, resets)     # nothing to drop
        self.works(self.qemu, self.server)
        machine.enable()
        machine.enable_msix(MSI)
        self.works(machine, self.other)

    def test_another_daemon_meanwhile(self):
        """The state is for the daemon that is there when it comes."""
        machine = self.begin(reconnect=True)
        self.other.kill()
        os.unlink(self.other.path)
        machine.until(lambda: not machine.connected(), 'loss')
        self.other = vs.Server(self.sock + '2', features=ABLE)
        self.addCleanup(self._end, self.other)
        machine.until(machine.connected, 'reconnection')
        self.arrives(machine)

    def load_in_vain(self, behind, *states):
        """A state that ends the stream, but for @behind: the device is as after a reset,
        for good."""
        name = os.path.join(self.dir, 'state')
        self.assertIsNone(self.migrate('file:' + name))
        self.until_migration('completed')
        with open(name, 'rb+') as stream:
            at = stream.read().index(STATE[-1000:]) + 1000
            stream.seek(at)
            stream.write(bytes(4) + behind)     # the state's end
            stream.truncate()
        machine = self.target(begin=False)
        resets = self.other.resets
        self.wait_for(machine, 'file:' + name)
        self.failed(machine)
        self.assertEqual(bytes(self.other.loaded), STATE)
        self.assertEqual(self.other.states, list(states))
        self.assertEqual(self.other.resets, resets + 1)
        machine.execute('cont')
        self.assertEqual(machine.status(), 'inmigrate')
        self.assertEqual(self.other.resets, resets + 1)

    def test_ends_behind_its_state(self):
        """What was loaded is in use nowhere: such a VM does not come to run."""
        self.load_in_vain(b'', vs.STOP, vs.RESUMING, vs.STOP)

    def test_unknown_part_behind_its_state(self):
        """As a later QEMU may send; the daemon has not checked the state then."""
        name = b'pvrdma/later'
        self.load_in_vain(struct.pack('>BB', 5, len(name)) + name +
                          struct.pack('>I', 1), vs.STOP, vs.RESUMING)

    def test_vm_without_the_device(self):
        """Its stream has nothing for this one, which is new to the guest then."""
        self.qemu.close()
        self.sock += 'x'
        self.server = self.serve(features=ABLE)
        self.qemu = self.boot(machine='pc')
        self.qemu.execute('device_del', id='rdma')
        self.qemu.command('outl 0xae08 0x20')
        self.server.wait(lambda: self.server.conn is None, 'end')
        machine = self.target(machine='pc')
        self.move(machine)
        self.assertEqual(self.other.state, vs.RUNNING)
        self.assertEqual(self.other.states, [])
        self.assertTrue(machine.connected())


class Saving(Able):
    """Daemons that save badly: the migration fails, the VM goes on."""

    def test_refused(self):
        self.server.hooks[vs.FEATURE] = refuse_state(vs.STOP_COPY, 16)
        self.assertIsNone(self.migrate())
        self.fails("pvrdma 'rdma'", 'cannot be saved', 'Device or resource busy')
        self.assertEqual(self.server.state, vs.RUNNING)
        self.assertTrue(self.qemu.connected())

    def test_refused_data(self):
        self.server.hooks[vs.MIG_READ] = lambda _, msg: vs.refuse(msg, 5)
        self.assertIsNone(self.migrate())
        self.fails("cannot read the device's state", 'Input/output error')
        self.assertEqual(self.server.states,
                         [vs.STOP, vs.STOP_COPY, vs.RUNNING])

    def test_broken_answers(self):
        def data(size, count):
            return lambda msg: vs.reply(msg, struct.pack('<II', 8, size) +
                                        bytes(count))
        cases = dict(BROKEN, **{
            'short data': data(100, 99), 'long data': data(100, 101),
            'half a head': lambda msg: vs.reply(msg, bytes(4)),
            'huge size': data(0xfffffff8, 8)})
        for how, answer in cases.items():
            if how == 'long payload':
                # Its size says 0, and that is wrong, too.
                answer = data(0, 100000)
            with self.subTest(how=how):
                self.sock += 'x'
                self.server = self.serve(features=ABLE)
                self.qemu = self.boot()
                BROKEN['this one'] = answer
                self.server.hooks[vs.MIG_READ] = broken('this one')
                try:
                    self.assertIsNone(self.migrate())
                    self.fails("cannot read the device's state")
                finally:
                    del BROKEN['this one']
                self.qemu.until(lambda: not self.qemu.connected(), 'loss')
                self.qemu.close()

    def test_endless(self):
        self.server.hooks[vs.MIG_READ] = lambda _, msg: vs.reply(
            msg, struct.pack('<II', 8 + (1 << 20), 1 << 20) + bytes(1 << 20))
        self.assertIsNone(self.migrate())
        self.fails('has no end')
        self.assertTrue(self.qemu.connected())

    def test_daemon_dies(self):
        self.server.hooks[vs.MIG_READ] = lambda _, msg: vs.CLOSE
        self.assertIsNone(self.migrate())
        self.fails("cannot read the device's state")


class Loading(Able):
    """A saved VM that is made wrong, and daemons that do not take one."""
    # For test_too_much, which is 10 s.
    time_limit = 240

    def setUp(self):
        super().setUp()
        self.file = os.path.join(self.dir, 'state')
        self.server.saved = STATE[:5000]
        self.assertIsNone(self.migrate('file:' + self.file))
        self.until_migration('completed')
        self.qemu.close()
        with open(self.file, 'rb') as stream:
            self.stream = stream.read()
        self.at = self.stream.index(STATE[:5000])
        self.assertEqual(self.stream[self.at - 4:self.at], struct.pack('>I', 5000))
        self.assertEqual(self.stream[self.at + 5000:self.at + 5004], bytes(4))

    def load(self, stream=None, device='', hooks=()):
        """What a QEMU says that fails to load it; and how its device was left."""
        self.sock += 'x'
        with open(self.file, 'wb') as out:
            out.write(self.stream if stream is None else stream)
        server = self.serve(features=ABLE)
        server.hooks.update(hooks)
        done = subprocess.run(
            qemu.base_args() + qemu.MEMORY + qemu.NIC +
            ['-device', 'pvrdma,id=rdma,addr=5.1,socket=' + self.sock + device,
             '-incoming', 'file:' + self.file], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
            check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn('Sanitizer', done.stdout)
        self.assertNotIn(vs.RUNNING, server.states)
        return done.stdout

    def test_good_file(self):
        """That it is one is said: it may be loaded any number of times.  A pipe may be a
        migration, whatever is at its other end."""
        for way, put_back in ('file:', 1), ('exec:cat ', 0):
            with self.subTest(way):
                self.sock += 'x'
                server = self.serve(features=ABLE)
                machine = self.boot(args=['-incoming', way + self.file])
                machine.wait_status('running')
                self.assertEqual(bytes(server.loaded), STATE[:5000])
                self.assertEqual(server.put_back, put_back)
                machine.close()

    def test_descriptor_of_a_file(self):
        """As libvirt restores."""
        self.sock += 'x'
        server = self.serve(features=ABLE)
        with open(self.file, 'rb') as stream:
            machine = self.boot(args=['-incoming', 'fd:%d' % stream.fileno()],
                                fds=[stream.fileno()])
        machine.wait_status('running')
        self.assertEqual(server.put_back, 1)

    def test_lengths(self):
        for length in (1 << 20 | 1, 1 << 31, 0xffffffff):
            with self.subTest(length=length):
                self.assertIn('malformed saved state', self.load(
                    self.stream[:self.at - 4] + struct.pack('>I', length) +
                    self.stream[self.at:]))

    def test_shorter_length(self):
        """The next length is in the middle of the data."""
        self.assertIn('malformed saved state', self.load(
            self.stream[:self.at - 4] + struct.pack('>I', 100) +
            self.stream[self.at:self.at + 100] + b'\xff' * 4 +
            self.stream[self.at + 104:]))

    def test_too_much(self):
        """How much is too much, the daemon says; QEMU asks it for every piece."""
        piece = struct.pack('>I', 1 << 20) + bytes(1 << 20)

        def refuse(server, msg):
            return vs.refuse(msg, 7) if len(server.loaded) >= 3 << 20 else vs.DEFAULT
        self.assertIn("cannot write the device's state", self.load(
            self.stream[:self.at - 4] + piece * 6 + bytes(4),
            hooks={vs.MIG_WRITE: refuse}))

    def test_cut(self):
        for end in (self.at - 4, self.at - 1, self.at, self.at + 4999,
                    self.at + 5000):
            with self.subTest(end=end - self.at):
                self.assertIn('load of migration failed', self.load(
                    self.stream[:end]))

    def test_section_of_the_handlers(self):
        """Which write none."""
        name = b'0000:00:05.1/pvrdma'
        at = self.stream.index(name) - 1
        own = b'pvrdma-adapter'
        self.assertIn('a section pvrdma-adapter', self.load(
            self.stream[:at] + bytes([len(own)]) + own + struct.pack('>II', 0, 1) +
            self.stream[at + 1 + len(name) + 8:]))

    def test_bad_state(self):
        """The daemon finds that at the end, and is in reset then."""
        def refuse(server, msg):
            number, how, data = msg.feature()
            return vs.refuse(msg, 22) if server.state == vs.RESUMING and \
                (number, how) == (vs.MIG_STATE, vs.SET) else vs.DEFAULT
        text = self.load(hooks={vs.FEATURE: refuse})
        self.assertIn("pvrdma 'rdma'", text)
        self.assertIn("cannot be loaded into this VM (pvrdmad's log has the reason): "
                      "pvrdmad refuses: Invalid argument", text)

    def test_refused_data(self):
        self.assertIn("cannot write the device's state", self.load(
            hooks={vs.MIG_WRITE: lambda _, msg: vs.refuse(msg, 27)}))

    def test_refused_resuming(self):
        self.assertIn('cannot be saved or loaded: pvrdmad refuses: Device or resource '
                      'busy', self.load(
                          hooks={vs.FEATURE: refuse_state(vs.RESUMING, 16)}))

    def test_broken_answers(self):
        for how in BROKEN:
            if how in ('no payload', 'error with a body'):
                # The first is how it should be.
                continue
            with self.subTest(how=how):
                self.assertIn('load of migration failed', self.load(
                    hooks={vs.MIG_WRITE: broken(how)}))

    def test_interrupts_refused(self):
        """Found while the source can still go on."""
        self.set_up()
        self.assertIn('cannot set up interrupts', self.load(
            hooks={vs.SET_IRQS: lambda _, msg: vs.refuse(msg, 24)}))

    def set_up(self):
        """A file of a VM with interrupts."""
        self.sock += 'y'
        self.server = self.serve(features=ABLE)
        self.qemu = self.boot()
        self.qemu.enable()
        self.set_up_interrupts()
        self.assertIsNone(self.migrate('file:' + self.file))
        self.until_migration('completed')
        self.qemu.close()
        with open(self.file, 'rb') as stream:
            self.stream = stream.read()

    def test_other_properties(self):
        self.assertIn("'vectors' differs", self.load(device=',vectors=9'))
        for other in (',regs-size=8k', ',uar-size=32M'):
            with self.subTest(other):
                self.assertIn('pvrdmad has a BAR', self.load(device=other))
        # These show in the device's configuration space, which QEMU compares.
        for other in (',flr=off', ',express=off'):
            with self.subTest(other):
                self.assertIn('Bad config data', self.load(device=other))

    def test_daemon_that_cannot(self):
        self.sock += 'x'
        self.serve()
        done = subprocess.run(
            qemu.base_args() + qemu.MEMORY + qemu.NIC +
            ['-device', 'pvrdma,addr=5.1,socket=' + self.sock, '-incoming',
             'file:' + self.file], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn('cannot load the state of a device', done.stdout)


class Snapshot(Able):
    def setUp(self):
        super().setUp()
        self.qemu.close()
        self.sock += 'x'
        disk = os.path.join(self.dir, 'disk')
        open(disk, 'wb').close()
        self.server = self.serve(features=ABLE)
        self.server.saved = STATE[:5000]
        self.qemu = self.boot(args=['-blockdev', 'file,node-name=file,filename=' +
                                    disk])
        self.job('blockdev-create', **{'job-id': 'j', 'options': {
            'driver': 'qcow2', 'file': 'file', 'size': 64 << 20}})
        self.qemu.execute('blockdev-add', driver='qcow2', file='file',
                          **{'node-name': 'disk'})
        self.qemu.enable()

    def job(self, command, **arguments):
        """Run one; its error, if it fails."""
        answer = self.qemu.execute(command, **arguments)
        self.assertNotIn('error', answer)

        def jobs():
            return self.qemu.execute('query-jobs')['return']
        self.qemu.until(lambda: jobs() and jobs()[0]['status'] == 'concluded', command)
        error = jobs()[0].get('error')
        self.qemu.execute('job-dismiss', id='j')
        return error

    def snapshot(self, command):
        return self.job('snapshot-' + command, tag='one', vmstate='disk',
                        devices=['disk'], **{'job-id': 'j'})

    def test_there_and_back(self):
        self.set_up_interrupts()
        self.qemu.write_bytes(PAGE, b'then')
        self.assertIsNone(self.snapshot('save'))
        self.assertEqual(self.server.state, vs.RUNNING)
        self.qemu.write_bytes(PAGE, b'now ')
        self.server.states.clear()
        resets = self.server.resets
        self.assertIsNone(self.snapshot('load'))
        self.assertEqual(self.qemu.read_bytes(PAGE, 4), b'then')
        self.assertGreater(self.server.resets, resets)
        self.assertEqual(bytes(self.server.loaded), STATE[:5000])
        # It was stopped, too, before the machine's reset.
        self.assertEqual(self.server.states[1:],
                         [vs.STOP, vs.RESUMING, vs.STOP, vs.RUNNING])
        self.assertEqual(self.server.command & 6, 6)
        self.qemu.until(lambda: self.qemu.read(MSI + 8) == 0xc0de02, 'interrupts')
        self.assertEqual(self.qemu.log(), '')

    def test_said(self):
        """The daemon is told what comes, each time."""
        self.assertIsNone(self.snapshot('save'))
        for times in 1, 2:
            self.assertIsNone(self.snapshot('load'))
            self.assertEqual(self.server.put_back, times)
            self.assertEqual(bytes(self.server.loaded), STATE[:5000])
        self.assertEqual(self.qemu.log(), '')

    def test_not_saved(self):
        self.server.hooks[vs.FEATURE] = refuse_state(vs.STOP_COPY, 16)
        self.assertIsNotNone(self.snapshot('save'))
        self.assertIn('cannot be saved', self.qemu.log())
        self.assertEqual(self.qemu.status(), 'running')
        self.assertEqual(self.server.state, vs.RUNNING)

    def not_loaded(self, text, command, hook):
        """The VM is stopped then, and the device as after a reset."""
        self.assertIsNone(self.snapshot('save'))
        self.server.hooks[command] = hook
        self.assertIsNotNone(self.snapshot('load'))
        self.server.hooks.clear()
        self.assertIn(text, self.qemu.log())
        self.assertTrue(self.qemu.connected())
        self.qemu.execute('cont')
        self.qemu.wait_status('running')
        self.assertEqual(self.server.state, vs.RUNNING)

    def test_refused_resuming(self):
        self.not_loaded('cannot be saved or loaded', vs.FEATURE,
                        refuse_state(vs.RESUMING, 16))

    def test_refused_put_back(self):
        self.not_loaded('cannot be restored to the saved state', vs.FEATURE,
                        only(vs.PUT_BACK, vs.SET, lambda _, msg: vs.refuse(msg, 22)))

    def test_no_put_back(self):
        """Without it peers would go on with what the VM has forgotten."""
        self.server.features = ABLE[:-1]
        self.not_loaded('cannot be restored to the saved state', vs.FEATURE,
                        lambda *_: vs.DEFAULT)

    def test_refused_data(self):
        self.not_loaded("cannot write the device's state", vs.MIG_WRITE,
                        lambda _, msg: vs.refuse(msg, 27))

    def test_mode_of_a_migration(self):
        """That is set: for a VM that is stopped it counts, and the reason says so."""
        self.qemu.execute('stop')
        self.qemu.execute('migrate-set-parameters', mode='cpr-reboot')
        self.assertIn('switch that off for a snapshot', self.snapshot('save'))
        self.qemu.execute('migrate-set-parameters', mode='normal')
        self.assertIsNone(self.snapshot('save'))


if __name__ == '__main__':
    unittest.main()
