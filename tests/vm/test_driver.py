# SPDX-License-Identifier: GPL-2.0-or-later
"""Our kernel driver pvrdma.ko: with both providers, beside the in-tree driver,
and when things around it break.
"""

import os
import re
import subprocess
import time

import test_provider
from lib import fixture, parts, pvrdma_vm
from lib.kernellog import log_problems
from lib.parts import KLOOP, MODULE, check_kernel_verbs, kloop_lines, \
    load_own_driver, wait_in_guest, wait_port
from lib.programs import Pair, _ports
from lib.pvrdma_vm import BUILD, Daemon, Guest, Link, \
    start_guests

DEVICE = parts.OWN_DEVICE
# What pvrdma_kloop says that had 64 WRs posted, and posted 32 afterwards.
FLUSHED = 'pvrdma0: 96 flushed, 0, 0 stray events\n'
SYSFS = '/sys/class/infiniband/' + DEVICE
PCI = '/sys/bus/pci/drivers/pvrdma'


def built(name):
    """Path of a module of ours on the host."""
    return os.path.join(os.path.dirname(test_provider.module()), name)


def guest_files():
    files = {path.lstrip('/'): built(os.path.basename(path))
             for path in (MODULE, KLOOP)}
    for name in ('bigcheck', 'capscheck', 'cqcheck', 'datacheck', 'mwcheck', 'verbscheck'):
        files['usr/local/bin/' + name] = pvrdma_vm.built_program(name)
    return files


def check_port_events(guest):
    """A program hears of each change of the port, once.  Twice over: a second
    event of one change comes before the next change."""
    watch = guest.spawn('verbscheck events -d ' + DEVICE, 60)
    watch.wait_output('ready')
    wanted = []

    def events():
        return [line for line in watch.out.splitlines()
                if line.startswith('port')]

    for how, state, event in 2 * (('down', 'DOWN', 'port error'),
                                  ('up', 'ACTIVE', 'port active')):
        guest.run('ip link set vmx0 ' + how)
        wait_port(guest, state)
        wanted.append(event)
        end = time.monotonic() + 20
        while len(events()) < len(wanted) and time.monotonic() < end:
            time.sleep(0.05)
    watch.kill(9)
    watch.wait()
    if events() != wanted:
        raise AssertionError('%s: %s' % (guest.name, watch.out))


