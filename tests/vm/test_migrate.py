# SPDX-License-Identifier: GPL-2.0-or-later
"""A guest moves to another QEMU, whose adapter is another VM of the daemon or one of
another host's, and back, while its programs and those of its peer go on."""

import functools
import os
import re
import time

from lib import fixture, hosts, migrate, ongoing, parts
from lib.kernellog import log_problems
from lib.programs import Pair
from lib.pvrdma_vm import Daemon, Guest, Link, end_well, kill_process, say
from lib.traffic import Traffic

PEER, MOVER, PLACE = 'vm1', 'vm2', 'vm2b'
# Seconds in which a VM does not answer.
STOPPED = 3
# Moves with each kind of guest parts; an even number, so that it ends where it began.
IN_A_ROW = 10 if fixture.LONG else 2


class OneHost(Traffic, fixture.SessionTest):
    """The peer and the guest that moves, for all tests of a class."""

    device_options = ''
    booted = False  # whether its guests have to have booted
    # Of QEMU, into the mover's log: how it learns what the daemon writes.
    traces = ['-trace', 'pvrdma_dirty_*']

    @classmethod
    def boot(cls):
        super().boot()
        cls.peer, cls.mover = cls.guests

    @classmethod
    def make(cls):
        cls.daemons = [Daemon(cls.session, [PEER, MOVER, PLACE])]
        cls.places = [(cls.daemons[0].socket(name), None) for name in (MOVER, PLACE)]
        links = {'pvrdma': Link(cls.session, 'vmx')}
        cls.guests = [
            Guest(cls.session, number, links, cls.daemons[0].socket(name),
                  files=parts.guest_files(), device_options=cls.device_options,
                  extra_args=cls.traces, boot=cls.booted).start()
            for number, name in ((1, PEER), (2, MOVER))]

    @classmethod
    def settle(cls, guest):
        """The mover is @guest from now on."""
        cls.mover = cls.guests[1] = guest

    def dirty_log(self):
        """Move under traffic: whether QEMU has begun to share the daemon's log of writes,
        whether to ask for it by messages, and how many pages either has told."""
        with open(self.session.path(self.mover.name + '-qemu.log')) as log:
            log.seek(0, os.SEEK_END)
            self.datacheck(lambda goes_on: (goes_on(), self.move()))
            said = log.read()
        pages = [int(count) for count in re.findall(
            r'pvrdma_dirty_sync .* (\d+) pages', said)]
        return [len(re.findall(r'pvrdma_dirty_%s .* ranges: 0\n' % how, said))
                for how in ('share', 'start')] + [sum(pages)]

    def move(self):
        """The mover goes to its other place."""
        self.places.reverse()
        self.settle(migrate.migrate(self.mover, *self.places[0]))
        self.assertTrue(self.mover.agent.ping())


class TwoHosts(OneHost):
    """The peer stays on its host: one copy becomes TCP, and the other way round."""

    on_hosts = True

    @classmethod
    def make(cls):
        cls.hosts = hosts.Hosts(cls.session, 2)
        cls.daemons = cls.hosts.start_daemons(
            {name: {'addresses': 'any'} for name in (PEER, MOVER)})
        cls.places = [(daemon.socket(MOVER), host)
                      for daemon, host in zip(cls.daemons, cls.hosts)]
        links = {'pvrdma': hosts.Cable(cls.session, {PEER: cls.hosts[0]})}
        cls.guests = [
            hosts.HostGuest(cls.session, number, links, cls.daemons[0].socket(name),
                            host=cls.hosts[0], boot=cls.booted, **cls.guest_options()).start()
            for number, name in ((1, PEER), (2, MOVER))]

    @classmethod
    def guest_options(cls):
        """Of both guests."""
        return {'files': parts.guest_files()}


class Moves:
    """Before one of these: what each kind of guest parts must bear."""

    def there_and_back(self, goes_on):
        for _ in range(2):
            goes_on()
            self.move()

    def test_datacheck(self):
        self.datacheck(self.there_and_back)

    def test_both_directions(self):
        self.both_directions(self.there_and_back)

    def test_new_connections(self):
        """The adapter is as good as new in its new place."""
        self.move()
        self.rdma.run('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 16384 -n 100')


