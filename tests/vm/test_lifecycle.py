# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests and daemon come and go: by -9, by mistake in the command line; a guest sleeps."""

import os
import signal
import subprocess
import time

from lib import fixture, ongoing, parts
from lib.kernellog import log_problems
from lib.programs import Pair, pingpong
from lib.pvrdma_vm import Daemon, Guest, Link, VmError, end_well, start_guests

ROUNDS = 2
PORT_STATE = 'cat /sys/class/infiniband/vmw_pvrdma0/ports/1/state'


def cpu_ticks(pid):
    """User plus system time of a process, all threads, in clock ticks."""
    with open('/proc/%d/stat' % pid) as stream:
        fields = stream.read().rpartition(')')[2].split()
    return int(fields[11]) + int(fields[12])


class IdleTest(fixture.PairTest):
    def test_idle_guests_cost_no_cpu(self):
        """Next to none: ticks are counted by sampling, a poller takes them all."""
        time.sleep(1)
        before = cpu_ticks(self.daemon.proc.pid)
        time.sleep(5)
        self.assertLess(cpu_ticks(self.daemon.proc.pid) - before,
                        5 * os.sysconf('SC_CLK_TCK') / 20)

    def test_idle_guests_cost_little_memory(self):
        used = self.daemon.resources()['rss_anon_kb']
        self.assertLessEqual(used, 2 * 4096)

    def test_post_copy_is_refused_with_its_reason(self):
        def post_copy(on):
            self.guests[0].qmp('migrate-set-capabilities', capabilities=[
                {'capability': 'postcopy-ram', 'state': on}])
        post_copy(True)
        try:
            with self.assertRaises(VmError) as caught:
                self.guests[0].qmp('migrate', uri='exec:cat >/dev/null')
        finally:
            post_copy(False)
        self.assertIn('pvrdma', str(caught.exception))
        self.assertTrue(self.guests[0].agent.ping())

    def test_admin_tool_sees_both(self):
        self.daemon.ctl('status')
        text = self.daemon.ctl('vm', 'list')
        for guest in self.guests:
            self.assertIn(guest.name, text)
        self.daemon.ctl_json('status')
        self.daemon.ctl_json('counters')


@fixture.shard('driver')
class KillTest(fixture.PrivateTest):
    def settled(self, daemon, want, timeout=20):
        """Wait for the daemon's resources to be back at @want."""
        keys = ('threads', 'fds', 'memfd_maps')
        end = time.monotonic() + timeout
        while True:
            now = daemon.resources()
            if all(now[key] == want[key] for key in keys):
                return
            if time.monotonic() > end:
                self.assertEqual({k: now[k] for k in keys},
                                 {k: want[k] for k in keys})
            time.sleep(0.1)

    def traffic(self, daemon, pair):
        """Start endless writes of 16 QPs from the first guest to the second, and wait
        until they run; returns the client's job, which must see the second die."""
        one, two = pair.guests
        command = 'ib_write_bw -d %s -p 18570 -F -s 65536 -q 16 -n 1000000' % pair.device
        before = daemon.counters('datapath', 'tx_messages')[0]
        server = two.spawn(command, 120)
        two.wait_listen(18570, server)
        client = one.spawn('%s %s' % (command, two.ip(pair.kind)), 120)
        end = time.monotonic() + 60
        while daemon.counters('datapath', 'tx_messages')[0] < before + 1000:
            for job in (server, client):
                self.assertFalse(job.done, job.describe())
            self.assertLess(time.monotonic(), end, 'no traffic')
            time.sleep(0.1)
        return client

    def test_kill_qemu_under_traffic(self):
        self.kill_qemu(cpus=1)

    def test_kill_qemu_of_two_and_four_cpus(self):
        self.kill_qemu(cpus=2, second=4)

    def kill_qemu(self, cpus, second=None):
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        links = {'pvrdma': Link(self.session, 'vmx')}
        one, two = [Guest(self.session, n, links, daemon.socket('vm%d' % n), cpus=smp)
                    for n, smp in ((1, cpus), (2, second or cpus))]
        one.start().wait_boot().load_pvrdma()
        one.gid_index('vmw_pvrdma0', one.ip('pvrdma'))
        alone = daemon.resources()
        for _ in range(1 if second else ROUNDS):
            two.start().wait_boot().load_pvrdma()
            pair = Pair([one, two], 'pvrdma', 'vmw_pvrdma0')
            pingpong(True, 4096, 100).run(pair)
            client = self.traffic(daemon, pair)
            two.kill()
            client.wait(60)
            self.assertEqual(client.how, 'exited', client.describe())
            self.assertNotEqual(client.code, 0, client.describe())
            self.assertIn('Failed status', client.out + client.err)
            daemon.check()
            self.settled(daemon, alone)
        self.assertIn('PORT_ACTIVE', one.run('ibv_devinfo').out)
        one.powerdown()
        self.assertEqual(daemon.stop(), 0)

    def test_kill_daemon(self):
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        guests = start_guests(self.session, daemon, virtio=False)
        for guest in guests:
            guest.load_pvrdma()
        client = self.traffic(daemon, Pair(guests, 'pvrdma', 'vmw_pvrdma0'))
        daemon.kill()
        for guest in guests:
            state = ''
            for _ in range(100):
                state = guest.run(PORT_STATE, 30).out
                if 'ACTIVE' not in state:
                    break
                time.sleep(0.1)
            self.assertNotIn('ACTIVE', state, guest.name)
            self.assertTrue(guest.alive)
            # Nothing waits for a device that is gone, and nothing succeeds.
            done = guest.run('ibv_rc_pingpong -d vmw_pvrdma0 -g 0 -n 1', 30, check=False)
            self.assertEqual(done.how, 'exited', done.describe())
            self.assertNotEqual(done.code, 0, done.describe())
            self.assertRegex(done.err, "(?i)couldn't|failed", done.describe())
        # The stock library polls memory that nobody writes to any more.  It is the
        # program that loops, not the kernel: it can be killed.
        client.kill(9)
        client.wait(20)
        self.assertEqual(client.how, 'killed', client.describe())
        for guest in guests:
            guest.powerdown()

    def test_daemon_does_not_answer(self):
        """Stopped under traffic, it may yet write to guest memory."""
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        guests = one, two = start_guests(self.session, daemon, virtio=False)
        for guest in guests:
            guest.load_pvrdma()
        client = self.traffic(daemon, Pair(guests, 'pvrdma', 'vmw_pvrdma0'))
        # The first guest is at no command when the daemon stops.
        daemon.proc.send_signal(signal.SIGSTOP)
        self.addCleanup(daemon.proc.send_signal, signal.SIGCONT)
        # A command of the driver, and nothing comes back from it.
        state = two.spawn(PORT_STATE, 120)
        two.wait_status('paused')
        two.qmp('cont')
        self.assertEqual(two.qmp('query-status')['status'], 'paused')
        self.assertFalse(state.done, state.describe())
        self.assertEqual(one.qmp('query-status')['status'], 'running')
        daemon.proc.send_signal(signal.SIGCONT)
        two.wait_status('running')
        state.wait(60)
        self.assertNotIn('ACTIVE', state.out)
        self.assertIn('DOWN', two.run(PORT_STATE, 30).out)
        client.wait(60)
        self.assertIn('Failed status', client.out + client.err)
        self.assertIn('ACTIVE', one.run(PORT_STATE, 30).out)
        daemon.check()
        for guest in guests:
            guest.powerdown()
        self.assertEqual(daemon.stop(), 0)