class OwnDriverTest(test_provider.Programs, test_provider.ProviderCase):
    """All that our provider's tests do, on our driver: with extensions, and after a boot."""

    booted = True
    data_parts = 'rc srq uc inline mw'

    @classmethod
    def load_driver(cls, guest):
        load_own_driver(guest)

    @classmethod
    def guest_files(cls):
        return guest_files()

    @classmethod
    def device(cls):
        return DEVICE

    def excheck_args(self):
        return ' -i 128'

    def test_identity(self):
        for guest in self.guests:
            out = guest.run('readlink %s/device/driver; ls /sys/class/'
                            'infiniband; grep -c pvrdma- /proc/interrupts'
                            % SYSFS).out.split()
            self.assertTrue(out[0].endswith('/pvrdma'), out)
            cpus = int(guest.run('nproc').out)
            self.assertEqual(out[1:], [DEVICE, str(2 + cpus)])
            out = guest.run('ibv_devinfo -v -d ' + DEVICE).out
            for want in ('PORT_ACTIVE', '0x15ad', 'Ethernet'):
                self.assertIn(want, out)
            # By which the driver tells it from VMware's.
            self.assertEqual(guest.run('cd %s/device; cat subsystem_vendor subsystem_device'
                                       % SYSFS).out.split(), ['0x1af4', '0x1100'])

    def counters(self, guest):
        out = guest.run('rdma statistic show link %s/1' % DEVICE).out
        return {name: int(value) for name, value in
                re.findall(r'([a-z_]+) (\d+)', out)}

    def test_unreliable_connections(self):
        """With our library; a library that does not know UC is refused."""
        perf = ' -c UC ' + test_provider.PERF
        for template in (
                # A window of one message, none of which can be lost.
                'ibv_uc_pingpong -c -d {dev} -g {gid} -p {port} -s 65537 -n 100',
                'ibv_uc_pingpong -c -e -d {dev} -g {gid} -p {port} -s 4096 -n 300',
                'ib_send_lat' + perf + ' -s 64 -n 200',
                'ib_write_lat' + perf + ' -s 64 -n 200',
                'ib_send_bw' + perf + ' -s 65536 -n 100',
                'ib_write_bw' + perf + ' -s 65536 -n 100',
                'ib_write_bw' + perf + ' -s 4096 -n 200 -q 4',
                'ib_send_bw' + perf + ' -s 4096 -n 200 -e -b'):
            with self.subTest(template=template):
                self.check(template)
        refused = self.guests[0].run('ibv_uc_pingpong -d ' + DEVICE, 60, False)
        self.assertIn("Couldn't create QP", refused.err)

    def test_time_stamps(self):
        self.check('ibv_rc_pingpong -t -c -d {dev} -g {gid} -p {port} -n 500')
        self.cqcheck('stamps')
        self.cqcheck('stamps', 'checked ')

    def test_moderation(self):
        """With our library; the stock one knows it not, and no events are held back."""
        self.cqcheck('moderate')
        self.cqcheck('moderate', 'checked ')
        done = self.guests[0].run('cqcheck moderate -d %s -g %d' % (
            DEVICE, self.rdma.gids[0]), 120, False)
        self.assertIn('ibv_modify_cq', done.err)

    def test_send_slots(self):
        """Who posts until ENOMEM and polls then misses no completion."""
        self.cqcheck('slots')
        self.cqcheck('slots', 'checked ')

    def cqcheck(self, mode, run='ours '):
        done = self.guests[0].run('%scqcheck %s -d %s -g %d' % (
            run, mode, DEVICE, self.rdma.gids[0]), 120, False)
        self.assertTrue(done.ok, done.describe())
        self.assertRegex(done.out, r'[1-9][0-9]* checks, 0 errors')

    def test_windows_and_regions(self):
        """Bound, bound anew and invalidated windows, changed regions: what the other
        guest may do by their keys."""
        template = 'mwcheck -d {dev} -g {gid} -p {port}'
        for order in (1, -1):
            one, two = self.guests[::order]
            gids = self.rdma.gids[::order]
            port = next(_ports)
            first = one.spawn('ours ' + template.format(
                dev=DEVICE, gid=gids[0], port=port), 120)
            one.wait_listen(port, first)
            second = two.run('ours %s %s' % (template.format(
                dev=DEVICE, gid=gids[1], port=port), one.ip('pvrdma')), 120, check=False)
            first.wait()
            self.assertTrue(first.ok and second.ok,
                            first.describe() + second.describe())
            self.assertRegex(first.out, r'[1-9][0-9]* checks, 0 errors')

    def test_windows_of_a_killed_program(self):
        """Nothing is left of bound windows, whether made before their region or
        after it, nor of the region that they keep."""
        guest = self.guests[0]
        show = 'rdma resource show; rdma resource show mr'
        before = guest.run(show).out
        rounds = [guest.spawn('ours mwcheck -k -d %s -g %d' % (
            DEVICE, self.rdma.gids[0]), 60) for _ in range(2)]
        for job in rounds:
            job.wait_output('ready')
        self.assertNotEqual(guest.run(show).out, before)
        for job in rounds:
            job.kill(9)
            job.wait()
        test_provider.wait_until(lambda: guest.run(show).out == before,
                                 'end of the objects of killed programs', 20)
        self.assertEqual(log_problems(guest), [])

    def test_statistic(self):
        template = 'ib_write_bw -d {dev} -p {port} -F -s 65536 -n 100'
        before = [self.counters(guest) for guest in self.guests]
        for job in self.start(template, ('', '')):
            job.wait(check=True)
        after = [self.counters(guest) for guest in self.guests]
        moved = 100 * 65536
        self.assertGreaterEqual(after[1]['tx_bytes'] - before[1]['tx_bytes'],
                                moved)
        self.assertGreaterEqual(after[0]['rx_bytes'] - before[0]['rx_bytes'],
                                moved)
        self.assertGreaterEqual(
            after[1]['tx_messages'] - before[1]['tx_messages'], 100)

    def test_resources(self):
        template = 'ib_write_bw -d {dev} -p {port} -F -n 1000000 -q 3'
        jobs = self.start(template, ('', 'ours '))
        try:
            for guest in self.guests:
                wait_in_guest(guest, '[ $(rdma resource show qp link %s | '
                              'grep -c "state RT[RS].*comm ib_write_bw") = 3 ]'
                              % DEVICE, 'three connected QPs')
                out = guest.run('rdma resource show mr dev %s; '
                                'rdma resource show cq dev %s'
                                % (DEVICE, DEVICE)).out
                self.assertIn('comm ib_write_bw', out)
        finally:
            for job in jobs:
                job.kill(9)
        for guest in self.guests:
            wait_in_guest(guest, '! rdma resource show qp link %s | '
                          'grep -q ib_write_bw' % DEVICE, 'QPs gone')

    def test_interface_down_and_up(self):
        guest = self.guests[0]
        check_port_events(guest)
        for job in self.start(test_provider.PROGRAMS[0], ('', '')):
            job.wait(check=True)

    def test_reasons(self):
        """Who asks is told why a call was refused: by the library and the driver."""
        guest = self.guests[0]
        control = '/sys/kernel/debug/dynamic_debug/control'
        guest.run('[ -e {0} ] || mount -t debugfs debugfs /sys/kernel/debug; '
                  'echo module pvrdma +p > {0}'.format(control))
        self.addCleanup(guest.run, 'echo module pvrdma -p > ' + control)
        for run, program, where, reason in (
                ('VERBS_LOG_LEVEL=1 VERBS_LOG_FILE=/tmp/reason ours ',
                 'ibv_rc_pingpong -r 16777216', 'cat /tmp/reason', 'a CQ has 1 to'),
                ('', 'ibv_rc_pingpong -r 600000', 'dmesg',
                 'pvrdma_create_cq_udata: [0-9]+ entries, at most'),
                ('', 'ibv_uc_pingpong', 'dmesg', 'the library does not support UC')):
            with self.subTest(program=program):
                done = guest.run('%s%s -d %s' % (run, program, DEVICE), 60, False)
                self.assertFalse(done.ok)
                self.assertRegex(guest.run(where).out, reason)
                guest.run('dmesg -c > /dev/null')

    def test_later_providers(self):
        """What a provider asks for that this driver does not know."""
        done = self.guests[0].run('verbscheck uabi -d ' + DEVICE, check=False)
        self.assertTrue(done.ok, done.describe())
        self.assertRegex(done.out, r'[1-9][0-9]* checks, 0 errors')

    @fixture.longer('provider')
    def test_zz_kernel_log(self):
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])


