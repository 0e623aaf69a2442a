# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications that are no pair of commands: SMC-R, RDS, libiscsi.

All are Debian's, and set nothing that their users would not; on our driver and provider and
on the stock ones, where SMC-R falls back to TCP.
"""

import re

import fixture
import kusers
import suites
from kernellog import log_problems
from programs import _ports
from pvrdma_vm import REPO, VmError

# Of SMC-R: connections at the same time, and bytes of each in each direction.
CONNECTIONS, BYTES = 3, 3000000
# SMC over networks with routers (SMC-Rv2, all that a RoCE v2 device can) is among hosts that
# have this in common.
UEID = 'PVRDMA-TEST'
# RDS: rounds of messages of all sizes.
ROUNDS = 10


def put(guest, name):
    """The file @name of this folder into the Debian's /tmp."""
    with open('%s/tests/vm/%s' % (REPO, name), 'rb') as stream:
        job = guest.spawn('cat > /tmp/' + name, stdin=True)
        job.stdin(stream.read())
        job.stdin(b'')
        job.wait(check=True)


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
            for _ in range(5):
                job = host.run('deb ' + line, 120, check=False)
                if job.ok or 'revents is not POLLIN' not in job.err:
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
    pass


@fixture.shard('users')
class StockPartsTest(Applications, fixture.SessionTest):
    # SMC finds no adapter for the interface; told of it, it fails, for that driver says that a
    # queue pair in RESET has room for nothing.
    own, smc_mode = False, 'TCP'
