# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications that are no pair of commands: SMC-R, RDS, libiscsi, and a QEMU in each of
two guests whose VM moves from one to the other by RDMA; and programs where RDMA devices belong
to network namespaces.

All are Debian's, and set nothing that their users would not; on our driver and provider and
on the stock ones, where SMC-R falls back to TCP and no namespace gets the device.
"""

import contextlib
import re
import shlex
import time

from lib import fixture, kusers, parts, suites
from lib.kernellog import log_problems
from lib.programs import LISTENS, _ports, check_pings
from lib.pvrdma_vm import REPO, Guest, VmError

# Of SMC-R: connections at the same time, and bytes of each in each direction.
CONNECTIONS, BYTES = 3, 3000000
# SMC over networks with routers (SMC-Rv2, all that a RoCE v2 device can) is among hosts that
# have this in common.
UEID = 'PVRDMA-TEST'
# In the namespaces' test, of a guest by its number.
ADDRESS = '10.81.0.%d'
# RDS: rounds of messages of all sizes.
ROUNDS = 10


def put(guest, name):
    """The file @name of this folder into the Debian's /tmp."""
    with open('%s/tests/vm/%s' % (REPO, name), 'rb') as stream:
        parts.put_in_guest(guest, '/tmp/' + name, stream.read())


def smc(lab):
    """Both ends' modes of connections whose data was right."""
    one, two = lab.guests
    for guest in lab.guests:
        put(guest, 'smc-talk.py')
        kusers.script(guest, 'modprobe -a smc smc_diag\npython3 /tmp/smc-talk.py ueid ' + UEID)
    words = '%d %d %d' % (next(_ports), CONNECTIONS, BYTES)
    server = one.spawn('deb python3 /tmp/smc-talk.py serve ' + words, 120)
    server.wait_output('listens')
    client = two.spawn('deb python3 /tmp/smc-talk.py call %s %s' % (one.ip('pvrdma'), words),
                       120)
    modes = []
    for job in (client, server):
        job.wait(check=True)
        said = re.search(r'(?m)^(\d+) bytes right, by (.*)$', job.out)
        if not said or int(said.group(1)) != CONNECTIONS * BYTES:
            raise VmError(job.describe())
        modes += said.group(2).split()
    return modes


def rds(one, two):
    """Messages of all sizes, there and back, one after the other."""
    for guest in (one, two):
        put(guest, 'rds-talk.py')
        kusers.script(guest, 'modprobe rds_rdma')
    port = next(_ports)
    line = 'deb python3 /tmp/rds-talk.py %%s %%s %d %d' % (port, ROUNDS)
    server = one.spawn(line % ('serve', one.ip('pvrdma')), 120)
    server.wait_output('ready')
    client = two.run(line % ('call', two.ip('pvrdma')) + ' ' + one.ip('pvrdma'), 120)
    for job in (server.wait(check=True), client):
        if not re.search(r'(?m)^[1-9]\d* messages right$', job.out):
            raise VmError(job.describe())


class Inner:
    """A QEMU in a guest, by its monitor, with the files that a VM of it is made of."""

    # The VM counts all words of a segment up, one after the other: at any moment each is as
    # the next one, or one ahead.  Nothing else is written, but by its firmware.
    BOOT = bytes.fromhex('b80020' '8ec0' '31ff' '31c0' 'b90080' 'fc' 'f3ab'  # it is cleared
                         '26ff05' '83c702' 'ebf8')
    COUNTED, WORDS = 0x20000, 0x8000
    FILLED, BYTES = 0x200000, 16 << 20

    def __init__(self, guest, *options):
        self.guest = guest
        self.job = guest.spawn('deb qemu-system-x86_64 -m 32 -nodefaults -display none '
                               '-monitor stdio -drive file=/tmp/boot,format=raw,if=ide '
                               + ' '.join(options), 600, stdin=True)

    @classmethod
    def prepare(cls, guest):
        """The disk that it boots, of both, and what the memory of the first is filled with."""
        parts.put_in_guest(guest, '/tmp/boot', cls.BOOT.ljust(510, b'\0') + b'\x55\xaa')
        guest.run('head -c %d /dev/urandom >/tmp/filled' % cls.BYTES)

    def say(self, line):
        self.job.stdin(line.encode() + b'\n')

    def until(self, line, answer, seconds=300):
        """Ask until one of the answers has @answer in it."""
        end = time.monotonic() + seconds * self.guest.patience
        asked = len(self.job.out)
        while not re.search(answer, self.job.out[asked:]):
            if self.job.done or time.monotonic() > end:
                raise VmError('no %r: %s' % (answer, self.job.describe()))
            self.say(line)
            time.sleep(0.5)

    def memory(self, begin, size):
        """A file of the Debian's with that of the VM's memory, which stands still."""
        path = '/tmp/memory-%x' % begin
        self.say('pmemsave %#x %#x "%s"' % (begin, size, path))
        parts.wait_in_guest(self.guest, '[ "$(stat -c %%s %s 2>/dev/null)" = %d ]' % (
            path, size), 'the memory', 60)
        return path

    def counted(self):
        """How far it is: the last word's number."""
        self.say('stop')
        path = self.memory(self.COUNTED, 2 * self.WORDS)
        out = self.guest.run('od -An -v -tu2 -w2 %s | uniq -c; rm %s' % (path, path)).out
        self.say('cont')
        runs = [tuple(map(int, line.split())) for line in out.splitlines()]
        last = runs[-1][1]
        if sum(count for count, _ in runs) != self.WORDS or \
                [number - last for _, number in runs] not in ([0], [1, 0], [-65535, 0]):
            raise VmError('the VM has not counted so: %s' % out)
        return last

    def begins(self, seconds=300):
        """Wait until its firmware has started it, and it counts."""
        end = time.monotonic() + seconds * self.guest.patience
        while True:
            with contextlib.suppress(VmError):
                if self.counted():
                    return self.counted()
            if self.job.done or time.monotonic() > end:
                raise VmError('the VM does not begin: ' + self.job.describe())
            time.sleep(1)

    def end(self):
        self.say('quit')
        self.job.wait(60, check=True)