@fixture.shard('driver')
class CapsTest(fixture.PrivateTest):
    """What the adapter announces, in a VM that may have little of everything."""

    def test_announced(self):
        limits = {'addresses': 'any', 'max-qp': 40, 'max-cq': 40, 'max-srq': 20,
                  'max-mr': 60, 'max-pd': 30, 'max-mr-pages': 16384}
        daemon = Daemon(self.session, {'vm1': limits, 'vm2': limits})
        files = guest_files()
        files.update({parts.LIBRARY: test_provider.provider(),
                      'usr/local/bin/ours': test_provider.OURS})
        guests = start_guests(self.session, daemon, virtio=False, files=files)
        guest = guests[0]
        load_own_driver(guest)
        gid = guest.gid_index(DEVICE, guest.ip('pvrdma'))
        done = guest.run('ours capscheck -d %s -g %d' % (DEVICE, gid), 120, False)
        self.assertTrue(done.ok, done.describe())
        self.assertRegex(done.out, r'[1-9][0-9]* checks, 0 errors')
        size = re.search(r'max_mr_size:\s+(0x[0-9a-f]+)',
                         guest.run('ibv_devinfo -v -d ' + DEVICE).out)
        self.assertEqual(int(size.group(1), 16), 16384 * 4096)
        # What ibstat and ibv_devinfo show of it.
        self.assertEqual(guest.run('cd /sys/class/infiniband/%s && cat hw_rev hca_type '
                                   'board_id' % DEVICE).out.split(), ['1', 'PVRDMA', '1'])


class DriverCase(fixture.PrivateTest):
    """Guests of its own, with our driver and the stock provider."""

    cpus = 1

    def setUp(self):
        super().setUp()
        self.files = guest_files()

    def boot(self, own=(True, True), **options):
        self.daemon = Daemon(self.session, ['vm1', 'vm2'])
        options.setdefault('cpus', self.cpus)
        self.guests = start_guests(self.session, self.daemon, virtio=False,
                                   files=self.files, **options)
        names = []
        for guest, ours in zip(self.guests, own):
            if ours:
                load_own_driver(guest)
            else:
                guest.load_pvrdma()
            names.append(DEVICE if ours else 'vmw_pvrdma0')
        return names

    def start(self, template, names, server=0):
        """Start a program in both guests, each with its device's name."""
        port = next(_ports)
        order = (server, 1 - server)
        one, two = (self.guests[i] for i in order)
        commands = [template.format(
            dev=names[i], port=port, gid=self.guests[i].gid_index(
                names[i], self.guests[i].ip('pvrdma'))) for i in order]
        first = one.spawn(commands[0], 240)
        one.wait_listen(port, first)
        return first, two.spawn('%s %s' % (commands[1], one.ip('pvrdma')), 240)

    def works(self, names=(DEVICE, DEVICE)):
        for template in test_provider.PROGRAMS[:2]:
            for job in self.start(template, names):
                job.wait(check=True)

    def traffic(self, template='ib_write_bw -d {dev} -p {port} -F -n 100000000'):
        """Traffic that does not end by itself and runs now."""
        jobs = self.start(template, (DEVICE, DEVICE))
        for guest in self.guests:
            wait_in_guest(guest, 'rdma resource show qp link %s | '
                          'grep -q "state RT[RS].*comm ib_"' % DEVICE, 'traffic')
        time.sleep(0.5)
        return jobs

    def end(self, jobs):
        for job in jobs:
            if not job.done:
                job.kill(9)
            job.wait(60)

    def finish(self):
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [], guest.name)
            guest.powerdown()