class StartErrorTest(fixture.PrivateTest):
    def fails(self, guest, change=lambda argv: argv):
        """Start QEMU, which must end with an error; returns its message."""
        argv = change(guest.command_line())
        done = subprocess.run(argv, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30,
                              stdin=subprocess.DEVNULL, check=False,
                              universal_newlines=True, cwd=self.session.dir)
        self.assertEqual(done.returncode, 1, done.stdout)
        return done.stdout

    def guest(self, socket):
        return Guest(self.session, 1, {'pvrdma': Link(self.session, 'vmx')},
                     socket)

    def test_no_daemon(self):
        text = self.fails(self.guest(self.session.path('none.sock')))
        self.assertIn('pvrdmad', text)
        self.assertIn('none.sock', text)

    def test_vm_not_declared(self):
        daemon = Daemon(self.session, ['vm1'])
        text = self.fails(self.guest(daemon.socket_dir + '/vm9.sock'))
        self.assertIn('vm9', text)
        self.assertIn('declare', text)
        daemon.check()

    def test_memory_not_shared(self):
        daemon = Daemon(self.session, ['vm1'])
        text = self.fails(self.guest(daemon.socket('vm1')), lambda argv: [
            arg.replace(',share=on', ',share=off') for arg in argv])
        self.assertIn('share=on', text)
        self.assertIn('memory-backend-memfd', text)
        daemon.check()

    def test_plain_memory(self):
        daemon = Daemon(self.session, ['vm1'])

        def plain(argv):
            place = argv.index('-object')
            argv = argv[:place] + argv[place + 2:]
            return [arg.replace(',memory-backend=mem', '') for arg in argv]

        text = self.fails(self.guest(daemon.socket('vm1')), plain)
        self.assertIn('memory-backend-memfd', text)

    def test_second_vmm_on_one_socket(self):
        daemon = Daemon(self.session, ['vm1'])
        first = self.guest(daemon.socket('vm1')).start()
        first.wait_boot()
        first.load_pvrdma()
        other = Guest(self.session, 2, {'pvrdma': Link(self.session, 'two')},
                      daemon.socket('vm1'))
        self.fails(other)
        self.assertIn('PORT_ACTIVE', first.run('ibv_devinfo').out)
        first.powerdown()
        daemon.check()


@fixture.shard('driver')
class IdleSleepTest(fixture.PrivateTest):
    """A guest suspended to idle (`echo freeze > /sys/power/state`) under the in-tree driver,
    which takes no part in that: the kernel switches bus mastering off, and on again."""

    def test_stock(self):
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        guests = start_guests(self.session, daemon, virtio=False)
        for guest in guests:
            guest.load_pvrdma()
        sleeper = guests[1]
        # The key of this keyboard wakes.
        sleeper.run('echo enabled > /sys/devices/platform/i8042/serio0/power/wakeup')
        for _ in range(ROUNDS):
            counting = ongoing.Counting(
                [ongoing.end_of(guest, parts.STOCK_DEVICE) for guest in guests], [daemon])
            counting.more()
            sleep = sleeper.spawn('dmesg -c >/dev/null; until echo freeze > /sys/power/state; '
                                  'do sleep 1; done; dmesg', 120)
            end = time.monotonic() + 120
            while not sleep.done:
                self.assertLess(time.monotonic(), end, 'it sleeps on')
                time.sleep(1)
                sleeper.qmp('send-key', keys=[{'type': 'qcode', 'data': 'shift'}])
            self.assertTrue(sleep.wait().ok, sleep.describe())
            self.assertIn('PM: suspend entry (s2idle)', sleep.out)
            # Any command of any program will do.
            sleeper.run('ibv_devinfo -d ' + parts.STOCK_DEVICE)
            counting.more()
            self.assertGreater(counting.end(), 0)
        for guest in guests:
            self.assertEqual(log_problems(guest), [])
        end_well(guests, daemon)
