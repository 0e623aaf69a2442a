# SPDX-License-Identifier: GPL-2.0-or-later
"""Our rdma-core provider on the in-tree driver and on ours, alone, beside the
stock one and against it.

Both libraries are in the guests; a program under `ours` sees our file in place of
the stock one, in a mount namespace of its own, so that programs with either run
side by side in one guest.
"""

import hashlib
import os
import re
import subprocess
import time

from lib import fixture, parts
from lib.programs import NO_ERRORS, Pair, _ports
from lib.pvrdma_vm import BUILD, REPO, Daemon, VmError, built_program, \
    say, start_guests

OURS = b'''#!/bin/sh
# Run a program with our provider.
exec unshare -m sh -c 'mount --bind %s "$0" && exec "$@"' \\
    %s "$@"
''' % (parts.LIBRARY.encode(), parts.STOCK_LIBRARY.encode())

# Our provider with AddressSanitizer, whose library must come first.
CHECKED_LIBRARY = '/opt/pvrdma/asan/provider.so'
CHECKED = '''#!/bin/sh
# Run a program with our provider, in which each access is checked.
export ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=/opt/pvrdma/asan
exec unshare -m sh -c 'mount --bind %s "$0" && \\
    LD_PRELOAD=/opt/pvrdma/asan/libasan.so exec "$@"' %s "$@"
'''.encode() % (CHECKED_LIBRARY.encode(), parts.STOCK_LIBRARY.encode())
CHECKED_CFLAGS = ('-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all '
                  '-fsanitize=address,undefined '
                  '-fsanitize-undefined-trap-on-error')

# Programs and libibverbs of other Debian releases, each under /other/SUITE.
OTHER = '''#!/bin/sh
# other SUITE PROGRAM...: run it in that release's root, where our provider lies.
root=/other/$1
shift
if [ ! -e $root/lib64 ]; then
    ln -s usr/lib $root/lib && ln -s usr/lib64 $root/lib64
    chmod 755 $root/usr/lib64/* $root/usr/bin/*
    for dir in dev sys proc tmp; do
        mkdir -p $root/$dir && mount --bind /$dir $root/$dir
    done
fi
exec chroot $root /usr/bin/"$@"
'''.encode()

# Programs of ours that the tests need in the guests.
OWN_PROGRAMS = ('datacheck', 'eventcheck', 'excheck', 'threadcheck', 'udcheck')

# Receives that a thread of pvrdma_kloop posts to its SRQ before it sends.
KLOOP_BATCH = 64

# How long a lost wake-up is looked for, and that in the long run.
SECONDS, LONG_SECONDS = 5, 360

PERF = '-d {dev} -p {port} -F'
PROGRAMS = [
    'ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 4096 -n 300',
    'ibv_rc_pingpong -c -e -d {dev} -g {gid} -p {port} -s 4096 -n 300',
    'ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 65537 -n 20',
    'datacheck -d {dev} -g {gid} -p {port} -n 1',
    'udcheck -d {dev} -g {gid} -p {port} -n 2',
    'ib_send_bw ' + PERF + ' -c UD -s 1024 -n 500',
    'ib_send_lat ' + PERF + ' -s 8 -n 200',
    'ib_write_lat ' + PERF + ' -s 8 -n 200',
    'ib_read_lat ' + PERF + ' -s 8 -n 200',
    'ib_atomic_lat ' + PERF + ' -n 200',
    'ib_send_bw ' + PERF + ' -s 4096 -n 500 -q 8',
    'ib_write_bw ' + PERF + ' -s 65536 -n 100 -b',
    'ib_send_bw ' + PERF + ' -s 1024 -n 500 -e',
    'ibv_srq_pingpong -c -d {dev} -g {gid} -p {port} -s 4096 -n 400 -q 8',
    'ibv_srq_pingpong -c -e -d {dev} -g {gid} -p {port} -s 65537 -n 100 -q 8',
    'ib_send_bw ' + PERF + ' -s 4096 -n 500 --use-srq -q 4',
]


