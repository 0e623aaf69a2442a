# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest that is libvirt's: `virsh migrate` between two hosts, there and back, while its
programs and those of its peer go on; moves that are refused; suspended, saved, restored.

The peer is a plain guest of the first host.  A shard of `make soak`, since the root with
libvirt has to be fetched.
"""

import os
import re
import time

import libvirt_hosts
import test_migrate
from lib import hosts, ongoing, parts
from lib.pvrdma_vm import say
from test_migrate import MOVER, PEER

GROUP = {'addresses': 'any'}
# The target's group, what virsh says, what the daemon there says.
REFUSED = (
    (dict(GROUP, **{'max-qp': '100'}), 'pvrdmad refuses: Bad message',
     'limits: max-qp is 16384 there and 100 here'),
    (dict(GROUP, network='other'), 'pvrdmad refuses: Bad message', 'network'),
    ({'addresses': '10.77.0.99'}, 'pvrdmad refuses: Bad message',
     'is an address that the VM may not have here'),
    (None, 'cannot connect to pvrdmad at', None),
)


class LibvirtTest(test_migrate.HostsTest):
    """With what HostsTest does by QEMU's own commands: datacheck, perftest both ways and
    new connections over moves there and back.  With the stock guest parts."""

    time_limit = 1200  # it may have to make the root

    @classmethod
    def require(cls):
        libvirt_hosts.make_root()

    @classmethod
    def make(cls):
        cls.hosts = libvirt_hosts.LibvirtHosts(cls.session)
        cls.libvirt = cls.hosts.libvirt
        cls.daemons = cls.hosts.start_daemons({PEER: GROUP, MOVER: GROUP})
        cls.here = 0
        links = {'pvrdma': hosts.Lan(cls.session, {PEER: cls.hosts[0]})}
        cls.guests = [
            hosts.HostGuest(cls.session, 1, links, cls.daemons[0].socket(PEER),
                            host=cls.hosts[0], files=parts.guest_files()).start(),
            libvirt_hosts.DomainGuest(
                cls.session, 2, links, cls.daemons[0].socket(MOVER), place=cls.libvirt[0],
                places=cls.libvirt, files=parts.guest_files()).start()]

    def move(self, *options):
        """To the other host; by both ways that libvirt has, in turns."""
        began = time.monotonic()
        there = 1 - self.here
        if not options and there == 0:
            options = ('--p2p',)
        self.mover.move(self.libvirt[there], *options)
        type(self).here = there
        say('virsh migrate %s took %.1f s' % (' '.join(options),
                                              time.monotonic() - began))
        self.assertTrue(self.mover.agent.ping())

    def status(self, daemon):
        """What `pvrdmactl vm migrate-status` says of the mover there."""
        row, = daemon.ctl_json('vm', 'migrate-status', MOVER)['vms']
        return row

    def libvirt_state(self, i):
        """What libvirt calls the mover on a host, or None."""
        said, status = self.libvirt[i].virsh('domstate', MOVER, check=False)
        return None if status else said.strip()

    def test_migrate_status(self):
        """Both hosts' daemons tell of it."""
        self.datacheck(lambda goes_on: self.move())
        source = self.status(self.daemons[1 - self.here])
        target = self.status(self.daemons[self.here])
        self.assertEqual((source['last'], source['attached']), ('saved', False))
        self.assertEqual((target['last'], target['attached']), ('loaded', True))
        for row in source, target:
            self.assertEqual((row['state'], row['error']), ('running', ''))
            self.assertGreater(row['bytes'], 0)
        self.assertEqual(source['bytes'], target['bytes'])

    def refuse(self, settings, said, reason):
        """virsh migrate, while the target's [vm] group has these settings: it, or QEMU
        there, says @said, the daemon there has @reason, and the VM runs on where it is."""
        there = 1 - self.here
        daemon = self.daemons[there]
        daemon.declare(MOVER, settings)
        try:
            with open(self.libvirt[there].log(self.mover.name)) as log:
                log.seek(0, os.SEEK_END)
                words = self.mover.try_move(self.libvirt[there])
                # libvirt hears of the one QEMU or of the other first.
                self.assertRegex(words, 'operation failed: .*Sibling|' + re.escape(said))
                end = time.monotonic() + 10
                while said not in words:
                    self.assertLess(time.monotonic(), end, words)
                    time.sleep(0.1)
                    words += log.read()
            self.mover.wait_status('running')
            self.assertIsNone(self.libvirt_state(there))
            if reason:
                self.assertIn(reason, self.status(daemon)['error'])
        finally:
            daemon.declare(MOVER, GROUP)

    def test_refused(self):
        """By QEMU and the daemon at the target; programs notice nothing, and what is
        left of it is not in the way of a move that is right."""
        def action(goes_on):
            goes_on()
            for case in REFUSED:
                with self.subTest(settings=case[0]):
                    self.refuse(*case)
                goes_on()
            # By the device; or before, where QEMU may not use userfaultfd.
            said = self.mover.try_move(self.libvirt[1 - self.here], '--postcopy')
            self.assertRegex(said, 'cannot migrate by post-copy|Userfaultfd not available')
            self.mover.wait_status('running')
        self.datacheck(action)
        self.move()
        self.works()

    def test_suspend(self):
        def action(goes_on):
            goes_on()
            self.libvirt[self.here].virsh('suspend', MOVER)
            self.assertEqual(self.libvirt_state(self.here), 'paused')
            time.sleep(test_migrate.STOPPED)
            self.libvirt[self.here].virsh('resume', MOVER)
        self.datacheck(action)

    def works(self):
        self.rdma.run('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 16384 -n 100')

    def pingpong(self, port):
        """Both ends of it, which go on for minutes if nothing ends them."""
        command = 'ibv_rc_pingpong -d %s -g %d -p %d -n 100000000'
        first = self.peer.spawn(
            command % (self.rdma.device, self.rdma.gids[0], port), 300)
        self.peer.wait_listen(port, first)
        second = self.mover.spawn(
            command % (self.rdma.device, self.rdma.gids[1], port) + ' ' +
            self.peer.ip('pvrdma'), 300)
        program = ongoing.Program([first, second], self.peer.patience)
        program.more_messages(self.daemons)
        return program

    def test_save_and_restore(self):
        """The VM goes on without its connections, and is told so.  Its peer may have nothing
        to send, and wait."""
        program = self.pingpong(18698)
        self.mover.save('saved')
        self.assertIsNone(self.libvirt_state(self.here))
        self.mover.restore('saved')
        peer, job = program.jobs
        job.wait(100)
        self.assertEqual((job.how, job.code), ('exited', 1), job.describe())
        self.assertIn('Work Request Flushed Error', job.out + job.err)
        peer.kill(9)
        peer.wait(30)
        self.works()


class OwnLibvirtTest(LibvirtTest):
    """All of it with our driver and library."""

    own = True