class StockTest(Moves, OneHost):
    booted = True

    def test_dirty_log(self):
        """QEMU and the daemon share it."""
        shared, asked, pages = self.dirty_log()
        self.assertEqual((shared, asked), (1, 0))
        self.assertGreater(pages, 0)

    def test_stop_and_continue(self):
        """A VM that is stopped answers nobody; that is no reason to lose connections."""
        def action(goes_on):
            goes_on()
            self.mover.qmp('stop')
            time.sleep(STOPPED)
            self.mover.qmp('cont')
        self.datacheck(action)

    def broken_off(self, how, status):
        """@how(target) ends it when all but the device is over there; the source goes
        on."""
        target = migrate.target_of(self.mover, self.places[1][0])

        def action(goes_on):
            goes_on()
            migrate.begin(self.mover, target, pause_before_switchover=True)
            migrate.wait(self.mover, 'pre-switchover')
            how(target)
            migrate.wait(self.mover, status)
            self.mover.wait_status('running')
        try:
            self.datacheck(action)
        finally:
            kill_process(target.proc)
            self.mover.qmp('migrate-set-capabilities', capabilities=[
                {'capability': 'pause-before-switchover', 'state': False}])

    def test_cancelled(self):
        self.broken_off(lambda target: self.mover.qmp('migrate_cancel'), 'cancelled')

    def test_target_dies(self):
        def how(target):
            kill_process(target.proc)
            self.mover.qmp('migrate-continue', state='pre-switchover')
        self.broken_off(how, 'failed')

    def test_other_properties(self):
        """The target refuses what is not the same device; the source goes on."""
        options = self.mover.device_options
        self.mover.device_options = ',vectors=9'
        try:
            target = migrate.target_of(self.mover, self.places[1][0])
        finally:
            self.mover.device_options = options
        try:
            migrate.begin(self.mover, target)
            migrate.wait(self.mover, 'failed')
            self.mover.wait_status('running')
            self.assertEqual(target.proc.wait(60 * target.patience), 1)
        finally:
            kill_process(target.proc)
        with open(self.session.path(self.mover.name + '-qemu.log')) as log:
            self.assertIn("'vectors' differs", log.read())
        self.rdma.run('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -s 16384 -n 100')


@fixture.shard('moves')
class OwnTest(Moves, OneHost):
    """With the log of writes by messages, as from a daemon that does not share it."""

    own = True
    device_options = ',x-shared-log=off'

    def test_dirty_log(self):
        """As with a VMM that knows vfio-user's own messages and not ours."""
        shared, asked, pages = self.dirty_log()
        self.assertEqual((shared, asked), (0, 1))
        self.assertGreater(pages, 0)


class HostsTest(Moves, TwoHosts):
    pass


@fixture.shard('moves')
class OwnHostsTest(Moves, TwoHosts):
    own = True


@fixture.shard('moves')
class RowTest(TwoHosts):
    """With guests of its own: what it leaves when it fails is in nobody's way."""

    def in_a_row(self, start, ends):
        """The mover goes there and back again and again, while what @start begins goes
        on."""
        programs = start(ends)
        for number in range(IN_A_ROW):
            self.move()
            for program in programs:
                program.more()
            say('move %d of %d with %s' % (number + 1, IN_A_ROW, ends[0].device))
        for program in reversed(programs):
            program.end()
        for guest in (self.peer, self.mover):
            self.assertEqual(log_problems(guest), [])

    def many(self, ends, swap):
        """Programs and kernel users at the same time; with @swap the mover has the NVMe
        disk, else it uses the peer's."""
        programs = [ongoing.Perftest('ib_write_bw -b', ends, self.daemons),
                    ongoing.Perftest('ib_send_bw -b', ends, self.daemons),
                    ongoing.Rping(ends, self.daemons),
                    ongoing.Counting(ends, self.daemons)]
        return programs + [ongoing.NvmeCopy(ends[::-1] if swap else ends)]

    def with_parts(self, device):
        ends = [ongoing.end_of(guest, device) for guest in (self.peer, self.mover)]
        self.in_a_row(functools.partial(self.many, swap=device == parts.OWN_DEVICE), ends)
        if fixture.LONG:
            # It never sleeps either, and has thousands of steps: by itself.
            self.in_a_row(lambda ends: [ongoing.Datacheck(ends)], ends)

    def test_in_a_row(self):
        self.with_parts(parts.STOCK_DEVICE)
        for guest in (self.peer, self.mover):
            parts.use_own(guest)
        self.with_parts(parts.OWN_DEVICE)


