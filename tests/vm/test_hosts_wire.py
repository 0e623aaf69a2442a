# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections between guests of different hosts: what is on the wire, and a wire that
fails.

vm1 and vm2 are on one host, vm3 is on the other (hosts.py).  vm3 has the stock driver and
library, so without unreliable connections.  The wire is listened to from before the first connection,
until after it was pulled out once, and tshark reads what was heard.
"""

import collections
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from lib import fixture, hosts, ongoing, parts
from lib.programs import NO_ERRORS, Pair, _ports, bandwidth, latency, pingpong
from lib.pvrdma_vm import BUILD, VmError, say

DATACHECK = 'datacheck -d {dev} -g {gid} -p {port} -n %d'
# With receives that come late, solicited SENDs and a WRITE that is refused.
LATE = ' -l'
# tshark is not to guess what Sends and the daemons' link carry, which it then calls
# malformed, nor what a connection is by its ports, of which the kernel takes any, and is to
# bear segments that the capture has in another order.
CAREFUL = ['--disable-heuristic', 'rpcrdma_iwarp', '--disable-heuristic',
           'smb_direct_iwarp', '--disable-protocol', 'rpcap', '-o',
           'tcp.try_heuristic_first:TRUE', '-o', 'tcp.reassemble_out_of_order:TRUE']
# Rarely tshark takes a connection's startup frames ("MPA ID ...") for FPDUs, of 0x4d50 bytes
# then: most likely where its ports were another's before.  They are looked at in
# tests/vguest/test-wire.py.
NOT_REUSED = ['-Y', 'not (_ws.malformed and tcp.payload[0:3] == 4d:50:41)']
# RFC 5040 and 7306: Write, Read Request and Response, Send, Send with Invalidate (of
# NVMe), solicited Send, Immediate Data, Atomic Request and Response.  No Terminate.
OPCODES = {0, 1, 2, 3, 4, 5, 8, 10, 11}
# Reserved STags (docs/iwarp.md): the first frame, ACK, RNR, NAK, RESTART; and those that
# depend on when things come: READY, PSN, DROP.
TOLD = {0x01, 0x10, 0x11, 0x12, 0x13}
PERHAPS = {0x14, 0x15, 0x16}
NQN = 'nqn.2026-11.org.pvrdma:wire'
DISK_KB = 8192
REORDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib', 'reorder.py')


def need(program):
    """Skip without @program where the build was configured without tests' needs."""
    if shutil.which(program):
        return
    with open(os.path.join(BUILD, 'config.mak')) as stream:
        if 'WITH_CHECK = no' in stream.read():
            raise unittest.SkipTest('configured with --disable-check')
    raise VmError(program + ' is not installed: run ./configure --install-deps')


class Capture:
    """All packets of our port that a host sends and receives."""

    def __init__(self, session, host, name=''):
        self.path = session.path(host.name + name + '.pcapng')
        self.log = session.path(host.name + name + '-dumpcap.log')
        # Of the file's owner; the buffer holds what comes while the disk is slow.
        self.proc = session.popen(
            host.prefix + ['dumpcap', '-q', '-i', host.device, '-B', '128', '-f',
                           'tcp port %d' % hosts.PORT, '-w', self.path],
            os.path.basename(self.log))
        end = time.monotonic() + 20
        while not os.path.exists(self.path):
            if self.proc.poll() is not None or time.monotonic() > end:
                raise VmError('dumpcap does not listen to ' + host.name)
            time.sleep(0.05)

    def stop(self):
        """How many packets it lost."""
        self.proc.send_signal(signal.SIGINT)
        self.proc.wait(20)
        with open(self.log) as stream:
            return int(re.search(r'received/dropped.*: \d+/(\d+)', stream.read()).group(1))

    def read(self, *args):
        argv = ['tshark', '-r', self.path] + CAREFUL + list(args)
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, universal_newlines=True,
                              timeout=240).stdout.splitlines()