@fixture.shard('driver')
class LargeRegionTest(DriverCase):
    """More than a page directory describes, of ordinary 4 KiB pages."""

    def test_region(self):
        self.daemon = Daemon(self.session, ['vm1'])
        guest, = self.guests = start_guests(
            self.session, self.daemon, 1, virtio=False, files=self.files,
            memory=2048, boot=True)  # it is alone of its shape
        load_own_driver(guest)
        gid = guest.gid_index(DEVICE, guest.ip('pvrdma'))
        for size, places in ((1300, 8), (1, 6)):
            out = guest.run('bigcheck -d %s -g %d -m %d' % (
                DEVICE, gid, size), 240).out
            self.assertIn('max_mr_size 65536 MiB\n', out)
            self.assertIn('region of %d MiB: %d places, 0 errors'
                          % (size, places), out)
        self.finish()


@fixture.shard('driver')
class MixedDriverTest(DriverCase):
    def test_with_in_tree_driver(self):
        """Ours in one guest, the in-tree one in the other, either serving each program."""
        names = self.boot(own=(True, False))
        for template in test_provider.PROGRAMS:
            for server in (0, 1):
                with self.subTest(template=template, server=server):
                    for job in self.start(template, names, server):
                        job.wait(check=True)
        # That one gives up a command that it waits for when a signal comes; on the one
        # processor it finds the answer there.
        for guest, name in zip(self.guests, names):
            self.assertIn(' calls, 0 failed', guest.run(
                'verbscheck signals -d ' + name, 120, False).out)
        self.finish()


@fixture.shard('driver')
class SmpTest(DriverCase):
    cpus = 4

    def test_posts_from_all_cpus(self):
        self.boot()
        for guest in self.guests:
            self.assertEqual(guest.run('nproc').out.strip(), '4')
        for template in test_provider.PROGRAMS:
            with self.subTest(template=template):
                for job in self.start(template, (DEVICE, DEVICE)):
                    job.wait(check=True)
        self.check_kernel_exits()
        # At the same time: one program for each CPU.
        jobs = []
        for _ in range(4):
            jobs += self.start('ib_send_bw -d {dev} -p {port} -F -s 1024 -n 500 -e',
                               (DEVICE, DEVICE))
        for job in jobs:
            job.wait(check=True)
        self.finish()

    def check_kernel_exits(self):
        """The kernel's posts and arms are words in memory, as programs' are: of
        the stock layout each would be a doorbell.  Here the worker sleeps at times, and
        is woken; test_provider.py says how few they are where it never does."""
        def state():
            return (self.daemon.posts()[0],
                    self.daemon.counters('datapath', 'tx_messages')[0])
        before = state()
        check_kernel_verbs(self.guests[0], threads=8)
        posts, messages = (b - a for a, b in zip(before, state()))
        self.assertGreater(messages, 8 * 1600)
        self.assertLess(posts, messages / 2)

    def completions(self, guest):
        """Interrupts of each completion vector, by CPU."""
        out = guest.run('grep pvrdma-completion /proc/interrupts').out
        found = {}
        for line in out.splitlines():
            words = line.split()
            vector = re.search(r'pvrdma-completion(\d+)@', line)
            found[int(vector.group(1))] = [int(n) for n in words[1:5]]
        return found

    def test_completion_vectors(self):
        """Each vector's completions interrupt a CPU of its own, and no other."""
        self.boot()
        for vector in range(4):
            before = [self.completions(guest) for guest in self.guests]
            for job in self.start(
                    'ib_send_lat -d {dev} -p {port} -F -n 200 -e -X %d'
                    % vector, (DEVICE, DEVICE)):
                job.wait(check=True)
            for guest, old in zip(self.guests, before):
                new = self.completions(guest)
                self.assertEqual(sorted(new), [0, 1, 2, 3])
                # The guest's kernel has CQs on vector 0.
                for other in range(1, 4):
                    moved = [b - a for a, b in zip(old[other], new[other])]
                    if other != vector:
                        self.assertEqual(moved, [0, 0, 0, 0], new)
                        continue
                    self.assertGreater(moved[vector], 50, new)
                    # The first one comes where it was before it was bound.
                    self.assertLessEqual(sum(moved) - moved[vector], 1, new)
        counters = self.daemon.ctl_json('counters')['vms']
        for vm in counters:
            for vector in ('cq', 'cq1', 'cq2', 'cq3'):
                self.assertGreater(vm['interrupts'][vector], 50)
        # More vectors than there are: refused, and no harm done.
        jobs = self.start('ib_send_lat -d {dev} -p {port} -F -n 5 -e -X 4', (DEVICE, DEVICE))
        self.assertEqual([job.wait(60).ok for job in jobs], [False, False])
        self.works()
        self.finish()

    def test_unload_and_death_under_traffic(self):
        """The driver goes, then the device, each while all CPUs post."""
        self.boot()
        guest = self.guests[0]
        jobs = [job for _ in range(4) for job in self.traffic()]
        guest.run('rmmod pvrdma && insmod ' + MODULE, 120)
        wait_port(guest, 'ACTIVE')
        self.end(jobs)
        self.works()
        jobs = [job for _ in range(3) for job in self.traffic()]
        for guest in self.guests:
            guest.run('insmod %s hold=1' % KLOOP)
        self.daemon.kill()
        for guest in self.guests:
            wait_port(guest, 'DOWN')
            guest.run('rmmod pvrdma', 120)
            self.assertIn(FLUSHED, kloop_lines(guest))
        self.end(jobs)
        self.finish()


