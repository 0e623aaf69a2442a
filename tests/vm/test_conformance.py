# SPDX-License-Identifier: GPL-2.0-or-later
"""rdma-core's own suite, pyverbs, on our parts and, in shard users, on the stock ones, and
programs above it that choose their device by themselves.

What the lists of tests/vm/conformance name as passing must pass, and nothing may fail
that they do not name with a reason, nor be skipped.  (Those known failures are not run here; `make
conformance` runs them.)  Soft-RoCE runs the suite at the same time in the other guest:
a test that fails there, too, is looked for elsewhere than in our code.

UCX, Open MPI and MPICH are given no option about networks but what docs/conformance.md
tells users, and there is TCP between the guests: they must use the device all the same.
"""

import os
import unittest

from lib import fixture, foreign, parts, suites
from lib.pvrdma_vm import REPO, end_well


class SkipsTest(unittest.TestCase):
    """Each skip has its reason, in a table that people can read."""

    def test_groups(self):
        lists = suites.recorded().values()
        for expected in lists:
            self.assertTrue(expected.skipped, 'no skips in %s' % expected.path)
        used = {skip.group for expected in lists for skip in expected.skipped.values()}
        self.assertEqual(used, set(suites.skip_groups()))

    def test_table(self):
        with open(os.path.join(REPO, 'docs', 'conformance.md')) as stream:
            text = stream.read()
        self.assertIn('\n'.join(suites.skips_table()) + '\n', text,
                      'see "skips" in docs/testing.md')


class UntoldTest(unittest.TestCase):
    """What must go, or must not go, by the device is a row that runs alone."""

    def test_titles(self):
        alone = {row.title for row in foreign.PROGRAMS if row.alone}
        self.assertLessEqual(set(foreign.UNTOLD + foreign.BY_TCP), alone)


class SuitesTest(fixture.PrivateTest):
    time_limit = 1800  # it may have to fetch and unpack what it runs

    def check(self, own):
        lab = suites.Lab(self.session, own)
        self.check_pyverbs(lab)
        if own:
            self.check_udev(lab.guests[0])
        for title, result, said in foreign.untold(lab, not own):
            self.assertEqual(result, 'not by RDMA' if title in foreign.BY_TCP else 'ok',
                             '%s:\n%s' % (title, said))
        end_well(lab.guests, lab.daemon)

    def check_udev(self, guest):
        """By the rule of our package, as by rdma-core's of the in-tree driver."""
        with open(os.path.join(REPO, 'packaging', 'udev.rules')) as stream:
            guest.run("cat > /debian/etc/udev/rules.d/75-pvrdma.rules <<'EOF'\n%s\nEOF"
                      % stream.read())
        said = guest.run('deb udevadm test /sys/class/infiniband/' + parts.OWN_DEVICE)
        self.assertIn('ID_RDMA_ROCE=1', said.out + said.err)

    def check_pyverbs(self, lab):
        expected = suites.Expected(lab.name)
        self.assertTrue(expected.passing, 'no list %s' % expected.path)
        self.assertTrue(expected.skipped, 'no skips in %s' % expected.path)
        found = suites.run_pyverbs(lab, expected.failing)
        print('\n'.join(suites.pyverbs_table(found)))
        ours, rxe = found[lab.name], found['rxe']
        problems = ['%s%s' % (line, '' if rxe.get(line.split()[0], ('',))[0] == 'passed'
                              else ' (nor does it pass on soft-RoCE)')
                    for line in expected.problems(ours)]
        self.assertEqual(problems, [], 'see %s' % suites.RESULTS)

    def test_own_parts(self):
        self.check(True)

    @fixture.shard('users')
    def test_stock_parts(self):
        self.check(False)