class WireTest(fixture.SessionTest):
    """The tests run in their names' order: the last one is about what all others did."""

    on_hosts = True
    all_own = False

    @classmethod
    def require(cls):
        for program in ('tshark', 'dumpcap', 'nft'):
            need(program)

    @classmethod
    def boot(cls):
        cls.hosts = hosts.Hosts(cls.session, 2)
        cls.daemons = cls.hosts.start_daemons(
            {'vm%d' % i: {'addresses': 'any'} for i in (1, 2, 3)})
        cls.guests = cls.hosts.start_guests(cls.daemons, [0, 0, 1],
                                            files=parts.guest_files())
        for guest in cls.guests[:2]:
            parts.use_own(guest)
        cls.guests[2].load_pvrdma()
        # One name of the device, for one command on both ends.
        cls.guests[2].run('rdma dev set %s name %s' % (parts.STOCK_DEVICE,
                                                       parts.OWN_DEVICE))
        cls.remote = Pair([cls.guests[0], cls.guests[2]], 'pvrdma', parts.OWN_DEVICE)
        cls.local = Pair(cls.guests[:2], 'pvrdma', parts.OWN_DEVICE)
        cls.capture = Capture(cls.session, cls.hosts[0])

    def checked(self, job):
        """@job of datacheck has found all as it should be."""
        self.assertRegex(job.out, NO_ERRORS, job.describe())

    def start(self, pair, rounds, options=''):
        """datacheck on both ends of @pair; the jobs, of the server first."""
        port = next(_ports)
        one, two = pair.guests
        jobs = []
        for guest, gid, peer in ((one, pair.gids[0], ''),
                                 (two, pair.gids[1], ' ' + one.ip('pvrdma'))):
            jobs.append(guest.spawn((DATACHECK % rounds).format(
                dev=pair.device, gid=gid, port=port) + options + peer, 240))
            if not peer:
                one.wait_listen(port, jobs[0])
        return jobs

    def finish(self, jobs):
        try:
            for job in jobs:
                self.checked(job.wait(check=True))
        finally:
            for job in jobs:
                if not job.done:
                    job.kill(9)

    def sent(self):
        """Bytes that vm1 has sent by its queue pairs."""
        vms = {vm['name']: vm for vm in self.daemons[0].ctl_json('counters')['vms']}
        return vms['vm1']['datapath']['tx_bytes']

    def wait_traffic(self, job):
        """Until vm1 has sent another 100 kB."""
        want = self.sent() + 100000
        while self.sent() < want:
            self.assertFalse(job.done, job.describe())
            time.sleep(0.02)

    def test_a_programs(self):
        """Figures are not looked at, but each has one."""
        for program in (pingpong(), latency('ib_send_lat', iters=200),
                        bandwidth('ib_write_bw'), bandwidth('ib_read_bw'),
                        bandwidth('ib_atomic_bw', 8, 500)):
            with self.subTest(program.title):
                self.assertGreater(program.run(self.remote), 0)

    def test_b_near_and_far(self):
        """One VM's queue pairs with a VM beside it and with one of another host, at the
        same time."""
        jobs = self.start(self.local, 1) + self.start(self.remote, 1, LATE)
        self.finish(jobs)

    def test_c_nvme(self):
        """The kernel's own users: a disk of the other host's guest."""
        target, guest = self.remote.guests
        target.run('''set -e
modprobe -a configfs nvmet nvmet-rdma
mkdir -p /cfg
mount -t configfs none /cfg
cd /cfg/nvmet
dd if=/dev/zero of=/tmp/disk bs=1024 count=%(size)d 2>/dev/null
s=subsystems/%(nqn)s
mkdir $s $s/namespaces/1
echo 1 > $s/attr_allow_any_host
echo 1 > $s/namespaces/1/buffered_io
echo -n /tmp/disk > $s/namespaces/1/device_path
echo 1 > $s/namespaces/1/enable
p=ports/1
mkdir $p
echo rdma > $p/addr_trtype
echo ipv4 > $p/addr_adrfam
echo %(ip)s > $p/addr_traddr
echo 4420 > $p/addr_trsvcid
ln -s /cfg/nvmet/$s $p/subsystems/''' % {'size': DISK_KB, 'nqn': NQN,
                                         'ip': target.ip('pvrdma')})
        guest.run("modprobe nvme-rdma && echo -n 'transport=rdma,traddr=%s,trsvcid=4420,"
                  "nqn=%s' > /dev/nvme-fabrics" % (target.ip('pvrdma'), NQN), 60)
        try:
            parts.wait_in_guest(guest, '[ -b /dev/nvme0n1 ]', 'the NVMe disk')
            job = guest.run('''set -e
dd if=/dev/urandom of=/tmp/bytes bs=1024 count=%d 2>/dev/null
dd if=/tmp/bytes of=/dev/nvme0n1 bs=256k conv=fsync 2>/dev/null
echo 3 > /proc/sys/vm/drop_caches
md5sum < /tmp/bytes
md5sum < /dev/nvme0n1
rm /tmp/bytes''' % DISK_KB, 120)
            self.assertEqual(len(set(job.out.split('\n')[:2])), 1, job.describe())
        finally:
            guest.run('echo 1 > /sys/class/nvme/nvme0/delete_controller')
        target.run('md5sum /tmp/disk && cd /cfg/nvmet && rm ports/1/subsystems/* && '
                   'rmdir ports/1')

    def check_captured(self):
        """All of it is iWARP that another program reads: good sums, nothing malformed."""
        self.assertEqual(self.capture.stop(), 0, 'packets were not captured')
        opcodes = collections.Counter()
        sums = collections.Counter()
        told = collections.Counter()
        for line in self.capture.read(*NOT_REUSED, '-O', 'iwarp_mpa,iwarp_ddp_rdmap'):
            found = re.search(r'OpCode: .*\(0x(\w+)\)|(Good|Bad) CRC32|(Malformed)|'
                              r'Steering Tag: 0x000000(\w\w)$', line)
            if found and found.group(1):
                opcodes[int(found.group(1), 16)] += 1
            elif found and found.group(4):
                told[int(found.group(4), 16)] += 1
            elif found:
                sums[found.group(0)] += 1
        say('frames by opcode: %s; by reserved STag: %s; %s' % (
            dict(sorted(opcodes.items())), dict(sorted(told.items())), dict(sums)))
        # Whether Sends with Invalidate (6) and Immediate Data (9) are solicited as well
        # depends on what the programs do.  Both, and Terminate: tests/vguest/test-wire.py.
        self.assertEqual(set(opcodes) - {6, 9}, OPCODES)
        self.assertEqual(set(told) - PERHAPS, TOLD)
        if 'Malformed' in sums:
            say('\n'.join(self.capture.read('-Y', '_ws.malformed', '-V')[:200]))
        self.assertEqual(set(sums), {'Good CRC32'})
        self.assertEqual(sum(sums.values()), sum(opcodes.values()))

    def test_d_captured(self):
        """What all before have sent."""
        self.check_captured()

    def capture_anew(self, name):
        if self.capture.proc.poll() is None: # the test before was left out
            self.capture.stop()
        self.capture = Capture(self.session, self.hosts[0], name)

    def use_own(self):
        """Our parts on both hosts, unless a test before has done so."""
        if not self.all_own:
            parts.use_own(self.guests[2])
            self.remote.find_gids()
            type(self).all_own = True

    def test_da_own_parts(self):
        """With our parts on both hosts there are unreliable connections, too."""
        self.use_own()
        self.capture_anew('-own')
        jobs = self.start(self.remote, 1, LATE)
        self.finish(jobs)
        self.assertRegex(jobs[0].out, r'(?m)^parts: .*\buc\b')
        self.check_captured()

    @fixture.shard('users')
    def test_db_pulled_captured(self):
        """What is on the wire is good, too, where it was pulled out."""
        self.use_own()
        for i in range(6): # who waited for nothing meanwhile stays connected
            self.capture_anew('-pulled-%d' % i)
            self.pull_out(1, 1, LATE)
            self.check_captured()
            # Each tells the incarnation of its queue pair's connection.
            told = [line.replace(':', '')[56:72] for line in self.capture.read(
                '-Y', 'iwarp_mpa.key.req', '-T', 'fields',
                '-e', 'iwarp_mpa.privatedata')]
            say('%d Requests of %d queue pairs' % (len(told), len(set(told))))
            if len(told) > len(set(told)):
                return
        self.fail('no connection was made anew')

    @contextlib.contextmanager
    def counting(self):
        """Fetch-and-add goes on meanwhile, and after it; each counts once."""
        ends = [ongoing.End(guest, self.remote.device, gid)
                for guest, gid in zip(self.remote.guests, self.remote.gids)]
        program = ongoing.Counting(ends, self.daemons)
        try:
            yield
            program.more()
            say('counted to %d' % program.end())
        finally:
            for job in program.jobs:
                if not job.done:
                    job.kill(9)

    @fixture.shard('users')
    def test_e_pulled_out(self):
        """The wire is pulled out for a second, several times, while all is checked."""
        with self.counting():
            self.pull_out(2, 3)

    def pull_out(self, rounds, times, options=''):
        jobs = self.start(self.remote, rounds, options)
        for _ in range(times):
            self.wait_traffic(jobs[0])
            self.hosts.wire.run('ip', 'link', 'set', self.hosts[1].device, 'down')
            time.sleep(1)
            self.hosts.wire.run('ip', 'link', 'set', self.hosts[1].device, 'up')
        self.finish(jobs)

    @fixture.shard('users')
    def test_f_lossy(self):
        """One packet in a hundred is lost, both ways."""
        for host in self.hosts.hosts:
            host.run('nft', 'add table inet loss; add chain inet loss in '
                     '{ type filter hook input priority 0; }; add rule inet loss in '
                     'tcp sport %d numgen random mod 100 < 1 counter drop; '
                     'add rule inet loss in '
                     'tcp dport %d numgen random mod 100 < 1 counter drop'
                     % (hosts.PORT, hosts.PORT))
        try:
            with self.counting():
                self.finish(self.start(self.remote, 1))
            for host in self.hosts.hosts:
                lost = sum(map(int, re.findall(r'packets (\d+)',
                                               host.run('nft', 'list', 'ruleset'))))
                say('%s: %d packets lost' % (host.name, lost))
                self.assertGreater(lost, 0)
        finally:
            for host in self.hosts.hosts:
                host.run('nft', 'delete', 'table', 'inet', 'loss')

    @fixture.shard('users')
    def test_g_reordered(self):
        """Packets overtake each other, both ways, by a relay in the wire."""
        wire, device = self.hosts.wire, self.hosts[1].device
        for host in self.hosts.hosts:
            host.run('python3', REORDER, '--plain', host.device)
        wire.run('ip', 'link', 'add', 'cut', 'type', 'veth', 'peer', 'name', 'end')
        wire.run('ip', 'link', 'set', 'end', 'master', 'wire', 'up')
        wire.run('ip', 'link', 'set', 'cut', 'up')
        wire.run('ip', 'link', 'set', device, 'nomaster')
        relay = subprocess.Popen(wire.prefix + ['python3', REORDER, 'cut', device],
                                 stdout=subprocess.PIPE, universal_newlines=True)
        try:
            self.assertEqual(relay.stdout.readline(), 'ready\n')
            with self.counting():
                self.finish(self.start(self.remote, 1))
        finally:
            relay.terminate()
            said = relay.communicate(timeout=20)[0]
            wire.run('ip', 'link', 'set', device, 'master', 'wire')
        say('the relay: ' + said.strip())
        self.assertGreater(int(re.search(r', (\d+) overtaken', said).group(1)), 100)