class PackedKernel(Guest):
    """Woken from memory, a kernel that QEMU has started by PVH's way does not go on."""

    def command_line(self):
        args = super().command_line()
        args[args.index('-kernel') + 1] = pvrdma_vm.image('vmlinuz')
        return args


@fixture.shard('driver')
class RobustTest(DriverCase):
    cpus = 2

    def gone(self, guest):
        """Start a program that has the device open, see missing()."""
        job = guest.spawn('verbscheck gone -d ' + DEVICE, 120, stdin=True)
        job.wait_output('ready')
        return job

    def missing(self, job):
        """The device is gone: all calls fail, and say so."""
        job.stdin(b'go\n')
        job.wait(check=True)
        lines = job.out.splitlines()[1:]
        self.assertEqual(len(lines), 7, job.out)
        for line in lines:
            self.assertIn('Input/output error', line)

    def test_unload_under_traffic(self):
        self.boot()
        guest = self.guests[0]
        for events in ('', ' -e'):
            jobs = self.traffic('ib_send_bw -d {dev} -p {port} -F -n 100000000' + events)
            opened = self.gone(guest)
            guest.run('rmmod pvrdma', 60)
            self.assertEqual(guest.run('ls /sys/class/infiniband').out, '')
            self.missing(opened)
            self.end(jobs)
            guest.run('insmod ' + MODULE)
            wait_port(guest, 'ACTIVE')
            self.works()
        self.finish()

    def test_rebind_under_traffic(self):
        self.boot()
        guest = self.guests[1]
        address = guest.run('basename $(readlink %s/device)'
                            % SYSFS).out.strip()
        for _ in range(5):
            jobs = self.traffic()
            opened = self.gone(guest)
            guest.run('echo %s > %s/unbind' % (address, PCI), 60)
            guest.run('echo %s > %s/bind' % (address, PCI), 60)
            wait_port(guest, 'ACTIVE')
            self.missing(opened)
            self.end(jobs)
        self.works()
        self.finish()

    def test_pci_remove_and_rescan(self):
        self.boot()
        guest = self.guests[0]
        jobs = self.traffic()
        guest.run('echo 1 > %s/device/remove' % SYSFS, 60)
        self.end(jobs)
        guest.run('echo 1 > /sys/bus/pci/rescan', 60)
        wait_port(guest, 'ACTIVE')
        self.works()
        self.finish()

    def test_reset_under_traffic(self):
        """The PCI function is reset: the adapter goes and comes back."""
        self.boot()
        guest = self.guests[1]
        reset = guest.run('readlink -f %s/device' % SYSFS).out.strip() + \
            '/reset'
        for _ in range(5):
            jobs = self.traffic()
            guest.run('echo 1 > ' + reset, 60)
            wait_port(guest, 'ACTIVE')
            # The programs still run, but their QPs went with the reset.
            wait_in_guest(guest, '! rdma resource show qp link %s | '
                          'grep -q "comm ib_"' % DEVICE, 'QPs gone')
            self.end(jobs)
        self.works()
        self.finish()

    def test_suspend_and_resume(self):
        """The machine sleeps, which resets its devices, and is woken."""
        self.boot(kind=PackedKernel)
        guest = self.guests[0]
        jobs = self.traffic()
        sleep = guest.spawn('until echo mem > /sys/power/state; do '
                            'sleep 1; done', 120)
        guest.wait_status('suspended')
        self.assertFalse(sleep.done)
        guest.qmp('system_wakeup')
        sleep.wait(check=True)
        wait_port(guest, 'ACTIVE')
        self.end(jobs)
        # QEMU's vmxnet3 receives nothing more if packets came meanwhile, so
        # programs could not find each other.
        guest.gid_index(DEVICE, guest.ip('pvrdma'))
        check_kernel_verbs(guest)
        self.assertEqual(log_problems(guest), [])
        # After its wake-up, this machine does not switch itself off.
        guest.kill()
        self.guests.remove(guest)
        self.finish()

    def test_load_and_unload_often(self):
        self.boot()
        guest = self.guests[0]
        for _ in range(20):
            guest.run('rmmod pvrdma && insmod ' + MODULE, 60)
        wait_port(guest, 'ACTIVE')
        self.works()
        memory = self.daemon.resources()
        for _ in range(20):
            guest.run('rmmod pvrdma && insmod ' + MODULE, 60)
        self.assertLessEqual(self.daemon.resources()['fds'], memory['fds'])
        self.finish()

    def test_interface_comes_after_the_driver(self):
        self.boot()
        guest = self.guests[0]
        guest.run('rmmod pvrdma && rmmod vmxnet3 && insmod ' + MODULE)
        wait_port(guest, 'DOWN')
        guest.run('modprobe vmxnet3')
        wait_in_guest(guest, '[ -e /sys/class/net/eth0 ]', 'the interface')
        guest.run('ip link set eth0 name vmx0 && ip addr add %s/24 dev vmx0 '
                  '&& ip link set vmx0 up' % guest.ip('pvrdma'))
        wait_port(guest, 'ACTIVE')
        self.works()
        # And it goes while the driver stays, with programs at work.
        jobs = self.traffic()
        guest.run('rmmod vmxnet3', 60)
        wait_port(guest, 'DOWN')
        self.end(jobs)
        self.finish()

    def test_killed_program_and_unload(self):
        """Programs killed and waited for while the module goes."""
        self.boot()
        for _ in range(5):
            jobs = self.traffic()
            for job in jobs:
                job.kill(9)
            self.guests[0].run('rmmod pvrdma && insmod ' + MODULE, 60)
            self.end(jobs)
            wait_port(self.guests[0], 'ACTIVE')
        self.works()
        self.finish()

    def test_daemon_killed_under_traffic(self):
        self.boot()
        jobs = self.traffic()
        self.daemon.kill()
        for guest in self.guests:
            wait_port(guest, 'DOWN')
            begin = time.monotonic()
            done = guest.run('ibv_rc_pingpong -d %s' % DEVICE, 60,
                             check=False)
            self.assertFalse(done.ok)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertIn('state DOWN', guest.run('rdma link', 60).out)
        self.end(jobs)
        for guest in self.guests:
            guest.run('rmmod pvrdma', 60)
            self.assertTrue(guest.alive)
        self.finish()

    def test_kernel_requests_of_a_dead_device(self):
        """What kernel users have posted, and post, ends as flushed."""
        self.boot()
        for guest in self.guests:
            guest.run('insmod %s hold=1' % KLOOP)
        self.daemon.kill()
        for guest in self.guests:
            wait_port(guest, 'DOWN')
            guest.run('rmmod pvrdma', 60)
            self.assertIn(FLUSHED, kloop_lines(guest))
        self.finish()

    def test_faulty_device(self):
        """What no real device does, see guest-driver/selftest/fault.c."""
        self.boot()
        guest = self.guests[0]
        for fault in ('cqe', 'qpn', 'caps'):
            guest.run('insmod %s fault=%s; rmmod pvrdma_kloop' % (KLOOP, fault))
            self.assertIn('pvrdma0: %s, 0\n' % fault, kloop_lines(guest))
        self.works()
        for fault, complaints in (('fatal', 0), ('refuse', 1),
                                  ('refuse_user', 1)):
            self.assertEqual(log_problems(guest), [])
            jobs = self.traffic() if 'user' in fault else []
            watch = guest.spawn('verbscheck events -d ' + DEVICE, 120)
            watch.wait_output('ready')
            guest.run('dmesg -c > /dev/null; insmod %s hold=1 fault=%s'
                      % (KLOOP, fault))
            self.assertIn('pvrdma0: %s, 0\n' % fault, kloop_lines(guest))
            self.end(jobs)
            wait_port(guest, 'DOWN')
            # Told while the adapter is there, which programs cannot tell from one that
            # only has lost its wire, and not only when the module goes.
            watch.wait_output('local catastrophic error')
            watch.kill(9)
            watch.wait()
            # The device lives, so it must have been reset before anything
            # was given back.
            self.assertEqual(self.daemon.ctl_json('qp', 'list', 'vm1')['qps'],
                             [])
            guest.run('rmmod pvrdma_kloop', 60)
            self.assertIn(FLUSHED, kloop_lines(guest))
            log = guest.run('dmesg').out
            self.assertIn('device failed: it ', log)
            guest.run('rmmod pvrdma && insmod ' + MODULE, 60)
            wait_port(guest, 'ACTIVE')
            self.works()
            log = log_problems(guest)
            self.assertEqual(len(log), complaints, log)
            for line in log:
                self.assertRegex(line, r'command \d+ failed for handle')
            guest.run('dmesg -c > /dev/null')
        self.finish()

    def test_shared_queue_of_a_dead_device(self):
        """Who drains a queue pair with an SRQ is told of its last receive; and what tells
        him runs when there is no memory, too."""
        self.boot()
        guest = self.guests[0]
        self.assertRegex(guest.run('ps').out, r'\[(kworker/R-)?pvrdma\]')
        guest.run('insmod %s hold=1 srq=1 fault=fatal' % KLOOP)
        wait_port(guest, 'DOWN')
        guest.run('rmmod pvrdma_kloop', 180)
        lines = kloop_lines(guest)
        self.assertIn('pvrdma0: 0 flushed, 0, 0 stray events\n', lines)
        self.assertNotIn('no last WQE', lines)
        self.finish()

    def test_power_off_with_users(self):
        """The end of the machine waits for no user of the device."""
        self.boot()
        guest = self.guests[0]
        guest.run('insmod %s hold=1' % KLOOP)
        jobs = self.traffic()
        # Were the device removed, pvrdma_kloop would wait for 300 s, and this
        # would not.
        guest.powerdown()
        self.guests.remove(guest)
        jobs[1].kill(9)
        self.finish()


