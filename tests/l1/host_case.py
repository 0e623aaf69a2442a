# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests on a host with an RDMA NIC (level1.py) have in common."""

import level1
from lib import fixture


class HostTest(fixture.SessionTest):
    """With a host, whose NIC is loaded."""

    series, kind = '6.1', 'rxe'
    # Of the build, and MiB.
    programs, memory = (), 768

    @classmethod
    def require(cls):
        level1.images(cls.series)

    @classmethod
    def boot(cls):
        cls.host = level1.Host(
            cls.session, cls.series, cls.programs, cls.memory).start().wait_boot()
        cls.device = cls.host.load(cls.kind)

    @classmethod
    def tearDownClass(cls):
        try:
            cls.host.powerdown()
        finally:
            super().tearDownClass()
