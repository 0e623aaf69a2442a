# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on different hosts: datagrams and the connection manager.

The hosts are network namespaces with a daemon in each (hosts.py).  Programs are the
distribution's; the guests have our driver and library, and the stock ones.
"""

import unittest

import fixture
import hosts
import parts
import test_rdmacm
from pvrdma_vm import Session, end_well


class HostsCase(test_rdmacm.CmCase):
    """One guest on each of two hosts, for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        fixture.require_build()
        if not hosts.may_be_made():
            raise unittest.SkipTest('network namespaces need root')
        super().setUpClass()

    @classmethod
    def boot(cls):
        cls.hosts = hosts.Hosts(cls.session, 2)
        cls.daemons = cls.hosts.start_daemons(
            {name: {'addresses': 'any'} for name in ('vm1', 'vm2')})
        cls.daemon = cls.daemons[0]
        cls.guests = cls.hosts.start_guests(cls.daemons, [0, 1],
                                            files=parts.guest_files())
        cls.prepare()

    @classmethod
    def tearDownClass(cls):
        try:
            end_well(cls.guests, cls.daemons[0])
            cls.daemons[1].check()
            assert cls.daemons[1].stop() == 0
        except BaseException as exc:
            cls.session.keep_logs(exc)
            raise
        finally:
            cls.session.close()

    def tearDown(self):
        for daemon in self.daemons:
            daemon.check()

    def received(self):
        """Datagrams that each host has had from the other."""
        return [daemon.ctl_json('status')['remote_datagrams']['received']
                for daemon in self.daemons]


class HostsDatagramTest(HostsCase):
    """Our parts in one guest, the stock ones in the other."""

    own = (True, False)

    def test_udaddy(self):
        """Addresses by ARP, connections by MADs, datagrams behind them."""
        for server in (0, 1):
            before = self.received()
            job = self.check('udaddy {-b|-s} IP -c 4 -C 20 -S 1000', server, 7174)
            self.assertIn('data transfers complete', job.out)
            for was, now in zip(before, self.received()):
                self.assertGreaterEqual(now - was, 80)

    def test_ud_pingpong(self):
        """It hangs if one is lost."""
        for server in (0, 1):
            self.check('ibv_ud_pingpong -d {dev} -g {gid} -p {port} -s 1000 -n 500 {|IP}',
                       server)

    def test_send_lat(self):
        self.check_figure('ib_send_lat -c UD -d {dev} -x {gid} -p {port} -s 64 -n 200 -F '
                          '{|IP}', test_rdmacm.parse_lat)

    def test_every_byte(self):
        """udcheck looks at headers and data."""
        self.check('udcheck -d {dev} -g {gid} -p {port} -n 4{| IP}', timeout=120)

    def test_nobody_listens(self):
        """The other host's connection manager says so, at once."""
        self.in_vain('udaddy -s IP', 'RDMA_CM_EVENT_UNREACHABLE')


del HostsCase
