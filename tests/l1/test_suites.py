# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs of virtual guests (tests/vguest), as they are, over the channels of a NIC that is
no model: soft-RoCE of the host that is a guest (level1.py).

By a clock that is slower than the host's, as that is slower than what the programs' limits
and the connections' retries are made for.
"""

import re

import level1
from lib import fixture

CLOCK = '1/4'
LIBRARY = 'tests/clock/libpvrdma-clock.so'
# With their limits in seconds.
SUITES = {'basic': 120, 'cq': 120, 'destroy': 120, 'engine': 120, 'fastreg': 120, 'memwin': 120,
          'once': 120, 'rnic-many': 240, 'srq': 120, 'state': 120, 'status': 240, 'uc': 240}


@fixture.shard('rnic-l1')
class SuitesTest(fixture.SessionTest):

    @classmethod
    def require(cls):
        level1.images('6.1')

    @classmethod
    def boot(cls):
        cls.host = level1.Host(
            cls.session, '6.1', ['tests/vguest/test-' + name for name in SUITES] + [LIBRARY],
            memory=1536).start().wait_boot()
        cls.device = cls.host.load('rxe')

    @classmethod
    def tearDownClass(cls):
        try:
            cls.host.powerdown()
        finally:
            super().tearDownClass()

    def run_suite(self, name):
        settings = {'LD_PRELOAD': '/usr/local/bin/libpvrdma-clock.so', 'PVRDMA_CLOCK': CLOCK,
                    'PVRDMAD': '/usr/local/bin/pvrdmad', 'PVRDMACTL': '/usr/local/bin/pvrdmactl',
                    'VGUEST_PATH': 'rnic', 'VGUEST_NIC': self.device,
                    'VGUEST_NIC_ADDRESS': self.host.ip('virtio')}
        out = self.host.run('env %s test-%s --tap' % (
            ' '.join('%s=%s' % pair for pair in settings.items()), name), SUITES[name]).out
        passed = re.findall(r'(?m)^ok \d+ (\S+)(?: # SKIP.*)?$', out)
        self.assertEqual(re.findall(r'(?m)^1\.\.(\d+)$', out), [str(len(passed))], out)
        self.assertEqual(self.host.problems(), [])


def _add(name):
    setattr(SuitesTest, 'test_' + name.replace('-', '_'),
            lambda self: self.run_suite(name))


for _name in SUITES:
    _add(_name)
