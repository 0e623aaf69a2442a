# SPDX-License-Identifier: GPL-2.0-or-later
"""The connection manager and datagrams between guests: rdma-core's programs,
perftest, and udcheck, which looks at every byte and at the route in front of it.

The connection manager runs in the guests' kernels; of the adapter it needs QP1, the
datagrams between these, and GIDs that lead to the peer.  In shard users also between guests
that have the same parts both.
"""

import contextlib
import itertools
import math
import re
import unittest

from lib import fixture, parts
from lib.agent import CommandFailed
from lib.kernellog import log_problems
from lib.programs import CLOCK_UNKNOWN, LISTENS, NO_ERRORS, PERFTEST, TOO_EARLY, TRIES, _ports, \
    check_pings, parse_bw, parse_lat, parse_pingpong
from lib.pvrdma_vm import Daemon, Guest, Link, say, start_guests

# Ports of the connection manager: each run gets a fresh one.
_cm_ports = itertools.count(7600)

# At once is before the connection manager would ask again, 4 s later.
AT_ONCE = 4
CONNECTIONS = 300
IP6 = 'fd00:77::%d'


class CmCase(fixture.SessionTest):
    """Two guests for all tests of a class; @own: which have our driver and
    library instead of the stock ones."""

    own = (True, True)

    @classmethod
    def boot(cls):
        cls.make()
        cls.daemon = cls.daemons[0]
        cls.prepare()

    @classmethod
    def make(cls):
        cls.daemons = [Daemon(cls.session, ['vm1', 'vm2', 'vm3'])]
        cls.guests = start_guests(cls.session, cls.daemons[0], virtio=False,
                                  files=parts.guest_files())

    @classmethod
    def prepare(cls):
        """Drivers, addresses; the devices and their GIDs."""
        cls.devices, cls.gids = [], []
        for guest, own in zip(cls.guests, cls.own):
            if own:
                guest.run('mount --bind %s %s' % (parts.LIBRARY,
                                                  parts.STOCK_LIBRARY))
                parts.load_own_driver(guest)
            else:
                guest.load_pvrdma()
            guest.run('modprobe rdma_ucm; ip -6 addr add %s/64 dev vmx0'
                      % (IP6 % guest.number))
            cls.devices.append(parts.OWN_DEVICE if own else parts.STOCK_DEVICE)
            cls.gids.append(guest.gid_index(cls.devices[-1], guest.ip('pvrdma')))

    @staticmethod
    def wait_listening(guest, cm_port, tcp_port, job):
        """Wait until the program of @job is ready; see start()."""
        try:
            if cm_port:
                parts.wait_in_guest(guest, LISTENS % cm_port, 'listener')
            else:
                guest.wait_listen(tcp_port, job)
        except BaseException:
            job.kill(9)
            raise

    def start(self, template, server=0, port=None, timeout=60):
        """Start @template in the serving guest and in the other; the pair of jobs.

        {a|b} in it is a for the server and b for the client.  @port: where the
        connection manager listens; None: the program listens on a TCP port of its
        own."""
        number = port or next(_ports)
        jobs = []
        for role, i in enumerate((server, 1 - server)):
            command = re.sub(r'{([^{}|]*)\|([^{}|]*)}',
                             lambda found: found.group(role + 1), template)
            command = command.replace('IP', self.guests[server].ip('pvrdma')).format(
                dev=self.devices[i], gid=self.gids[i], port=number)
            jobs.append(self.guests[i].spawn(command, timeout))
            if role == 0:
                self.wait_listening(self.guests[i], port, number, jobs[0])
        return jobs

    def check(self, template, server=0, port=None, timeout=60):
        """Both ends must exit 0; the client's job."""
        return self.both(template, server, port, timeout)[1]

    def both(self, template, server=0, port=None, timeout=60):
        """The same, of both."""
        jobs = self.start(template, server, port, timeout)
        try:
            jobs[1].wait(check=True)
            jobs[0].wait(check=True)
        finally:
            for job in jobs:
                if not job.done:
                    job.kill(9)
        return jobs

    def counters(self):
        """Of both VMs, of the daemon that each is attached to."""
        found = {vm['name']: vm for daemon in self.daemons
                 for vm in daemon.ctl_json('counters')['vms'] if vm['attached']}
        return [found[guest.name] for guest in self.guests]

    @contextlib.contextmanager
    def carried(self, count, size, datagrams=False):
        """Both VMs receive @count messages of @size bytes meanwhile, or more, and no request
        ends with an error: for programs that count completions and look neither at their
        status nor at the data, and say that all is complete when all was flushed."""
        before = self.counters()
        yield
        for guest, was, now in zip(self.guests, before, self.counters()):
            got = {name: now['datapath'][name] - was['datapath'][name]
                   for name in ('rx_messages', 'rx_bytes', 'errors')}
            if not datagrams:  # of the connection manager
                got['rx_messages'] -= \
                    now['datagrams']['received'] - was['datagrams']['received']
            self.assertGreaterEqual(got['rx_messages'], count, guest.name)
            self.assertGreaterEqual(got['rx_bytes'], count * size, guest.name)
            self.assertEqual(got['errors'], 0, guest.name)

    def check_figure(self, template, parse, server=0, port=None):
        """Once more where perftest could not measure the processor's clock."""
        for _ in range(TRIES):
            job = self.check(template, server, port)
            figure = parse(job.out) or 0
            if CLOCK_UNKNOWN not in job.err or 0 < figure < math.inf:
                break
        self.assertGreater(figure, 0, job.describe())

    def check_early(self, template, parse, server):
        """Once more where perftest's client asked before its server listened."""
        for left in reversed(range(TRIES)):
            try:
                self.check_figure(template, parse, server, next(_cm_ports))
                break
            except CommandFailed as failed:
                if not left or TOO_EARLY not in failed.job.err:
                    raise

    def in_vain(self, command, event):
        """What the client @command of the second guest prints has @event."""
        job = self.guests[1].run(command.replace(
            'IP', self.guests[0].ip('pvrdma')).format(port=next(_cm_ports)),
                                 check=False)
        self.assertEqual(job.how, 'exited', job.describe())
        self.assertNotEqual(job.code, 0, job.describe())
        self.assertIn(event, job.out + job.err, job.describe())
        self.assertLess(job.seconds, AT_ONCE * self.guests[1].patience,
                        job.describe())