# Through the extended verbs.
DATAGRAMS = 'udcheck -x -d {dev} -g {gid} -p {port}'


def provider():
    """Path of our library for the guests' own libibverbs."""
    found = parts.built_library()
    if not found:
        raise VmError('not built: run guest-provider/build.sh')
    return found


def module():
    """Path of our driver."""
    found = parts.built_module()
    if not found:
        raise VmError('not built: run guest-driver/build.sh')
    return found


def other_suites():
    """The Debian suites that fetch-runtime.sh is to fetch libibverbs of, and its
    private ABI; None where that, or our library for it, is not there."""
    suites = {}
    for suite in os.environ.get('PVRDMA_RDMA_CORE_SUITES',
                                'trixie testing').split():
        path = os.path.join(BUILD, 'guest-provider', 'runtime-' + suite, 'abi')
        suites[suite] = None
        if os.path.exists(path):
            with open(path) as stream:
                abi = int(stream.read())
            if parts.built_library(abi):
                suites[suite] = abi
    return suites


def runtime_files(suite, abi):
    """A suite's files, with our library for its ABI for the stock one."""
    root = os.path.join(BUILD, 'guest-provider', 'runtime-' + suite)
    library = parts.built_library(abi)
    files = {'usr/local/bin/other': OTHER}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            target = os.path.join('other', suite, os.path.relpath(path, root))
            files[target] = library if name.startswith('libvmw_pvrdma') \
                else path
    for name in OWN_PROGRAMS:
        files['other/%s/usr/bin/%s' % (suite, name)] = built_program(name)
    return files


def checked_files():
    """Our provider with AddressSanitizer and UndefinedBehaviorSanitizer, built of
    the headers of the plain one, and what the former's library needs."""
    build = os.path.join(BUILD, 'provider-asan')
    headers = os.path.join(BUILD, 'guest-provider', 'abi-%d' % parts.ABI,
                           'include', 'infiniband', 'driver.h')
    source = os.path.dirname(os.path.dirname(os.path.realpath(headers)))
    done = subprocess.run(
        [os.path.join(REPO, 'guest-provider', 'build.sh'),
         '--builddir=' + build, '--rdma-core-src=' + source],
        env=dict(os.environ, CFLAGS=CHECKED_CFLAGS, CC='gcc'),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        universal_newlines=True, check=False)
    if done.returncode:
        raise VmError('no provider with sanitizers:\n%s' % done.stdout)
    library = parts.built_library(build=build)
    files = {CHECKED_LIBRARY: library, 'usr/local/bin/checked': CHECKED}
    listed = subprocess.run(['ldd', library], stdout=subprocess.PIPE,
                            universal_newlines=True, check=True).stdout
    for name, path in re.findall(r'(\S+) => (/\S+)', listed):
        if name.startswith('libasan'):
            files['opt/pvrdma/asan/libasan.so'] = path
        if name.startswith(('libasan', 'libm.', 'libgcc_s.', 'libstdc++.')):
            files['opt/pvrdma/asan/' + name] = path
    if 'opt/pvrdma/asan/libasan.so' not in files:
        raise VmError('the provider with sanitizers has no libasan')
    return files


