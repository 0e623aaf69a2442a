# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests on different hosts: datagrams, the connection manager, and connections.

The hosts are network namespaces with a daemon in each (hosts.py).  Programs are the
distribution's, and our own that compare every byte; one guest has our driver and
library, the other the stock ones, or both have ours.
"""

import test_rdmacm
from lib import fixture, hosts, ongoing, parts, virtual
from lib.programs import NO_ERRORS

# The VMs of virtual guests, of each pair of neighbouring hosts.
VIRTUAL = (11, 12), (13, 14), (15, 16)


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


class HostsTest(test_rdmacm.Programs, HostsCase):
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
            with self.carried(4 * 20, 1000, datagrams=True):
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
            self.assertRegex(job.out, NO_ERRORS)


@fixture.shard('users')
class HostsOwnTest(test_rdmacm.KernelLog, HostsCase):
    """With our driver and library on both."""

    own = (True, True)

    def test_datacheck(self):
        """Unreliable connections, too."""
        job = self.check('datacheck -d {dev} -g {gid} -p {port} -n 1{| IP}', 0,
                         timeout=240)
        self.assertRegex(job.out, r'(?m)^parts: .*\buc\b')
        self.assertRegex(job.out, NO_ERRORS)


class ThreeHostsTest(fixture.SessionTest):
    """A guest on each of three hosts, and virtual guests beside them; the second has the
    stock parts."""

    on_hosts = True

    @classmethod
    def make_ends(cls):
        ends = []
        for guest in cls.guests:
            own = guest is not cls.guests[1]
            if own:
                parts.use_own(guest)
            else:
                guest.load_pvrdma()
                guest.run('modprobe rdma_ucm')
            ends.append(ongoing.end_of(guest, parts.OWN_DEVICE if own
                                       else parts.STOCK_DEVICE))
        return ends

    @classmethod
    def boot(cls):
        cls.hosts = hosts.Hosts(cls.session, 3)
        cls.daemons = cls.hosts.start_daemons(
            {'vm%d' % i: {'addresses': 'any'} for i in (1, 2, 3, *sum(VIRTUAL, ()))})
        cls.guests = cls.hosts.start_guests(cls.daemons, [0, 1, 2],
                                            files=parts.guest_files())
        cls.ends = cls.make_ends()

    def tearDown(self):
        """What a test that failed has left is not in the way of the next."""
        for guest in self.guests:
            guest.agent.kill_jobs()
        super().tearDown()

    def hosts_of_peers(self, number):
        """Where the connections of a guest's queue pairs go to, by iWARP."""
        qps = self.daemons[number].ctl_json('qp', 'list', self.guests[number].name)['qps']
        return {qp['host'] for qp in qps if qp['type'] == 'RC' and qp['state'] == 'RTS' and
                qp['transport'] == 'tcp' and qp['connection'] == 'up'}

    def virtual(self):
        """Traffic between virtual guests on each two of the hosts."""
        for number, (one, two) in enumerate(VIRTUAL):
            at = number, (number + 1) % 3
            yield virtual.Traffic(self.session, self.daemons[at[0]].socket_dir, one,
                                  self.daemons[at[1]].socket_dir, two,
                                  name='virtual%d' % number)

    def test_each_with_each(self):
        """All three pairs at the same time, each with programs of its own."""
        one, two, three = self.ends
        beside = list(self.virtual())
        programs = [ongoing.Counting([one, two], self.daemons),
                    ongoing.Rping([three, one], self.daemons),
                    ongoing.Perftest('ib_write_bw -b', [two, three], self.daemons),
                    ongoing.Perftest('ib_send_bw -b', [three, one], self.daemons)]
        for _ in range(3):
            for program in programs:
                program.more()
        names = [host.name for host in self.hosts.hosts]
        for number, name in enumerate(names):
            self.assertEqual(self.hosts_of_peers(number), set(names) - {name})
        for program in reversed(programs):
            program.end()
        for traffic in beside:
            self.assertGreater(traffic.end()['operations'], 0)

    @fixture.shard('users')
    def test_datacheck(self):
        """Two guests with our parts, and each of them with the stock ones."""
        for port, (one, two) in enumerate(((0, 2), (0, 1), (1, 2)), 7700):
            lines = ['datacheck -d %s -g %d -p %d -n 1' % (end.device, end.gid, port)
                     for end in (self.ends[one], self.ends[two])]
            server = self.guests[one].spawn(lines[0], 240)
            self.guests[one].wait_listen(port, server)
            client = self.guests[two].spawn(
                '%s %s' % (lines[1], self.guests[one].ip('pvrdma')), 240)
            for job in (server, client):
                self.assertRegex(job.wait(check=True).out, NO_ERRORS)
