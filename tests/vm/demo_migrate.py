#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo of live migration: two VMs move to another host and back, with open queue
pairs.

The hosts are network namespaces of this machine with a link between them and a daemon in
each.  vm1 stays on the first.  vm2 streams into its memory (ib_write_bw, our guest driver
and provider), vm3 counts there by fetch-and-add (countcheck, the stock parts); both move
to the second host and back while they do, from one memory copy to TCP and from TCP to the
copy.  A line a second shows where each of them is, its path and rate, and the last
blackout.  Fails if an operation does, or if the counter is not the number of successes.
Needs root, for the namespaces.
"""

import argparse
import re
import sys
import threading
import time

from lib import hosts, migrate, parts, script
from lib.pvrdma_vm import Session, VmError, end_well, say

# Seconds from the start after which nobody sets out any more.
TIME_BUDGET = 130
# Seconds between two moves.
PAUSE = 3
# Milliseconds for which QEMU may stop the VM to copy the last of its memory.
DOWNTIME = 300
MESSAGE = 65536
# Where a guest is, by host, and how it reaches the peer, which is on the first.
PATHS = (0, 'copy'), (1, 'tcp')
PEER, STREAMS, COUNTS = 'vm1', 'vm2', 'vm3'
STREAM = 'exec ib_write_bw -d {dev} -p 18800 -F --run_infinitely -s ' + str(MESSAGE)
COUNT = 'exec countcheck -d {dev} -g {gid} -p 18801'
# Parts of the blackout: what the daemons of the source and of the target say.
SOURCE_PARTS, TARGET_PARTS = ('quiesce_us', 'save_us'), ('load_us', 'resume_us')


class Mover:
    """A guest that moves, its program and that of the peer."""

    def __init__(self, guest, peer, devices, command, port):
        """@devices: the peer's and the guest's."""
        self.guest = guest
        self.name = guest.name
        self.seen = None  # (time, messages) of the last line
        lines = [command.format(dev=device, gid=one.gid_index(device, one.ip('pvrdma')))
                 for one, device in zip((peer, guest), devices)]
        self.jobs = [peer.spawn(lines[0], 600)]
        peer.wait_listen(port, self.jobs[0])
        self.jobs.append(guest.spawn('%s %s' % (lines[1], peer.ip('pvrdma')), 600))

    def check(self):
        for job in self.jobs:
            if job.done:
                raise VmError('it has ended: ' + job.describe())

    def qp(self, lists):
        """(host number, QP) where it has one that is connected; of two such places the
        one that it goes to.  @lists: `pvrdmactl qp list` of the daemons."""
        found = [(number, qp) for number, qps in enumerate(lists) for qp in qps
                 if qp['vm'] == self.name and qp['state'] == 'RTS']
        found.sort(key=lambda one: one[1]['sent'] - one[1]['in_flight'])
        return found[-1] if found else (None, None)


class Show:
    """The line a second, from a thread of its own; and each move's cost."""

    def __init__(self, daemons, movers):
        self.daemons = daemons
        self.movers = movers
        self.moves = []
        self.paths = {}  # by name: (host number, path) in the last line
        self.problem = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        try:
            while not self._stop.wait(1):
                say(self.line())
        except (VmError, OSError, ValueError, KeyError) as exc:
            self.problem = exc

    def line(self):
        lists = [daemon.ctl_json('qp', 'list')['qps'] for daemon in self.daemons]
        cells = [self.cell(mover, lists) for mover in self.movers]
        if self.moves:
            last = self.moves[-1]
            cells.append('blackout %s %.2f ms' % (last['vm'], last['blackout']))
        return '   '.join(cells)

    def cell(self, mover, lists):
        number, qp = mover.qp(lists)
        self.paths[mover.name] = (number, qp and qp['transport'])
        if qp is None:
            mover.seen = None
            return '%s is on its way' % mover.name
        done, now = qp['sent'] - qp['in_flight'], time.monotonic()
        rate = None
        if mover.seen and done >= mover.seen[1]:
            rate = (done - mover.seen[1]) / (now - mover.seen[0])
        mover.seen = now, done
        if mover.name == STREAMS:
            text = '%5s MB/s' % ('-' if rate is None else '%.0f' % (rate * MESSAGE / 1e6))
        else:
            text = '%6s adds/s %8d' % ('-' if rate is None else '%.0f' % rate, done)
        return '%s host%d %-4s %s' % (mover.name, number, qp['transport'], text)

    def move(self, mover, source, target, host):
        """@mover goes from the daemon @source to @target, which is on @host."""
        say('%s moves to %s' % (mover.name, host.name))
        mover.guest = migrate.migrate(mover.guest, target.socket(mover.name), host,
                                      downtime=DOWNTIME)
        cost = {'vm': mover.name, 'to': host.name,
                'stopped': mover.guest.last_move.get('downtime', 0)}
        for daemon, last, names in ((source, 'saved', SOURCE_PARTS),
                                    (target, 'loaded', TARGET_PARTS)):
            told, = daemon.ctl_json('vm', 'migrate-status', mover.name)['vms']
            if told['last'] != last or told['error']:
                raise VmError('%s says of %s: %s' % (daemon.name, mover.name, told))
            cost.update((name, told[name] / 1e3) for name in names)
            cost['bytes'] = told['bytes']
            if daemon is source:
                cost['blackout'] = told['still_us'] / 1e3
        cost['device'] = sum(cost[name] for name in SOURCE_PARTS + TARGET_PARTS)
        self.moves.append(cost)

    def wait_path(self, mover, path):
        """Wait for a line that shows @mover on @path."""
        end = time.monotonic() + 60
        while self.paths.get(mover.name) != path:
            self.check()
            if time.monotonic() > end:
                raise VmError('%s is not on %s, but on %s' % (
                    mover.name, path, self.paths.get(mover.name)))
            time.sleep(0.1)

    def check(self):
        if self.problem:
            raise VmError('no figures: %s' % self.problem)
        for mover in self.movers:
            mover.check()


