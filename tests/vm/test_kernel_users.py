# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest kernel's own users of RDMA: NVMe and NFS, with our driver and the stock one.

One pair of guests for all of it, for each boot costs as much as the rest: both use our
driver, and the host has to live through the restart of its servers' service.  In shard
storage each verifies for minutes, and iSER does, too; then the target comes back with the
stock driver, then the host changes, too, and the target comes back with ours, and the
host has to live through restarts of the whole guest.  Another pair, of two processors
each, for what NVMe does with several queues.
"""

import re
import time

from lib import fixture, kusers, parts, suites
from lib.kernellog import log_problems
from lib.pvrdma_vm import end_well, say

# The host registers 128 transfers for each NVMe queue of data, and one or two for each
# queue of commands; the target with force_mr as many.
TRANSFERS = 128
# Of `fio --verify` for each of five in the shard.
MINUTES = 2
# Processors of the guests where NVMe makes a queue for each.
QUEUES = 2


class KernelUsersTest(fixture.PrivateTest):
    time_limit = 5400 if fixture.LONG else 1800  # the disk may have to be made

    def vm(self, guest):
        """The daemon's counters of a VM."""
        vms = self.lab.daemon.ctl_json('counters')['vms']
        return next(vm for vm in vms if vm['name'] == guest.name)

    def verify(self, guest, target, megabytes=24):
        end = time.monotonic() + (60 * MINUTES if fixture.LONG else 0)
        seed = 1
        kusers.verify(guest, target, megabytes, seed)
        while time.monotonic() < end:
            seed += 1
            kusers.verify(guest, target, megabytes, seed)
        say('%s: verified %d times %d MB' % (target, seed, megabytes))

    def moves(self, guest, job):
        """Wait until 8 MiB more have come or gone by RDMA, while @job runs."""
        def moved():
            return sum(self.vm(guest)['datapath'][name] for name in ('tx_bytes',
                                                                     'rx_bytes'))
        want = moved() + (8 << 20)
        end = time.monotonic() + 120
        while moved() < want:
            self.assertFalse(job.done, job.describe())
            self.assertLess(time.monotonic(), end, 'no I/O within 120 s')
            time.sleep(0.1)

    def breaks(self, job):
        """@job must end by an I/O error, and soon."""
        job.wait(60)
        self.assertIn('Input/output error', job.err, job.describe())

    def registers(self, guest, srqs):
        found = self.vm(guest)['objects']
        self.assertGreater(found['mrs'], TRANSFERS, 'not by fast registration')
        self.assertEqual(found['srqs'] > 0, srqs)

    def outlives(self, nvme, nfs, own=None):
        """The target's services end and start again, or with @own its QEMU does, in the
        middle of I/O: it goes on, and what was written is there."""
        host, target = self.lab.guests
        address = target.ip('pvrdma')
        paths = (nvme.disk, kusers.Nfs.PATH)
        kept = [kusers.keep(host, path) for path in paths]
        rounds = [kusers.Rounds(host, path) for path in paths]
        if own is None:
            nvme.withdraw(target, subsystem=True)
            nfs.stop(target)
            nvme.serve(target, address)
            nfs.start(target)
        else:
            self.lab.restart(target, own)
            nvme.serve(target, address)
            nfs.serve(target, address)
        nfs.reclaimed(target)
        for each in rounds:
            each.more()
        for each in rounds:
            each.finish()
        for test in kept:
            kusers.script(host, test)
        say('outlived: %s' % ('the services' if own is None else 'the guest'))

    @fixture.longer('storage')
    def test_nvme_and_nfs(self):
        self.lab = lab = suites.Lab(self.session, True, force_mr=True, kind=suites.Keeper)
        host, target = lab.guests
        address = target.ip('pvrdma')
        nvme = kusers.Nvme(store=suites.Keeper.STORES[0])
        # Linux' client looks after a silent server as seldom as this.
        nfs = kusers.Nfs(store=suites.Keeper.STORES[1], timeout=30)

        # Both ours; the target with a shared receive queue.
        nvme.serve(target, address, 'use_srq=1')
        disk = nvme.attach(host, address)
        self.registers(host, False)
        self.registers(target, True)
        kusers.copies(host, disk)
        self.verify(host, disk)
        nfs.serve(target, address)
        path = nfs.attach(host, address)
        kusers.copies(host, path)
        self.verify(host, path, 16)
        if fixture.LONG:
            iscsi = kusers.Iscsi()
            iscsi.serve(target, address)
            path = iscsi.attach(host, address)
            kusers.copies(host, path)
            self.verify(host, path)
            iscsi.detach(host)

        # The target restarts in the middle of I/O; then it is taken away from it.
        self.outlives(nvme, nfs)
        if fixture.LONG:
            self.other_drivers(nvme, nfs)
        self.taken_away(nvme, nfs)

        for guest in lab.guests:
            self.assertEqual(self.vm(guest)['device']['bad_doorbells'], 0)
            self.assertEqual(log_problems(guest), [])
        end_well(lab.guests, lab.daemon)

    def taken_away(self, nvme, nfs):
        """The target, in the middle of I/O."""
        host, _ = self.lab.guests
        nfs.detach(host)
        job = kusers.load(host, nvme.disk)
        self.moves(host, job)
        nvme.detach(host)
        self.breaks(job)

    def other_drivers(self, nvme, nfs):
        """The target dies; the host goes on with its next life, which has the stock
        driver.  Returns with the disk attached, as it was."""
        host, target = self.lab.guests
        address = target.ip('pvrdma')
        self.outlives(nvme, nfs, own=False)
        self.taken_away(nvme, nfs)
        disk = nvme.attach(host, address)
        self.registers(target, False)
        self.verify(host, disk)

        # That has no shared receive queues for the kernel: the host is told, not hung.
        nvme.detach(host)
        nvme.withdraw(target)
        nvme.serve(target, address, 'use_srq=1')
        self.assertIsNone(nvme.attach(host, address, check=False))
        nvme.withdraw(target)
        nvme.serve(target, address)
        disk = nvme.attach(host, address)

        # The host's driver goes in the middle of I/O, and the stock one comes.
        job = kusers.load(host, disk)
        self.moves(host, job)
        host.run('rmmod pvrdma')
        self.breaks(job)
        host.run('umount /debian' + parts.STOCK_LIBRARY)
        host.load_pvrdma()
        host.gid_index(parts.STOCK_DEVICE, host.ip('pvrdma'))
        disk = nvme.attach(host, address)
        self.registers(host, False)
        self.verify(host, disk)
        nfs.attach(host, address)
        self.outlives(nvme, nfs)
        self.outlives(nvme, nfs, own=True)

    def completions(self, guest):
        """How often the interrupt of each completion vector came."""
        out = guest.run('grep pvrdma-completion /proc/interrupts').out
        counts = {}
        for line in out.splitlines():
            vector = int(re.search(r'pvrdma-completion(\d+)@', line).group(1))
            counts[vector] = sum(int(word) for word in line.split()[1:1 + QUEUES])
        return [counts[vector] for vector in sorted(counts)]

    @fixture.shard('users')
    def test_nvme_queues(self):
        """A queue for each processor, at both ends with a completion vector of its
        own."""
        self.lab = lab = suites.Lab(self.session, True, cpus=QUEUES, force_mr=True)
        host, target = lab.guests
        nvme = kusers.Nvme()
        nvme.serve(target, target.ip('pvrdma'))
        disk = nvme.attach(host, target.ip('pvrdma'),
                           options='--nr-io-queues=%d' % QUEUES)
        # And one for commands.
        self.assertEqual(host.run('cat /sys/class/nvme/nvme*/queue_count').out.split(),
                         [str(1 + QUEUES)])
        self.assertGreater(self.vm(host)['objects']['mrs'], QUEUES * TRANSFERS)
        self.assertGreater(self.vm(target)['objects']['mrs'], QUEUES * TRANSFERS)
        before = [self.completions(guest) for guest in lab.guests]
        kusers.verify_split(host, disk, QUEUES)
        for guest, old in zip(lab.guests, before):
            new = self.completions(guest)
            self.assertEqual(len(new), QUEUES)
            for vector in range(QUEUES):
                self.assertGreater(new[vector] - old[vector], 20, (guest.name, old, new))
        # Both go on when they have been connected anew, on CQs that were used before.
        for _ in range(3):
            nvme.detach(host)
            disk = nvme.attach(host, target.ip('pvrdma'))
            kusers.verify_split(host, disk, QUEUES, 2)
        nvme.detach(host)
        for guest in lab.guests:
            self.assertEqual(self.vm(guest)['device']['bad_doorbells'], 0)
            self.assertEqual(log_problems(guest), [])
        end_well(lab.guests, lab.daemon)
