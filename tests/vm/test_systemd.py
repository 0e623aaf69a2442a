# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as a service of systemd: this machine's own, as the first process of a host
in namespaces (systemd-host.sh), with the unit and the user that are installed.

What has to go on are virtual guests of tests/vguest, whose program checks all that it
sends (ongoing.c), and two of QEMU, which are outside of that host.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import unittest

from lib import fixture, hosts, ongoing, parts, virtual
from lib.kernellog import log_problems
from lib.pvrdma_vm import BUILD, REPO, Guest, Link, Session, VmError, end_well, say
from lib.traffic import load_drivers

ROUNDS = 50 if fixture.LONG else 5
# Seconds from one to the next: guests get something done between them.
APART = 0.2
TIMEOUT = 90
# VMs of the key file: of virtual guests, and of QEMU's.
VIRTUAL = ('vm0', 'vm1')
QEMUS = ('qemu0', 'qemu1')
SYSTEMD = '/lib/systemd/systemd'
# Of QEMU, in us: after that its adapter is gone.
QEMU_WAITS = 5000000


def control_groups():
    """Where the tree of version 2 is mounted; None: nowhere."""
    with open('/proc/self/mountinfo') as stream:
        for line in stream:
            if ' - cgroup2 ' in line:
                return line.split()[4]
    return None


class Group:
    """A control group for everything on the host."""

    def __init__(self, session):
        self.path = os.path.join(control_groups(), 'pvrdma-%d' % os.getpid())
        os.mkdir(self.path)
        session.add_closer(self.remove)

    def remove(self, timeout=20):
        """When what was in it has ended."""
        end = time.monotonic() + timeout
        while True:
            try:
                for folder, _, _ in os.walk(self.path, topdown=False):
                    os.rmdir(folder)
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