class KernelLog:
    """Before a CmCase: it has nothing to say at the end."""

    def test_zz_kernel_log(self):
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])


class Programs(KernelLog):
    """Before a CmCase: the same whatever parts its guests have."""

    servers = (0,)

    def each(self):
        """(server, a fresh port) for each guest that is to serve: of several one for each
        test in turn, and all of them in the long run."""
        servers = self.servers
        if not fixture.LONG:
            number = unittest.TestLoader().getTestCaseNames(type(self)).index(
                self._testMethodName)
            servers = servers[number % len(servers):][:1]
        return [(server, next(_cm_ports)) for server in servers]

    def test_rping(self):
        for server, port in self.each():
            check_pings(*self.both('rping {-s|-c} -a IP -p {port} -C 20 -S 4000 -V -v',
                                   server, port), 20, 4000)

    def test_rping_ipv6(self):
        for server, port in self.each():
            check_pings(*self.both('rping {-s|-c} -a %s -p {port} -C 5 -V -v'
                                   % (IP6 % self.guests[server].number), server, port), 5)

    def test_ucmatose(self):
        for server, port in self.each():
            with self.carried(10 * 20, 4000):
                job = self.check('ucmatose {-b|-s} IP -p {port} -c 10 -C 20 -S 4000',
                                 server, port)
            self.assertIn('data transfers complete', job.out)

    def test_udaddy(self):
        """Its port cannot be chosen."""
        for server, _ in self.each():
            with self.carried(4 * 20, 1000, datagrams=True):
                job = self.check('udaddy {-b|-s} IP -c 4 -C 20 -S 1000', server, 7174)
            self.assertIn('data transfers complete', job.out)

    def test_rdma_server_and_client(self):
        for server, port in self.each():
            with self.carried(1, 16):
                job = self.check('{rdma_server|rdma_client -s IP} -p {port}', server,
                                 port)
            self.assertIn('rdma_client: end 0', job.out)

    def test_rstream(self):
        for server, port in self.each():
            for size, name in ((64, '64'), (65536, '64k')):
                port = next(_cm_ports)
                with self.carried(1, 20 * 10 * size):
                    jobs = self.both('rstream {-b|-s} IP -p {port} -T v -S %d -C 20 -I 10'
                                     % size, server, port)
                for job in jobs:
                    self.assertRegex(job.out, '(?m)^custom +%s +20 +10 ' % name)
                    self.assertEqual(job.err, '', job.describe())

    def test_rcopy(self):
        """A file of random bytes is the same at the other end.  The port is fixed."""
        for server, _ in self.each():
            target, source = self.guests[server], self.guests[1 - server]
            source.run('dd if=/dev/urandom of=/tmp/rcopy bs=64k count=65 2>/dev/null')
            jobs = self.start('rcopy{| /tmp/rcopy IP:/tmp/rcopied}', server, 7427)
            try:
                jobs[1].wait(check=True)
            finally:
                for job in jobs:
                    job.kill(9)
                jobs[0].wait()
            sums = [guest.run('md5sum < ' + name).out for guest, name in (
                (source, '/tmp/rcopy'), (target, '/tmp/rcopied'))]
            self.assertEqual(*sums)
            for guest in self.guests:
                guest.run('rm -f /tmp/rcopy /tmp/rcopied')

    def test_perftest_by_connection_manager(self):
        for server, _ in self.each():
            for command, parse in (('ib_send_lat -s 8 -n 200', parse_lat),
                                   ('ib_write_bw -s 65536 -n 100', parse_bw),
                                   ('ib_send_lat -c UD -s 8 -n 200', parse_lat)):
                with self.subTest(command):
                    self.check_early(command + ' -R -F -d {dev} -p {port}{| IP}', parse, server)

    def test_perftest_datagrams(self):
        for server, _ in self.each():
            # No more than perftest posts receives for at first (512): it waits for every
            # datagram, and those that find none are lost, as from a fast sender to a
            # guest whose turn it is not.
            for command, parse in (('ib_send_lat -s 8 -n 300', parse_lat),
                                   ('ib_send_bw -s 1024 -n 500', parse_bw)):
                with self.subTest(command):
                    self.check_figure(command + ' -c UD ' + PERFTEST + '{| IP}',
                                      parse, server)

    def test_ud_pingpong(self):
        for server, _ in self.each():
            for events in ('', ' -e'):
                self.check_figure('ibv_ud_pingpong -d {dev} -g {gid} -p {port} '
                                  '-s 1000 -n 300%s{| IP}' % events,
                                  parse_pingpong, server)

    def test_udcheck(self):
        for server, _ in self.each():
            job = self.check('udcheck -d {dev} -g {gid} -p {port} -n 4{| IP}', server)
            self.assertRegex(job.out, NO_ERRORS)

    def test_many_connections(self):
        """Hundreds at once; none is left over then."""
        for server, port in self.each():
            jobs = self.start('cmtime {-b|-s} IP -p {port}{| -c %d}' % CONNECTIONS,
                              server, port, 120)
            try:
                # Refused ones are no reason for it not to end with 0 (agent.IN_VAIN).
                client = jobs[1].wait(check=True)
            finally:
                for job in jobs:
                    job.kill(9)
                jobs[0].wait()
            self.assertNotIn('event', client.out + jobs[0].out, client.describe())
            took = dict(re.findall(r'^(\w[\w ]*?) *: +([\d.]+)', client.out,
                                   re.MULTILINE))
            total = sum(float(took[step]) for step in ('connect', 'disconnect'))
            say('%s: %d connections at once, %.0f ms to connect, %.0f to '
                'disconnect: %.0f per second' % (
                    type(self).__name__, CONNECTIONS, float(took['connect']),
                    float(took['disconnect']), CONNECTIONS * 1000 / total))
            for guest in self.guests:
                parts.wait_in_guest(guest, '! rdma resource show cm_id | grep -q cmtime',
                                    'end of the connections')

    def test_nobody_listens(self):
        for command in ('ucmatose -s IP -p {port}', 'rping -c -a IP -p {port} -C 1'):
            with self.subTest(command):
                self.in_vain(command, 'RDMA_CM_EVENT_REJECTED, error')
        self.in_vain('udaddy -s IP', 'RDMA_CM_EVENT_UNREACHABLE')

    def test_refused_by_the_program(self):
        """The server takes one connection and refuses the other: reason 28.

        It ends then, and the one that it took with it: on its client that may still be
        coming up, which is then told CONNECT_ERROR of it, and stops there, without reading what
        came of the other.  Such a try says nothing of the refusal.  It is one in three, fewer
        where the server first has the pages of its large message to unpin, and more on a busy
        machine; nothing else may come of any try."""
        for _ in range(10):
            port = next(_cm_ports)
            jobs = self.start('ucmatose {-b IP -c 1 -S 33554432|-s IP -c 2} -p {port}', 0,
                              port)
            client, server = jobs[1].wait(), jobs[0].wait()
            self.assertIn('failing connection request', server.out, server.describe())
            events = set(re.findall(r'RDMA_CM_EVENT_\w+, error: -?\d+', client.out))
            if events != {'RDMA_CM_EVENT_CONNECT_ERROR, error: -1'}:
                break
            say('the connection that was taken had ended first')
        self.assertEqual(events, {'RDMA_CM_EVENT_REJECTED, error: 28'}, client.describe())
        self.assertEqual(client.code, 28, client.describe())

    def test_multicast_is_refused(self):
        """Not carried, so who joins is told."""
        job = self.guests[1].run('mckey -m 239.1.1.1 -b %s'
                                 % self.guests[1].ip('pvrdma'), 20, check=False)
        self.assertEqual(job.how, 'exited', job.describe())
        self.assertIn('RDMA_CM_EVENT_MULTICAST_ERROR', job.out, job.describe())