@fixture.shard('driver')
class HotplugTest(DriverCase):
    """The adapter in a slot of its own, plugged in a running guest."""

    def plug(self, guest):
        guest.qmp('device_add', driver='pvrdma', id='rdma0', bus='rp',
                  socket=self.daemon.socket(guest.name))

    def unplug(self, guest):
        guest.qmp('device_del', id='rdma0')
        end = time.monotonic() + 60
        while 'rdma0' in [each['name'] for each in guest.qmp(
                'qom-list', path='/machine/peripheral')]:
            self.assertLess(time.monotonic(), end, 'the guest keeps it')
            time.sleep(0.1)

    def boot_without(self):
        vms = {'vm%d' % n: {'addresses': 'any',
                            'mac': '52:54:00:77:00:%02x' % n} for n in (1, 2)}
        self.daemon = Daemon(self.session, vms)
        link = Link(self.session, 'vmx')
        self.guests = []
        for n in (1, 2):
            self.guests.append(Guest(
                self.session, n, {'pvrdma': link}, files=self.files, boot=True,
                extra_args=['-device', 'pcie-root-port,id=rp,bus=pcie.0,addr=0x9.0,'
                            'chassis=9,mem-reserve=8M']))
            self.guests[-1].extra_args += [
                '-m', '%dM,slots=1,maxmem=2G' % self.guests[-1].memory]
            self.guests[-1].start()
        for guest in self.guests:
            guest.wait_boot()

    def test_adapter_and_memory(self):
        self.boot_without()
        one, two = self.guests
        for guest in self.guests:
            self.plug(guest)
            load_own_driver(guest)
        self.works()
        for _ in range(2):
            jobs = self.traffic()
            self.unplug(two)
            self.assertEqual(two.run('ls /sys/class/infiniband').out, '')
            self.end(jobs)
            self.plug(two)
            wait_port(two, 'ACTIVE')
            self.works()
        jobs = self.traffic()
        before = int(two.run("awk '/MemTotal/ {print $2}' /proc/meminfo").out)
        two.qmp('object-add', **{'qom-type': 'memory-backend-memfd',
                                 'id': 'more', 'size': 128 << 20,
                                 'share': True})
        two.qmp('device_add', driver='pc-dimm', id='dimm', memdev='more')
        wait_in_guest(two, 'for s in /sys/devices/system/memory/memory*/state; '
                      'do grep -q online $s || echo online > $s; done; '
                      '[ $(awk \'/MemTotal/ {print $2}\' /proc/meminfo) -gt %d ]'
                      % (before + 120000), 'more memory')
        for job in jobs:
            self.assertFalse(job.done, job.describe())
        self.end(jobs)
        self.works()
        self.assertTrue(one.alive)
        self.finish()
        self.assertEqual(self.daemon.stop(), 0)