class Host:
    """With the program, unit and user of @build, and a key file.  It is also a Daemon for
    what asks one only by ctl_json()."""

    def __init__(self, session, build=BUILD):
        self.session = session
        backend = os.path.join(build, 'backend')
        self.unit = self.read(backend, 'pvrdmad.service')
        self.program = re.search(r'(?m)^ExecStart=(\S+)', self.unit).group(1)
        add = session.path('add')
        self.install(add, '/etc/systemd/system/pvrdmad.service',
                     os.path.join(backend, 'pvrdmad.service'))
        self.install(add, '/etc/sysusers.d/pvrdma.conf',
                     os.path.join(REPO, 'packaging', 'systemd', 'pvrdma.sysusers'))
        for name in ('pvrdmad', 'pvrdmactl'):
            self.install(add, os.path.join(os.path.dirname(self.program), name),
                         os.path.join(backend, name))
        # The unit's group, which packages of QEMU bring along.
        with open(add + '/etc/sysusers.d/kvm.conf', 'w') as stream:
            stream.write('g kvm -\n')
        text = subprocess.run([os.path.join(backend, 'pvrdmad'), '--help'], check=True,
                              env={'LC_ALL': 'C'}, stdout=subprocess.PIPE,
                              universal_newlines=True).stdout
        keys = add + re.search(r'default: (\S+), if', text).group(1)
        os.makedirs(os.path.dirname(keys))
        with open(keys, 'w') as stream:
            for number, name in enumerate(VIRTUAL, 1):
                stream.write('[vm %s]\nnetwork=lan\naddresses=10.0.0.%d\n' % (name, number))
            for name in QEMUS:
                stream.write('[vm %s]\nnetwork=lan\naddresses=any\n' % name)
        group = Group(session)
        self.holder = session.popen(
            ['sh', '-c', 'echo $$ >"$0/cgroup.procs" && exec "$@"', group.path,
             'unshare', '--cgroup', '--mount', '--pid', '--uts', '--ipc', '--net', '--fork',
             '--kill-child=KILL', '--',
             os.path.join(REPO, 'tests', 'vm', 'systemd-host.sh'), session.dir],
            'systemd.log')
        self.first = None
        self.wait_up()

    @staticmethod
    def read(*path):
        with open(os.path.join(*path)) as stream:
            return stream.read()

    @staticmethod
    def install(add, path, source):
        os.makedirs(os.path.dirname(add + path), exist_ok=True)
        shutil.copy(source, add + path)

    def run(self, *argv, check=True):
        """Run a command there to its end: what it prints."""
        done = subprocess.run(
            ['nsenter', '--target=%d' % self.first, '--mount', '--pid', '--uts', '--ipc',
             '--net', '--', 'env', '-i', 'LC_ALL=C.UTF-8',
             'PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin', *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TIMEOUT, universal_newlines=True, check=False)
        if check and done.returncode:
            raise VmError('%s: status %d: %s\n%s' % (
                ' '.join(argv), done.returncode, done.stdout.strip(), self.journal()))
        return done.stdout

    def systemctl(self, *argv):
        return self.run('systemctl', *argv)

    def ctl_json(self, *argv):
        return json.loads(self.run('pvrdmactl', '--json', *argv))

    def show(self, key):
        return self.systemctl('show', '--value', '-p', key, 'pvrdmad').strip()

    def journal(self):
        """What the daemons have said."""
        return self.run('journalctl', '--no-pager', '-o', 'cat', '-u', 'pvrdmad', check=False)

    def wait_up(self):
        end = time.monotonic() + TIMEOUT
        said = ''
        while 'running' not in said.split() and 'degraded' not in said.split():
            if self.holder.poll() is not None or time.monotonic() > end:
                raise VmError('systemd does not run: %s, see %s' % (
                    said.strip(), self.session.path('systemd.log')))
            time.sleep(0.1)
            with open('/proc/%d/task/%d/children' % ((self.holder.pid,) * 2)) as stream:
                children = stream.read().split()
            if children:
                self.first = int(children[0])
                said = self.run('systemctl', 'is-system-running', check=False)

    @property
    def sockets(self):
        """The folder of the daemon's sockets, from outside."""
        return '/proc/%d/root/run/pvrdma' % self.first

    def socket(self, name):
        return '%s/%s.sock' % (self.sockets, name)

    def connect(self):
        """As a VMM that has not said anything yet."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT)
        sock.connect(self.socket(VIRTUAL[0]))
        return sock

    def pauses(self):
        """How long VMs stood still, in us, each time that a daemon took them over."""
        return [int(us) for us in re.findall(r'took over \d+ VM\(s\), which were paused '
                                             r'for (\d+) us', self.journal())]


def has_ended(sock):
    """Its other end has been closed, accepted or not."""
    try:
        return sock.recv(1) == b''
    except ConnectionResetError:
        return True


@fixture.shard('restarts')
class SystemdTest(fixture.SessionTest):
    time_limit = 1800 if fixture.LONG else 600

    @classmethod
    def setUpClass(cls):
        if not hosts.may_be_made():
            raise unittest.SkipTest('namespaces need root')
        if not os.access(SYSTEMD, os.X_OK):
            raise unittest.SkipTest('there is no systemd')
        if not control_groups():
            raise unittest.SkipTest('no control groups of version 2 are mounted')
        cls.session = Session('systemd')
        try:
            cls.host = Host(cls.session)
        except BaseException as exc:
            cls.session.keep_logs(exc)
            cls.session.close()
            raise

    def setUp(self):
        self.host.systemctl('start', 'pvrdmad')
        self.uncount()

    def uncount(self):
        """Starts, of which there may be so many a minute."""
        self.host.systemctl('reset-failed', 'pvrdmad')

    def tearDown(self):
        """Nothing is kept, but between two daemons."""
        with open(self.session.path('journal.log'), 'w') as stream:
            stream.write(self.host.journal())
        self.assertEqual(self.host.show('ActiveState'), 'active')
        self.assertEqual(self.host.show('NFileDescriptorStore'), '0')
        self.host.systemctl('stop', 'pvrdmad')
        self.assertEqual(self.host.show('NFileDescriptorStore'), '0')
        self.assertFalse(os.path.exists(self.host.sockets))

    def handed_over(self, how, same_process, check, more):
        """@how gives the VMs to another daemon, ROUNDS times; @check raises if traffic has
        ended, @more if it does not go on, which may ask the daemon, and is asked when that
        is there.  How long they stood still, each time in us."""
        before = len(self.host.pauses())
        for number in range(ROUNDS):
            pid = self.host.show('MainPID')
            how()
            end = time.monotonic() + TIMEOUT
            while len(self.host.pauses()) <= before + number or \
                    self.host.show('ActiveState') != 'active':
                check()
                self.assertLess(time.monotonic(), end, self.host.journal())
                time.sleep(0.05)
            self.assertEqual(self.host.show('MainPID') == pid, same_process)
            self.uncount()
            time.sleep(APART)
            more()
        pauses = self.host.pauses()[before:]
        self.assertEqual(len(pauses), ROUNDS)
        self.assertLess(max(pauses), QEMU_WAITS)
        return pauses

    def systemd_restarts(self, *checks):
        return self.handed_over(lambda: self.host.systemctl('restart', 'pvrdmad'), False,
                                *checks)

    def systemd_reloads(self, *checks):
        return self.handed_over(lambda: self.host.systemctl('reload', 'pvrdmad'), True,
                                *checks)

    def goes_on(self, handed_over):
        """Virtual guests' traffic, while that is done."""
        traffic = virtual.Traffic(self.session, self.host.sockets)
        pauses = handed_over(traffic.check, traffic.check)
        said = traffic.end()
        say('%s: %d times; %d operations, none failed; VMs stood still for %.0f ms at '
            'most, traffic for %.0f ms' % (
                self.id().split('.', 1)[-1], ROUNDS, said['operations'],
                max(pauses) / 1000, said['still_us'] / 1000))

    def test_restart(self):
        self.goes_on(self.systemd_restarts)

    def test_reload(self):
        self.goes_on(self.systemd_reloads)

    def qemus_go_on(self, guests, ends, handed_over):
        """The data check and one that counts, while that is done."""
        counting = ongoing.Counting(ends, [self.host])
        datacheck = ongoing.Datacheck(ends)

        def check():
            counting.check()
            datacheck.check()
        pauses = handed_over(check, counting.more)
        rounds = datacheck.end()
        counting.end()
        for guest in guests:
            self.assertEqual(log_problems(guest), [])
        say('%s: %d times; VMs stood still for %.0f ms at most, counting for %.0f ms; the '
            'data check ended %d times' % (
                self.id().split('.', 1)[-1], ROUNDS, max(pauses) / 1000,
                max(counting.waits()) / 1000, rounds))

    def test_qemu(self):
        """Guests of QEMU, with our parts."""
        fixture.require_build()
        links = {'pvrdma': Link(self.session, 'vmx')}
        guests = [Guest(self.session, number, links, self.host.socket(name), name=name,
                        files=parts.guest_files()).start()
                  for number, name in enumerate(QEMUS, 1)]
        try:
            pair = load_drivers(guests, own=True)
            ends = [ongoing.End(guest, pair.device, gid)
                    for guest, gid in zip(guests, pair.gids)]
            self.qemus_go_on(guests, ends, self.systemd_restarts)
            self.qemus_go_on(guests, ends, self.systemd_reloads)
            end_well(guests)
        finally:
            for guest in guests:
                guest.kill()

    def test_stop(self):
        """Nobody takes over: a VMM sees its end."""
        with self.host.connect() as sock:
            self.host.systemctl('stop', 'pvrdmad')
            self.assertTrue(has_ended(sock))
            self.host.systemctl('start', 'pvrdmad')
        virtual.Traffic(self.session, self.host.sockets).end()

    def test_killed(self):
        """So it does when the daemon crashes; others can connect to the next one."""
        pid = self.host.show('MainPID')
        with self.host.connect() as sock:
            self.host.systemctl('kill', '-s', 'KILL', 'pvrdmad')
            self.assertTrue(has_ended(sock))
        end = time.monotonic() + TIMEOUT
        while self.host.show('ActiveState') != 'active' or \
                self.host.show('MainPID') in ('0', pid):
            self.assertLess(time.monotonic(), end, self.host.journal())
            time.sleep(0.05)
        virtual.Traffic(self.session, self.host.sockets).end()

    def test_settings_are_seen(self):
        """The unit hides nothing that the daemon's bounds are made from."""
        root = '/proc/%s/root' % self.host.show('MainPID')  # of the host's processes
        for name in ('net/ipv4/ip_local_port_range', 'vm/max_map_count'):
            self.host.run('cat', '%s/proc/sys/%s' % (root, name))

    def test_nothing_to_keep(self):
        """Without VMMs it is a restart as any."""
        self.host.systemctl('restart', 'pvrdmad')
        virtual.Traffic(self.session, self.host.sockets).end()
