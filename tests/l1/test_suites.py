# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of virtual guests (tests/vguest), as they are, over the channels of a NIC that is
no model: soft-RoCE of the host that is a guest (level1.py).

By a clock that is slower than the host's, as that is slower than what the programs' limits
and the connections' retries are made for.
"""

import re

import host_case
from lib import fixture

CLOCK = '1/4'
LIBRARY = 'tests/clock/libpvrdma-clock.so'
# Seconds for each.
LIMIT = 300
# With their arguments.  A gigabyte takes a minute there.
SUITES = {'basic': '-s /basic/huge -s /basic/both-ways/large', 'cq': '', 'destroy': '',
          'fastreg': '', 'memwin': '', 'rnic-many': '', 'srq': '', 'state': '', 'status': ''}


@fixture.shard('rnic-suites')
class SuitesTest(host_case.HostTest):
    programs = ['tests/vguest/test-' + name for name in SUITES] + [LIBRARY]
    memory = 1536

    def run_suite(self, name):
        settings = {'LD_PRELOAD': '/usr/local/bin/libpvrdma-clock.so', 'PVRDMA_CLOCK': CLOCK,
                    'PVRDMAD': '/usr/local/bin/pvrdmad', 'PVRDMACTL': '/usr/local/bin/pvrdmactl',
                    'VGUEST_PATH': 'rnic', 'VGUEST_NIC': self.device,
                    'VGUEST_NIC_ADDRESS': self.host.ip('virtio')}
        out = self.host.run('env %s test-%s --tap %s' % (
            ' '.join('%s=%s' % pair for pair in settings.items()), name, SUITES[name]),
            LIMIT).out
        passed = re.findall(r'(?m)^ok \d+ (\S+)(?: # SKIP.*)?$', out)
        self.assertEqual(re.findall(r'(?m)^1\.\.(\d+)$', out), [str(len(passed))], out)
        self.assertEqual(self.host.problems(), [])


def _add(name):
    setattr(SuitesTest, 'test_' + name.replace('-', '_'),
            lambda self: self.run_suite(name))


for _name in SUITES:
    _add(_name)