class Inside:
    """The Debian of a guest, or one of its network namespaces, as a guest."""

    gid_index, wait_listen = Guest.gid_index, Guest.wait_listen
    # Guests have more than a Debian.
    BEFORE = 'usleep() { busybox usleep "$1"; }; '

    def __init__(self, guest, namespace=None):
        self.agent, self.patience = guest.agent, guest.patience
        self.name = '%s, namespace %s' % (guest.name, namespace)
        self.address = ADDRESS % guest.number
        self.within = 'deb ' + ('ip netns exec %s ' % namespace if namespace else '') + 'sh -c '

    def run(self, command, timeout=60, check=True):
        return self.spawn(command, timeout).wait(check=check)

    def spawn(self, command, timeout=60):
        return self.agent.spawn(self.within + shlex.quote(self.BEFORE + command), timeout)


def connects(device, one, two):
    """Messages by the GIDs of these Insides, and a connection made through the device."""
    port = next(_ports)
    template = 'ibv_rc_pingpong -c -s 4096 -n 200 -d %s -g %d -p %d %s'
    server = one.spawn(template % (device, one.gid_index(device, one.address), port, ''))
    one.wait_listen(port, server)
    two.run(template % (device, two.gid_index(device, two.address), port, one.address))
    server.wait(check=True)
    port = next(_ports)
    server = one.spawn('rping -s -v -a %s -p %d -C 5' % (one.address, port))
    parts.wait_in_guest(one, LISTENS % port, 'listener')
    client = two.run('rping -c -v -V -a %s -p %d -C 5' % (one.address, port))
    check_pings(server.wait(check=True), client, 5)