class VirtioGuest(Guest):
    """A guest whose pvrdma device stands beside a virtio NIC, or at another
    place."""

    place = '0x6.1'

    def _devices(self):
        netdev, nic = self.links['virtio'].netdev(self, 'n1'), self.mac('virtio')
        args = ['-netdev', netdev, '-device', 'virtio-net-pci,netdev=n1,mac=%s,'
                'bus=pcie.0,addr=0x6.0,multifunction=on,romfile=' % nic]
        if self.place == '0x9.1':
            # QEMU wants some device as function 0 of the slot.
            args += ['-device', 'virtio-rng-pci,bus=pcie.0,addr=0x9.0,'
                     'multifunction=on', '-device',
                     'virtio-net-pci,bus=pcie.0,addr=0xa.0,romfile=']
        return args + ['-device', 'pvrdma,id=rdma0,socket=%s,bus=pcie.0,'
                       'addr=%s' % (self.socket, self.place)]


@fixture.shard('driver')
class PairingTest(fixture.PrivateTest):
    def check(self, place, named):
        """@place of the device; @named: the daemon names the NIC by its
        hardware address."""
        link = Link(self.session, 'vio')
        vms = {'vm%d' % n: {'addresses': 'any'} for n in (1, 2)}
        if named:
            for n in (1, 2):
                vms['vm%d' % n]['mac'] = '52:54:00:78:00:%02x' % n
        daemon = Daemon(self.session, vms)
        guests = []
        for n in (1, 2):
            guests.append(VirtioGuest(self.session, n, {'virtio': link},
                                      daemon.socket('vm%d' % n),
                                      files=guest_files()))
            guests[-1].place = place
            guests[-1].start()
        for guest in guests:
            guest.wait_boot()
            load_own_driver(guest)
            self.assertIn('netdev vio0', guest.run('rdma link').out)
        pair = Pair(guests, 'virtio', DEVICE)
        pair.run('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -n 200')
        if named and place == '0x9.1':
            self.second_nic(guests[0], '52:54:00:78:00:01')
        for guest in guests:
            self.assertEqual(log_problems(guest), [])
            guest.powerdown()
        self.assertEqual(daemon.stop(), 0)

    def second_nic(self, guest, address):
        """Of two with the address the second is taken when the first one goes."""
        other = guest.run('ls /sys/bus/pci/devices/0000:00:0a.0/virtio*/net').out.strip()
        guest.run('ip link set %s down; ip link set %s address %s' % (other, other, address))
        self.assertIn('netdev vio0', guest.run('rdma link').out)
        guest.run('echo 0000:00:06.0 > /sys/bus/pci/drivers/virtio-pci/unbind')
        wait_in_guest(guest, 'rdma link | grep -q "netdev %s"' % other, 'another interface')
        # Each of them is reported as gone at the end, in whatever order.
        guest.run('rmmod pvrdma', 60)

    def test_by_slot_with_virtio(self):
        self.check('0x6.1', named=False)

    def test_by_hardware_address(self):
        self.check('0x9.1', named=True)

    def test_by_hardware_address_as_function_0(self):
        self.check('0x9.0', named=True)


