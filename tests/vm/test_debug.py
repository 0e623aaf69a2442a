# SPDX-License-Identifier: GPL-2.0-or-later
"""The debugging kernel looks, and what it finds is seen: without this, the silence
of the other tests under it would mean nothing.

There are no such tests with another kernel.
"""

import re

import test_driver
from lib import fixture, parts, pvrdma_vm
from lib.kernellog import log_problems
from lib.pvrdma_vm import Daemon, VmError, start_guests

PLANTED = '/opt/pvrdma/pvrdma_planted.ko'
# What is planted, and how it is reported.  In this order: lockdep looks no more once
# it or KASAN reported.
REPORTS = {
    'dma': 'DMA-API: .*tries to free DMA memory it has not allocated',
    'object': 'ODEBUG: free active .*timer_list|WARNING: .*debug_print_object',
    'sleep': 'BUG: sleeping function called from invalid context',
    'lock': 'WARNING: possible circular locking dependency',
    'freed': 'BUG: KASAN: .*use-after-free',
}


class DebugKernelTest(fixture.SessionTest):
    @classmethod
    def boot(cls):
        files = test_driver.guest_files()
        files[PLANTED.lstrip('/')] = test_driver.built('pvrdma_planted.ko')
        daemon = Daemon(cls.session, ['vm1'])
        cls.guest, = start_guests(cls.session, daemon, count=1, virtio=False,
                                  files=files)
        parts.load_own_driver(cls.guest)

    def test_kernel(self):
        """All checks are on from the start, and nothing was found yet."""
        self.assertIn('kasan: KernelAddressSanitizer initialized',
                      self.guest.run('dmesg').out)
        self.assertEqual(log_problems(self.guest), [])

    def test_lock_classes(self):
        """lockdep tells both directions of a queue pair apart."""
        parts.check_kernel_verbs(self.guest)
        classes = set(re.findall(r': (\S+)$', self.guest.run('cat /proc/lockdep').out,
                                 re.MULTILINE))
        ours = {'&qp->sq.lock', '&qp->rq.lock', '&cq->lock'}
        self.assertEqual(ours - classes, set())
        self.assertEqual(log_problems(self.guest), [])

    def test_planted(self):
        """Last by its name: afterwards some checks are off."""
        for what, report in REPORTS.items():
            with self.subTest(what=what):
                done = self.guest.run('insmod %s what=%s' % (PLANTED, what),
                                      check=False)
                self.assertFalse(done.ok)
                found = log_problems(self.guest)
                self.assertTrue([line for line in found
                                 if re.search(report, line)], found)
                self.guest.run('dmesg -c > /dev/null')
        self.assertIn('kernel check: lockdep is off', log_problems(self.guest))
        self.assertIn('kernel check: DMA-API has errors', log_problems(self.guest))
        # Tests that do not ask themselves fail at the guest's end.
        with self.assertRaisesRegex(VmError, 'lockdep is off'):
            self.guest.powerdown()


if not pvrdma_vm.debug_kernel():
    del DebugKernelTest