@fixture.shard('users')
class CmOwnTest(KernelLog, CmCase):
    """With our driver and library in both guests: what rdma-core's library refuses."""

    def test_udcheck_extended(self):
        job = self.check('udcheck -x -i 64 -d {dev} -g {gid} -p {port} -n 4{| IP}')
        self.assertRegex(job.out, NO_ERRORS)

    def test_udcheck_ipv6(self):
        """Of an address that is neither link-local nor IPv4-mapped, which the stock
        library refuses."""
        gids = []
        for guest, device in zip(self.guests, self.devices):
            found = guest.run(
                'cd /sys/class/infiniband/%s/ports/1 && for f in $(grep -l '
                'fd00:0077:0000:0000:0000:0000:0000:000%d gids/*); do i=${f#gids/}; '
                'grep -q v2 gid_attrs/types/$i && echo $i; done'
                % (device, guest.number)).out.split()
            gids.append(int(found[0]))
        saved, type(self).gids = self.gids, gids
        try:
            job = self.check('udcheck -d {dev} -g {gid} -p {port} -n 2{| IP}')
        finally:
            type(self).gids = saved
        self.assertRegex(job.out, NO_ERRORS)


@fixture.longer('users')
class CmMixedTest(Programs, CmCase):
    """The stock parts in one guest and ours in the other, either one serving; and a third
    one that does not answer: it was paused."""

    own = (False, True)
    servers = (0, 1)

    @classmethod
    def boot(cls):
        super().boot()
        cls.third = Guest(cls.session, 3, {'pvrdma': Link(cls.session, 'three')},
                          cls.daemon.socket('vm3'), files=parts.guest_files())
        cls.third.start().wait_boot()
        parts.load_own_driver(cls.third)
        cls.third.gid_index(parts.OWN_DEVICE, cls.third.ip('pvrdma'))
        cls.third.qmp('stop')
        # It has a cable of its own, and could answer no ARP anyhow.
        cls.guests[0].run('/usr/sbin/ip neigh add %s lladdr %s dev vmx0 nud permanent'
                          % (cls.third.ip('pvrdma'), cls.third.mac('pvrdma')))
        # The connection manager asks 16 times, for 70 s.
        cls.asks = cls.ask_third(180)

    @classmethod
    def ask_third(cls, timeout):
        return cls.guests[0].spawn('ucmatose -s %s -p 7599'
                                   % cls.third.ip('pvrdma'), timeout)

    def test_z_paused_peer(self):
        """Whoever asks is told in the end, and at once when the peer has gone."""
        job = self.asks.wait()
        self.assertIn('RDMA_CM_EVENT_UNREACHABLE', job.out, job.describe())
        self.assertGreater(job.seconds, 30)
        self.third.kill()
        job = self.ask_third(60).wait()
        self.assertIn('RDMA_CM_EVENT_UNREACHABLE', job.out, job.describe())
        self.assertLess(job.seconds, AT_ONCE * self.guests[0].patience,
                        job.describe())


@fixture.shard('users')
class CmStockProgramsTest(Programs, CmCase):
    """With the in-tree driver and rdma-core's library in both."""

    own = (False, False)


@fixture.shard('users')
class CmOwnProgramsTest(Programs, CmCase):
    pass