def wait_until(condition, what, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise VmError('no %s within %d s' % (what, seconds))
        time.sleep(0.1)


class ProviderCase(fixture.SessionTest):
    """One pair of guests for all tests of a class; load_driver() decides what
    drives the device there."""

    daemon_args = ()
    # Threads that post, poll and make QPs meet only on more than one.
    cpus = 2
    booted = False  # whether its guests have to have booted

    @classmethod
    def boot(cls):
        library = provider()
        with open(library, 'rb') as stream:
            cls.digest = hashlib.sha256(stream.read()).hexdigest()
        files = {parts.LIBRARY: library,
                 'usr/local/bin/ours': OURS}
        files.update(cls.guest_files())
        files.update(checked_files())
        cls.suites = other_suites()
        for suite, abi in cls.suites.items():
            if abi:
                files.update(runtime_files(suite, abi))
        for name in OWN_PROGRAMS:
            files['usr/local/bin/' + name] = built_program(name)
        cls.daemon = Daemon(cls.session, ['vm1', 'vm2'], args=cls.daemon_args)
        cls.daemons = [cls.daemon]
        cls.guests = start_guests(cls.session, cls.daemon, virtio=False,
                                  files=files, cpus=cls.cpus, boot=cls.booted)
        for guest in cls.guests:
            cls.load_driver(guest)
        cls.rdma = Pair(cls.guests, 'pvrdma', cls.device())

    @classmethod
    def guest_files(cls):
        """More files for the guests, as of Guest's @files."""
        kloop = os.path.join(BUILD, 'guest', os.path.basename(parts.KLOOP))
        return {parts.KLOOP: kloop} if os.path.exists(kloop) else {}

    @classmethod
    def load_driver(cls, guest):
        guest.load_pvrdma()

    @classmethod
    def device(cls):
        return 'vmw_pvrdma0'

    def start(self, template, prefixes):
        """Start @template in both guests; the pair of jobs."""
        port = next(_ports)
        one, two = self.guests
        commands = [prefix + template.format(dev=self.rdma.device, gid=gid,
                                             port=port)
                    for prefix, gid in zip(prefixes, self.rdma.gids)]
        limit = 3600 if fixture.LONG else 240
        first = one.spawn(commands[0], limit)
        one.wait_listen(port, first)
        second = two.spawn('%s %s' % (commands[1], one.ip('pvrdma')), limit)
        return first, second

    def check(self, template, prefixes=('ours ', 'ours ')):
        for job in self.start(template, prefixes):
            job.wait(check=True)

    def excheck(self, arguments, check=True, run='ours '):
        return self.guests[0].run('%sexcheck -d %s -g %d %s' % (
            run, self.rdma.device, self.rdma.gids[0], arguments), 120, check)


    def threadcheck(self, arguments, run='ours '):
        """Threads on common queues, in both guests at once."""
        jobs = [guest.spawn('%sthreadcheck -d %s -g %d %s' % (
            run, self.rdma.device, gid, arguments), 3600 if fixture.LONG else 240)
                for guest, gid in zip(self.guests, self.rdma.gids)]
        for job in jobs:
            self.assertRegex(job.wait(check=True).out, NO_ERRORS)


class Programs:
    """Before a ProviderCase: what both drivers must do."""

    # What datacheck finds to do with our library on this driver.
    data_parts = 'rc srq'

    def excheck_args(self):
        """The in-tree driver has no inline data to grant."""
        return ' -i 0'

    def test_kernel_verbs(self):
        for guest in self.guests:
            parts.check_kernel_verbs(guest, device=self.device())

    def test_other_rdma_core(self):
        """Our library under the libibverbs of other releases, against ours under
        the image's and against themselves."""
        for suite, abi in self.suites.items():
            with self.subTest(suite=suite):
                self.assertTrue(abi, 'no libibverbs of %s, or no provider for it: '
                                'run guest-provider/fetch-runtime.sh and '
                                'guest-provider/build.sh' % suite)
            if not abi:
                continue
            other = 'other %s ' % suite
            for template in PROGRAMS[:4]:
                with self.subTest(suite=suite, template=template):
                    self.check(template, ('ours ', other))
            with self.subTest(suite=suite):
                self.check(PROGRAMS[1], (other, other))
                # The stock provider has none of what this asks for.
                done = self.excheck(self.excheck_args(), run=other)
                self.assertRegex(done.out, NO_ERRORS)
                self.threadcheck('-n 500', other)

    def test_events(self):
        """Of QPs, CQs and SRQs, one after another, each for its object alone."""
        for run in ('', 'ours '):
            done = self.guests[0].run('%seventcheck -d %s -g %d' % (
                run, self.rdma.device, self.rdma.gids[0]), 120, check=False)
            self.assertTrue(done.ok, done.describe())
            self.assertIn('\n8 events, 0 errors', done.out)

    def run_all(self, prefixes):
        for template in PROGRAMS:
            with self.subTest(template=template):
                self.check(template, prefixes)

    def test_the_right_library_is_used(self):
        command = 'sha256sum ' + parts.STOCK_LIBRARY
        for guest in self.guests:
            self.assertIn(self.digest, guest.run('ours ' + command).out)
            self.assertNotIn(self.digest, guest.run(command).out)
            # libibverbs really loads it.  Both have the same path, so it is the
            # file's number that must be mapped.
            ours, stock = guest.run('stat -c %%i %s %s' % (
                parts.LIBRARY, parts.STOCK_LIBRARY)).out.split()
            self.assertNotEqual(ours, stock)
            self.assertEqual(self.mapped(guest, 'ours '), {ours})
            self.assertEqual(self.mapped(guest, ''), {stock})

    def mapped(self, guest, run):
        """Inodes of the provider's files that a program has mapped."""
        maps = guest.run(
            "%ssh -c 'ibv_rc_pingpong -d %s -g %d -p %d >/dev/null & "
            "for i in $(seq 50); do grep -q uverbs /proc/$!/maps && break; "
            "usleep 100000; done; grep libvmw_pvrdma /proc/$!/maps; kill $!'"
            % (run, self.rdma.device, self.rdma.gids[0], next(_ports)))
        return {line.split()[4] for line in maps.out.splitlines()
                if 'libvmw_pvrdma' in line}

    def test_ours_with_ours(self):
        self.run_all(('ours ', 'ours '))

    def test_stock_with_ours(self):
        self.run_all(('', 'ours '))

    # test_side_by_side() has a little of these.

    @fixture.shard('provider')
    def test_ours_with_stock(self):
        self.run_all(('ours ', ''))

    @fixture.shard('provider')
    def test_stock_with_stock(self):
        self.run_all(('', ''))

    def test_side_by_side(self):
        """Programs with either provider at the same time in both guests."""
        template = 'ibv_rc_pingpong -c -e -d {dev} -g {gid} -p {port} -n 800'
        jobs = [job for prefixes in (('ours ', 'ours '), ('', ''),
                                     ('ours ', ''), ('', 'ours '))
                for job in self.start(template, prefixes)]
        for job in jobs:
            job.wait(check=True)

    def test_extended_api(self):
        for guest, gid in zip(self.guests, self.rdma.gids):
            done = guest.run('ours excheck -d %s -g %d%s' % (
                self.rdma.device, gid, self.excheck_args()), 120)
            self.assertRegex(done.out, NO_ERRORS)
        self.check(DATAGRAMS + self.excheck_args())

    def test_every_operation(self):
        """By extended verbs; PROGRAMS has it by plain ones."""
        for job in self.start('datacheck -x -d {dev} -g {gid} -p {port}',
                              ('ours ', 'ours ')):
            out = job.wait(check=True).out
            self.assertIn('parts: %s\n' % self.data_parts, out)
            self.assertRegex(out, NO_ERRORS)

    def test_threads(self):
        self.threadcheck('-n 10000')
        self.threadcheck('-n 2000', '')

    def test_checked(self):
        """Each access of our library is checked, under the real libibverbs and
        driver, whose structures it shares."""
        done = self.excheck(self.excheck_args(), run='checked ')
        self.assertRegex(done.out, NO_ERRORS)
        self.threadcheck('-n 1000', 'checked ')
        self.check(PROGRAMS[1], ('checked ', 'checked '))
        self.check(DATAGRAMS + self.excheck_args(), ('checked ', 'checked '))
        maps = self.mapped(self.guests[0], 'checked ')
        inode = self.guests[0].run('stat -c %i ' + CHECKED_LIBRARY).out.strip()
        self.assertEqual(maps, {inode})

    def test_stock_has_no_extended_api(self):
        """Shows that the test above does use our library."""
        done = self.excheck('', check=False, run='')
        self.assertEqual(done.code, 3, done.describe())

    def test_killed_programs_leave_nothing(self):
        """kill -9 in the middle of traffic: all objects go, and the device can be
        used after."""
        before = self.objects()
        template = 'ib_write_bw -d {dev} -p {port} -F -n 1000000 -q 4'
        sent = self.daemon.counters('datapath', 'tx_messages')
        jobs = self.start(template, ('ours ', 'ours '))
        wait_until(lambda: max(self.daemon.counters(
            'datapath', 'tx_messages')) > max(sent) + 100, 'traffic', 60)
        for was, now in zip(before, self.objects()):
            self.assertGreaterEqual(now['qps'], was['qps'] + 4)
            self.assertGreater(now['mrs'], was['mrs'])
        for job in jobs:
            job.kill(9)
        wait_until(lambda: self.objects() == before, 'end of the objects', 20)
        self.check(PROGRAMS[0])
        wait_until(lambda: self.objects() == before, 'end of the objects', 20)

    def objects(self):
        """Of each VM, how many of each kind."""
        return [vm['objects'] for vm in self.daemon.ctl_json('counters')['vms']
                if vm['attached']]


class ProviderTest(Programs, ProviderCase):
    """On the in-tree driver.  What the core has on ours already, and in which the driver
    has little part, is in the shard."""

    @fixture.shard('provider')
    def test_other_rdma_core(self):
        super().test_other_rdma_core()

    @fixture.shard('provider')
    def test_stock_with_ours(self):
        super().test_stock_with_ours()

    @fixture.shard('provider')
    def test_threads(self):
        super().test_threads()

    @fixture.shard('provider')
    def test_checked(self):
        super().test_checked()


class OurDriverCase(ProviderCase):
    """On pvrdma.ko; what both drivers must do is repeated in test_driver.py."""

    @classmethod
    def guest_files(cls):
        return {parts.MODULE: module()}

    @classmethod
    def load_driver(cls, guest):
        parts.load_own_driver(guest)

    @classmethod
    def device(cls):
        return parts.OWN_DEVICE

    def doorbells_of(self, template, prefixes=('ours ', 'ours ')):
        before = self.daemon.doorbells()
        self.check(template, prefixes)
        return [b - a for a, b in zip(before, self.daemon.doorbells())]


class ExtensionsTest(OurDriverCase):
    """A worker that never sleeps: programs have no reason to leave the guest,
    unless to tell that they poll in vain."""

    daemon_args = ('--poll-us', '100000000')
    # Worker and guests spin: more processors of theirs are only in the way.
    cpus = 1

    @classmethod
    def guest_files(cls):
        return dict(super().guest_files(), **ProviderCase.guest_files())

    def test_inline_limits(self):
        for size in (0, 1, 48, 49, 128, 432):
            with self.subTest(size=size):
                self.excheck('-i %d' % size)
        done = self.excheck('-i 433', check=False, run='VERBS_LOG_LEVEL=1 '
                            'VERBS_LOG_FILE=/tmp/verbs.log ours ')
        self.assertEqual(done.code, 1)
        self.assertIn('433 inline bytes: at most',
                      self.guests[0].run('cat /tmp/verbs.log').out)

    def test_extensions_can_be_declined(self):
        done = self.excheck('', run='PVRDMA_STOCK=1 ours ')
        self.assertIn('inline 0', done.out)

    def sent(self):
        return self.daemon.counters('datapath', 'tx_messages')

    def wait_sent(self, jobs, minimum):
        """Wait until both VMs have sent @minimum messages since attached."""
        while min(self.sent()) < minimum:
            for job in jobs:
                self.assertFalse(job.done, job.describe())
            time.sleep(0.1)

    def no_exit(self, arguments, iterations, seconds):
        """No BAR2 write but polls in either guest, in at least @iterations round trips
        of a running program and for at least @seconds.

        The beginning is left out: a new context's posts ring until the worker
        has seen it.
        """
        jobs = self.start('ibv_rc_pingpong %s -n 100000000 -d {dev} -g {gid} '
                          '-p {port} -s 64' % arguments, ('ours ', 'ours '))
        try:
            self.wait_sent(jobs, max(self.sent()) + 100)
            rung = self.daemon.posts()
            begin, now = self.sent(), time.monotonic()
            self.wait_sent(jobs, max(begin) + iterations)
            while time.monotonic() < now + seconds:
                time.sleep(0.1)
            done = [b - a for a, b in zip(begin, self.sent())]
            self.assertEqual(self.daemon.posts(), rung)
            if fixture.LONG:
                say('%s messages without an exit' % done)
        finally:
            for job in jobs:
                job.kill(9)
        for job in jobs:
            job.wait(60)

    @fixture.longer('provider')
    def test_no_exit_with_events(self):
        self.no_exit('-e', 1000000 if fixture.LONG else 100, 1)

    @fixture.longer('provider')
    def test_no_exit_polling(self):
        """Few, since where worker and both guests, which all spin, have not a
        processor each, a round trip takes milliseconds."""
        self.no_exit('', 500 if fixture.LONG else 100, 5 if fixture.LONG else 1)

    def test_no_exit_of_the_kernel(self):
        """Nor do the kernel's users leave it, which post and arm as often as the stock
        layout would ring, 12800 times for each kind of queue pair.  A shared receive
        queue's first receives ring until the worker has looked at it once."""
        rung, sent = self.daemon.posts()[0], self.sent()[0]
        parts.check_kernel_verbs(self.guests[0], threads=2)
        self.assertGreaterEqual(self.sent()[0] - sent, 3 * 2 * 2 * 1600)
        self.assertLessEqual(self.daemon.posts()[0] - rung, 2 * KLOOP_BATCH + 8)

    def test_stock_provider_exits(self):
        """Shows that the tests above count what they mean."""
        rung = self.doorbells_of('ibv_rc_pingpong -e -n 1000 -d {dev} -g {gid} '
                                 '-p {port} -s 64', ('', ''))
        self.assertGreater(min(rung), 1000)


@fixture.shard('wakeups')
class SleepingWorkerTest(OurDriverCase):
    """A worker that sleeps at once: every post may have to wake it."""

    daemon_args = ('--poll-us', '0')
    cpus = 4

    def test_posts_wake_the_worker(self):
        rung = self.doorbells_of(
            'ibv_rc_pingpong -d {dev} -g {gid} -p {port} -s 64 -n 2000')
        self.assertGreater(min(rung), 0)

    def test_no_lost_wake_up(self):
        """Polled and event-driven programs with either provider together, in the
        long run for minutes: a lost wake-up or event would stop one of them for
        good."""
        end = time.monotonic() + (LONG_SECONDS if fixture.LONG else SECONDS)
        rounds = 0
        while not rounds or time.monotonic() < end:
            self.wake_up_round()
            rounds += 1
        if fixture.LONG:
            say('%d rounds of six pairs of programs, no stall' % rounds)

    def wake_up_round(self):
        jobs = []
        for prefix in ('ours ', ''):
            for events in ('', '-e '):
                jobs += self.start(
                    'ibv_rc_pingpong -c %s-d {dev} -g {gid} -p {port} '
                    '-s 256 -n 6000' % events, (prefix, prefix))
        jobs += self.start('ib_send_lat -d {dev} -p {port} -F -e -s 8 -n 3000',
                           ('ours ', 'ours '))
        jobs += self.start('ib_send_bw -d {dev} -p {port} -F -e -s 4096 -n 3000 -q 4',
                           ('ours ', 'ours '))
        for job in jobs:
            job.wait(check=True)

    def test_no_lost_post(self):
        """Posts to many queues at once: their bits share a word, which the worker
        takes while the guest sets others."""
        for job in self.start('datacheck -d {dev} -g {gid} -p {port} -n %d'
                              % (60 if fixture.LONG else 2), ('ours ', 'ours ')):
            self.assertIn('parts: rc srq uc inline mw\n', job.wait(check=True).out)

    def test_extended_api(self):
        self.excheck('-i 128')

    def test_no_lost_post_of_threads(self):
        """Several threads set bits of one word and arm one CQ."""
        self.threadcheck('-n %d' % (300000 if fixture.LONG else 10000))
