# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernels that our driver can be built for; nothing boots.

guest-driver/build-kernels.sh builds it.  The core does so for the oldest and the newest
kernel that this machine's apt has; the rest is what Debian's releases have.
"""

import os
import subprocess
import tempfile
import unittest

from lib import fixture
from lib.pvrdma_vm import BUILD, REPO

DRIVER = os.path.join(REPO, 'guest-driver')


class ProbeTest(unittest.TestCase):
    """What Kbuild finds in headers: names decide, not the kernel's version."""

    MAKEFILE = 'include %s\nall:\n\t@echo $(ccflags-y)\n' % os.path.join(DRIVER, 'Kbuild')

    def found(self, **headers):
        """The names that it finds in @headers, in include/rdma by their names."""
        with tempfile.TemporaryDirectory(prefix='pvrdma-kbuild-') as folder:
            os.makedirs(os.path.join(folder, 'include', 'rdma'))
            for name, text in headers.items():
                with open(os.path.join(folder, 'include', 'rdma', name + '.h'), 'w') as stream:
                    stream.write(text)
            said = subprocess.run(
                ['make', '-s', '-f', '-', 'srctree=' + folder, 'src=' + DRIVER],
                input=self.MAKEFILE, stdout=subprocess.PIPE, universal_newlines=True,
                check=True).stdout
        mark = '-DPVRDMA_HAVE_'
        return {word[len(mark):] for word in said.split() if word.startswith(mark)}

    VERBS = '\tint (*%s)(struct ib_cq *cq);\n'

    def test_names(self):
        """Each by itself, and no longer name that has it in it."""
        self.assertEqual(self.found(ib_verbs=self.VERBS % 'resize_cq',
                                    ib_umem='struct ib_umem *ib_umem_get(int a);\n'), set())
        for name in ('create_user_cq', 'resize_user_cq', 'report_port_event', 'counter_init',
                     'fill_res_srq_entry'):
            self.assertEqual(self.found(ib_verbs=self.VERBS % name, ib_umem=''), {name})
            self.assertEqual(self.found(ib_verbs=self.VERBS % (name + '_raw'), ib_umem=''),
                             set())

    def test_iter(self):
        """A header of its own, which stable kernels took over from 7.1."""
        self.assertEqual(self.found(ib_verbs='', ib_umem='', iter=''), {'iter_h'})

    def test_between(self):
        """Linux 7.1: the CQs' verbs are new, the call that pins is not."""
        verbs = self.VERBS % 'create_user_cq' + self.VERBS % 'resize_user_cq'
        self.assertEqual(self.found(ib_verbs=verbs, ib_umem='ib_umem_get(int a);\n'),
                         {'create_user_cq', 'resize_user_cq'})
        self.assertIn('ib_umem_get_va', self.found(
            ib_verbs=verbs, ib_umem='static inline struct ib_umem *ib_umem_get_va(int a)\n'))

    def test_versions(self):
        """Nothing in the driver compares one."""
        for name in os.listdir(DRIVER):
            if name.endswith(('.c', '.h')) or name == 'Kbuild':
                with open(os.path.join(DRIVER, name)) as stream:
                    self.assertNotRegex(stream.read(), 'VERSION_CODE|KERNEL_VERSION|PATCHLEVEL')


class KernelsTest(unittest.TestCase):
    """Driver and selftest are built, without a warning."""

    time_limit = 1800  # it may have to fetch what it builds for

    def build(self, *args):
        fixture.require_build()
        done = subprocess.run([os.path.join(DRIVER, 'build-kernels.sh'), *args],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        skipped = [line[5:] for line in lines if line.startswith('SKIP ')]
        self.assertTrue(skipped or any(line.startswith('ok ') for line in lines), done.stdout)
        if skipped:
            self.skipTest('; '.join(skipped))

    def test_ends(self):
        """The oldest and the newest kernel that this machine's apt has."""
        self.build('--ends', BUILD)

    @fixture.shard('driver')
    def test_this_release(self):
        """The oldest and the newest of each series of this machine's Debian, with backports."""
        with open('/etc/os-release') as stream:
            lines = dict(line.rstrip().split('=', 1) for line in stream if '=' in line)
        self.build(BUILD, lines.get('VERSION_CODENAME', 'unknown').strip('"'))

    @fixture.shard('driver')
    def test_trixie(self):
        self.build(BUILD, 'trixie')

    @fixture.shard('driver')
    def test_testing(self):
        self.build(BUILD, 'testing')
