# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on different hosts: datagrams, the connection manager, and connections.

The hosts are network namespaces with a daemon in each (hosts.py).  Programs are the
distribution's, and our own that compare every byte; one guest has our driver and
library, the other the stock ones, or both have ours.
"""

import hosts
import parts
import test_rdmacm


class HostsCase(test_rdmacm.CmCase):
    """A guest on each of two hosts."""

    on_hosts = True

    @classmethod
    def make(cls):
        cls.hosts = hosts.Hosts(cls.session, 2)
        cls.daemons = cls.hosts.start_daemons(
            {name: {'addresses': 'any'} for name in ('vm1', 'vm2')})
        cls.guests = cls.hosts.start_guests(cls.daemons, [0, 1],
                                            files=parts.guest_files())


class HostsTest(HostsCase, test_rdmacm.CmStockTest):
    """All that the connection manager's tests do between guests of one host, and more."""

    own = (True, False)

    def received(self):
        """Datagrams that each host has had from the other."""
        return [daemon.ctl_json('status')['remote_datagrams']['received']
                for daemon in self.daemons]

    def test_datagrams_cross(self):
        """Addresses by ARP, connections by MADs, datagrams behind them; both ways."""
        for server in (0, 1):
            before = self.received()
            self.check('udaddy {-b|-s} IP -c 4 -C 20 -S 1000', server, 7174)
            for was, now in zip(before, self.received()):
                self.assertGreaterEqual(now - was, 80)

    def test_rc_pingpong(self):
        """With its data compared, both ways."""
        for server in (0, 1):
            self.check('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 16384 -n 300'
                       '{| IP}', server)

    def test_datacheck(self):
        """Every operation that both libraries have."""
        for server in (0, 1):
            job = self.check('datacheck -d {dev} -g {gid} -p {port} -n 1{| IP}', server,
                             timeout=240)
            self.assertRegex(job.out, r'(?m)^\d+ checks, 0 errors$')


class HostsOwnTest(HostsCase):
    """With our driver and library on both."""

    own = (True, True)

    def test_datacheck(self):
        """Unreliable connections, too."""
        job = self.check('datacheck -d {dev} -g {gid} -p {port} -n 1{| IP}', 0,
                         timeout=240)
        self.assertRegex(job.out, r'(?m)^parts: .*\buc\b')
        self.assertRegex(job.out, r'(?m)^\d+ checks, 0 errors$')