def boot(session):
    say('two hosts: network namespaces with a link, and pvrdmad in each')
    two = hosts.Hosts(session, 2)
    daemons = two.start_daemons({name: {'addresses': 'any'}
                                 for name in (PEER, STREAMS, COUNTS)})
    say('booting three guests on the first, with -device pvrdma')
    guests = two.start_guests(daemons, [0, 0, 0], files=parts.guest_files(), boot=True)
    for guest in guests:
        if guest.name == COUNTS:
            guest.load_pvrdma()
        else:
            parts.use_own(guest)
    return two, daemons, guests


def there_and_back(show, two, rounds, pause=PAUSE):
    """Each of the movers, one after the other, @rounds times or until it is late."""
    for number in range(2 * rounds):
        if number % 2 == 0 and number and time.monotonic() - say.start > TIME_BUDGET:
            say('no time is left: the other rounds are skipped')
            break
        source, target = (number % 2, 1 - number % 2)
        for mover in show.movers:
            show.wait_path(mover, PATHS[source])
            time.sleep(pause)
            show.move(mover, show.daemons[source], show.daemons[target], two[target])
            show.wait_path(mover, PATHS[target])
    time.sleep(pause)
    show.check()


def finish(movers):
    """End both programs: (messages streamed, what the counting one said)."""
    stream, count = movers
    for job in stream.jobs[::-1]:
        job.kill(9)
        job.wait(30)
    count.jobs[1].kill(15)
    for job in count.jobs:
        job.wait(60, check=True)
    said = re.search(r'^counter (\d+), successes (\d+)$', count.jobs[0].out, re.M)
    if not said or said.group(1) != said.group(2) or int(said.group(1)) == 0:
        raise VmError('it has not counted: ' + count.jobs[0].describe())
    return int(said.group(1)), int(said.group(2))


NOTES = '''\
ms.  quiesce, save: at the source, from the order to stop until the device's state can be
read; load, resume: at the target; device: their sum, the adapter's own work in that time;
blackout: from the order to stop until the source heard that the VM runs at the target, with
what QEMU did meanwhile; stopped: QEMU's word for how long that is.  The peer waits, and no
time-out of its runs.'''


def table(moves):
    form = '%-16s %8s %8s %8s %8s %8s %9s %8s %8s'
    lines = [form % ('move', 'quiesce', 'save', 'load', 'resume', 'device', 'blackout',
                     'stopped', 'bytes')]
    lines.append('-' * len(lines[0]))
    for move in moves:
        lines.append(form % (('%s to %s' % (move['vm'], move['to']),) + tuple(
            '%.2f' % move[name]
            for name in SOURCE_PARTS + TARGET_PARTS + ('device', 'blackout')) +
            ('%d' % move['stopped'], '%d' % move['bytes'])))
    return '\n'.join(lines + [lines[1], NOTES])


def run_demo(session, rounds, pause=PAUSE):
    """All of it; the text that it ends with."""
    two, daemons, (peer, *guests) = boot(session)
    movers = [Mover(guests[0], peer, [parts.OWN_DEVICE] * 2, STREAM, 18800),
              Mover(guests[1], peer, [parts.OWN_DEVICE, parts.STOCK_DEVICE], COUNT,
                    18801)]
    say('%s streams to %s, %s counts there' % (STREAMS, PEER, COUNTS))
    begin = time.monotonic()
    with Show(daemons, movers) as show:
        there_and_back(show, two, rounds, pause)
        show.check()
        seconds, messages = time.monotonic() - begin, movers[0].seen[1]
    streamed = messages * MESSAGE
    counter, successes = finish(movers)
    end_well([peer] + [mover.guest for mover in movers], *daemons)
    return '\n'.join([
        table(show.moves), '',
        '%d moves in %.0f s.' % (len(show.moves), seconds),
        '%s streamed %.1f MB, %.1f MB/s with all that the moves cost; no operation '
        'failed.' % (STREAMS, streamed / 1e6, streamed / 1e6 / seconds),
        '%s counted: counter %d, successes %d: nothing was lost or done twice.' % (
            COUNTS, counter, successes)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=3,
                        help='how often each goes there and back')
    args = parser.parse_args()

    def run():
        with Session('demo-migrate') as session:
            text = run_demo(session, max(args.rounds, 1))
            say('done')
            print('\n' + text, flush=True)

    return script.run('demo-migrate', run)


if __name__ == '__main__':
    sys.exit(main())