class SavedTest(fixture.PrivateTest):
    """The state of the VM in a file."""

    def start(self, *extra_args):
        """The peer, and the guest that is saved."""
        self.daemon = Daemon(self.session, [PEER, MOVER])
        links = {'pvrdma': Link(self.session, 'vmx')}
        self.peer, self.guest = [
            Guest(self.session, number, links, self.daemon.socket(name),
                  files=parts.guest_files(), extra_args=args).start()
            for number, name, args in ((1, PEER, []), (2, MOVER, list(extra_args)))]
        for guest in (self.peer, self.guest):
            guest.wait_boot()
            guest.load_pvrdma()

    def counting(self, device):
        """The guest counts in its peer's memory."""
        return ongoing.Counting([ongoing.end_of(guest, device)
                                 for guest in (self.peer, self.guest)], [self.daemon])

    def ends(self, counting):
        """Its guest was put back, the peer has gone on: it fails, and is told so."""
        server, client = counting.jobs
        client.wait(100)
        self.assertEqual((client.how, client.code), ('exited', 1), client.describe())
        self.assertIn('event local work queue catastrophic error', client.out)
        self.assertRegex(client.err + client.out, 'addition [0-9]+ ended with')
        server.kill(9)
        server.wait(30)

    def all_works(self, device):
        """Every operation on new objects, both ways."""
        rdma = Pair([self.peer, self.guest], 'pvrdma', device)
        rdma.run('datacheck -d {dev} -g {gid} -p {port} -n 1')

    def job(self, command, **arguments):
        """Run one of QEMU's jobs to its end."""
        self.guest.qmp(command, **dict(arguments, **{'job-id': 'job'}))
        end = time.monotonic() + 120 * self.guest.patience
        while True:
            job, = self.guest.qmp('query-jobs')
            if job['status'] == 'concluded':
                break
            self.assertLess(time.monotonic(), end, job)
            time.sleep(0.1)
        self.assertNotIn('error', job)
        self.guest.qmp('job-dismiss', id='job')

    def snapshot(self, command, tag):
        self.job('snapshot-' + command, tag=tag, vmstate='disk', devices=['disk'])

    def put_back(self, device):
        counting = self.counting(device)
        counting.more()
        self.snapshot('save', device)
        counting.more()
        self.snapshot('load', device)
        self.ends(counting)
        self.all_works(device)

    def start_with_disk(self):
        disk = self.session.path('disk')
        open(disk, 'wb').close()
        self.start('-blockdev', 'file,node-name=file,filename=' + disk)
        self.job('blockdev-create', options={'driver': 'qcow2', 'file': 'file',
                                             'size': 2 << 30})
        self.guest.qmp('blockdev-add', driver='qcow2', file='file',
                       **{'node-name': 'disk'})

    @fixture.shard('moves')
    def test_snapshot(self):
        """The peers have gone on: what was connected fails; the rest works."""
        self.start_with_disk()
        self.put_back(parts.STOCK_DEVICE)
        for guest in (self.peer, self.guest):
            parts.use_own(guest)
        self.put_back(parts.OWN_DEVICE)
        end_well([self.peer, self.guest], self.daemon)

    def test_loadvm(self):
        """In a QEMU that was started anew.  The guest has not run since, and is back soon:
        only QEMU knows that it has not moved."""
        self.start_with_disk()
        for guest in (self.peer, self.guest):
            parts.use_own(guest)
        counting = self.counting(parts.OWN_DEVICE)
        counting.more()
        self.guest.qmp('stop')
        self.snapshot('save', 'one')
        self.guest = migrate.load_snapshot(self.guest, 'one',
                                           ['-blockdev', 'qcow2,node-name=disk,file=file'])
        self.ends(counting)
        self.all_works(parts.OWN_DEVICE)
        end_well([self.peer, self.guest], self.daemon)

    @fixture.shard('moves')
    def test_file(self):
        """A QEMU that was started anew goes on from a file, without what was connected."""
        self.start()
        for guest in (self.peer, self.guest):
            parts.use_own(guest)
        counting = self.counting(parts.OWN_DEVICE)
        counting.more()
        state = self.session.path('state')
        migrate.save(self.guest, state)
        self.guest = migrate.restore(self.guest, state)
        self.ends(counting)
        self.all_works(parts.OWN_DEVICE)
        end_well([self.peer, self.guest], self.daemon)