class KernelArgs(Guest):
    """A guest with more on its kernel's command line."""

    kernel_args = ''

    def command_line(self):
        args = super().command_line()
        args[args.index('-append') + 1] += ' ' + self.kernel_args
        return args


@fixture.shard('driver')
class BounceTest(fixture.PrivateTest):
    def test_refused(self):
        """Memory that the device cannot share: a reason, and no adapter."""
        daemon = Daemon(self.session, ['vm1'])
        guest = KernelArgs(self.session, 1, {'pvrdma': Link(self.session,
                                                            'vmx')},
                           daemon.socket('vm1'), files=guest_files())
        guest.kernel_args = 'swiotlb=force'
        guest.start().wait_boot()
        guest.run('modprobe rdma_ucm && insmod ' + MODULE)
        self.assertIn('bounce buffers (swiotlb=force): RDMA does not work',
                      guest.run('dmesg').out)
        self.assertEqual(guest.run('ls /sys/class/infiniband').out, '')
        guest.run('rmmod pvrdma')
        guest.powerdown()
        self.assertEqual(daemon.stop(), 0)


@fixture.shard('driver')
class OtherKernelTest(DriverCase):
    """The driver in guests with the kernels of other Debian releases.

    guest-driver/build-env.sh makes them, at the first run in minutes; the rest of
    the guest is as everywhere.
    """

    time_limit = 1800  # it may have to fetch and unpack what it runs

    def run_suite(self, folder):
        self.files[MODULE.lstrip('/')] = os.path.join(folder, 'pvrdma.ko')
        self.files[parts.LIBRARY] = test_provider.provider()
        self.files['usr/local/bin/ours'] = test_provider.OURS
        images = pvrdma_vm.IMAGES
        pvrdma_vm.IMAGES = os.path.join(folder, 'images')
        try:
            self.boot(memory=512, boot=True)
        finally:
            pvrdma_vm.IMAGES = images
        release = self.guests[0].run('uname -r').out.strip()
        self.assertTrue(os.path.exists(os.path.join(folder, 'kernel',
                                                    release)), release)
        names = (DEVICE, DEVICE)
        for template in test_provider.PROGRAMS:
            with self.subTest(kernel=release, template=template):
                for job in self.start(template, names):
                    job.wait(check=True)
        jobs = self.traffic()
        self.guests[0].run('rmmod pvrdma && insmod ' + MODULE, 60)
        wait_port(self.guests[0], 'ACTIVE')
        self.end(jobs)
        self.works()
        self.assertIn('tx_bytes', self.guests[0].run('rdma statistic').out)
        check_port_events(self.guests[0])
        self.check_dmabuf(self.guests[1])
        self.finish()

    def check_dmabuf(self, guest):
        """A region of a DMA buffer: Debian 12's kernel has none to offer."""
        out = guest.run('ours bigcheck -u -m 32 -d %s -g %d' % (
            DEVICE, guest.gid_index(DEVICE, guest.ip('pvrdma'))), 120).out
        self.assertIn('region of 32 MiB: 6 places, 0 errors', out)

    def check(self, suite):
        done = subprocess.run(
            [os.path.join(pvrdma_vm.REPO, 'guest-driver', 'build-env.sh'),
             '--boot', suite, BUILD], stderr=subprocess.PIPE,
            universal_newlines=True, check=False)
        if done.returncode == 3:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        folder = os.path.join(BUILD, 'guest-driver', suite)
        self.run_suite(folder)

    def test_trixie(self):
        self.check('trixie')

    def test_testing(self):
        self.check('testing')


if pvrdma_vm.debug_kernel():
    # It takes the place of the other kernels.
    del OtherKernelTest