class Applications:
    """In the order of their names; @own parts, and how SMC's connections are."""

    own, smc_mode = True, 'SMCR'

    @classmethod
    def boot(cls):
        cls.lab = suites.Lab(cls.session, cls.own)
        cls.guests, cls.daemons = cls.lab.guests, [cls.lab.daemon]

    def carried(self):
        """Bytes that the guests have sent by RDMA."""
        return sum(self.lab.daemon.counters('datapath', 'tx_bytes'))

    def uses(self, size, before):
        self.assertGreaterEqual(self.carried() - before, size)
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])

    def test_libiscsi(self):
        """Its own programs, and QEMU's, which compare what was written by TCP: libiscsi cannot
        write by iSER, nor read more than 512 KiB at once, on soft-RoCE neither."""
        target, host = self.guests
        address = target.ip('pvrdma')
        urls = []
        for transport in ('rdma', 'tcp'):
            disk = kusers.Iscsi(transport)
            disk.serve(target, address)
            urls.append('%s://%s:%d/%s/0' % ('iser' if transport == 'rdma' else 'iscsi',
                                             address, disk.port, disk.iqn))
        before = self.carried()

        def run(line):
            # It waits one second for the answer to a login; one that it has left has to time
            # out in LIO before the next one is answered.
            for _ in range(10):
                job = host.run('deb ' + line, 120, check=False)
                if job.ok or not re.search('Login Failed|Failed to connect to LUN|'
                                           'revents is not POLLIN', job.err):
                    break
                host.run('sleep 16')
            self.assertTrue(job.ok, job.describe())
            return job.out
        self.assertIn('Product:RAMDISK-MCP', run('iscsi-inq ' + urls[0]))
        size = kusers.SIZE_MB << 20
        self.assertIn('Total size:%d\n' % size, run('iscsi-readcapacity16 ' + urls[0]))
        self.assertIn('finished.', run('iscsi-perf -t 2 -b 64 ' + urls[0]))
        host.run('head -c %d /dev/urandom > /tmp/disk' % size)
        run('qemu-img convert -n -f raw -O raw /tmp/disk ' + urls[1])
        run('qemu-img dd -f raw -O raw bs=64k if=%s of=/tmp/back' % urls[0])
        host.run('cmp /tmp/disk /tmp/back && rm /tmp/disk /tmp/back')
        self.uses(size, before)

    def test_qemu_migrates(self):
        """A VM that runs in a guest's QEMU, with its memory."""
        target, source = self.guests
        for guest in self.guests:
            Inner.prepare(guest)
        before = self.carried()
        port = next(_ports)
        uri = 'rdma:%s:%d' % (target.ip('pvrdma'), port)
        new = Inner(target, '-incoming', uri)
        parts.wait_in_guest(target, LISTENS % port, 'listener', 60)
        old = Inner(source, '-device', 'loader,file=/tmp/filled,addr=%#x,force-raw=on' %
                    Inner.FILLED)
        left = old.begins()
        old.say('migrate -d ' + uri)
        old.until('info migrate', 'Migration status: completed')
        new.until('info status', 'VM status: running')
        came = new.counted()
        path = new.memory(Inner.FILLED, Inner.BYTES)
        self.assertEqual(target.run('sha256sum < ' + path).out,
                         source.run('sha256sum < /tmp/filled').out)
        self.assertGreater((came - left) % 65536, 0)
        self.assertGreater((new.counted() - came) % 65536, 0)
        for qemu in (old, new):
            qemu.end()
        self.uses(Inner.BYTES, before)

    def test_rds(self):
        before = self.carried()
        rds(*self.guests)
        self.uses(ROUNDS << 16, before)

    def test_smc(self):
        before = self.carried()
        self.assertEqual(smc(self.lab), [self.smc_mode] * 2 * CONNECTIONS)
        self.uses(2 * CONNECTIONS * BYTES if self.smc_mode == 'SMCR' else 0, before)


@fixture.shard('users')
class OwnPartsTest(Applications, fixture.SessionTest):
    def test_namespaces(self):
        """The second guest's device is in a network namespace, where all works, and nowhere
        else; when that ends it is where it was."""
        device = parts.OWN_DEVICE
        peer, plain = [Inside(guest) for guest in self.guests]
        own = self.guests[1].ip('pvrdma')
        before = self.carried()
        peer.run('ip addr add %s/24 dev vmx0' % peer.address)
        # While there is no other namespace.
        plain.run('rdma system set netns exclusive && ip netns add in && ip netns add out && '
                  'ip link set vmx0 netns in && rdma dev set %s netns in' % device)
        inside, outside = [Inside(self.guests[1], name) for name in ('in', 'out')]
        inside.run('ip addr add %s/24 dev vmx0 && ip link set vmx0 up' % inside.address)
        connects(device, inside, peer)
        connects(device, peer, inside)
        for other in outside, plain:
            self.assertNotIn(device, other.run('ls /sys/class/infiniband; ibv_devices; '
                                               'rdma dev').out)
            # Who knows its file is refused.
            done = other.run('for file in /dev/infiniband/uverbs*; do true <> $file; done',
                             check=False)
            self.assertIn('Operation not permitted', done.err, done.describe())
        plain.run('ip netns del in')
        parts.wait_in_guest(plain, '[ -e /sys/class/infiniband/%s ] && ip link set vmx0 up '
                            '2>/dev/null' % device, 'the device and its interface')
        plain.run('ip netns del out; ip addr add %s/24 dev vmx0; ip addr add %s/24 dev vmx0' % (
            own, plain.address))
        connects(device, plain, peer)
        for end in plain, peer:
            end.run('ip addr del %s/24 dev vmx0' % end.address)
        plain.run('rdma system set netns shared')
        self.guests[1].gid_index(device, own)
        self.uses(3 * 2 * 200 * 4096, before)


@fixture.shard('users')
class StockPartsTest(Applications, fixture.SessionTest):
    # SMC finds no adapter for the interface; told of it, it fails, for that driver says that a
    # queue pair in RESET has room for nothing.
    own, smc_mode = False, 'TCP'

    def test_namespaces(self):
        """That driver could not take a device away from its programs."""
        guest = Inside(self.guests[1])
        done = guest.run('rdma system set netns exclusive && ip netns add in && rdma dev set '
                         '%s netns in' % parts.STOCK_DEVICE, check=False)
        self.assertIn('Operation not supported', done.err, done.describe())
        guest.run('ip netns del in && rdma system set netns shared')
