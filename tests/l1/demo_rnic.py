#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo of RDMA NICs: what they do by themselves, and what VMs get.

The host is a guest (level1.py) whose NIC is soft-RoCE.  In it run a daemon for each path
between two VMs, and virtual guests, which post and poll as VMs do without being any.  In
turns they and native verbs (tests/bench/verbs.c) measure the same SENDs, which makes a
table.  Then numbered messages go from VM to VM while the NIC's cable is pulled and put
back: a line a second, and at the end the count.  Fails if a message is lost, comes twice
or out of order.

With --device NAME the host is this machine, with that NIC.  Its link is left alone.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), 'vm'))

import level1
from lib import script
from lib.pvrdma_vm import BUILD, Daemon, Session, VmError, kill_process, kvm, say

# The paths between two VMs, by their names in `pvrdmactl qp list`, with their daemon's key
# `path`.  The traffic takes the last one, and tcp while the link is down.
PATHS = {'copy': 'auto', 'tcp': 'tcp', 'rnic': 'rnic'}
NATIVE = 'native verbs'
VMS = {'vm%d' % i: {'network': 'lan', 'addresses': '10.0.0.%d' % (i + 1)} for i in range(2)}
PROGRAMS = ['tests/bench/bench-verbs', 'tests/bench/bench-guests']
# What is measured, as the programs name it, and how.
FIGURES = {'latency': ('SEND 8 B', 'us', '%.2f'),
           'rate': ('SENDs of 8 B', '1/s', '%.0f'),
           'bandwidth': ('SEND 64 KiB', 'MB/s', '%.1f')}
# Seconds from the start after which no further round begins to fit.
TIME_BUDGET = 80
# Least lines of traffic with the link up, down, and up again.
LINES = 4
# Seconds until all traffic has found its path.
PATIENCE = 60
EMULATED = "The host is emulated (TCG), and its NIC is the kernel's: read the ratios."


def groups_of(vms):
    """Of VMs, in a daemon's key file."""
    return {'vm ' + name: group for name, group in vms.items()}


class Level1:
    """The host is a guest."""

    notes = [] if kvm() else [EMULATED]

    def __init__(self, session):
        say('booting the host, a guest, with soft-RoCE')
        self.host = level1.Host(session, '6.1', PROGRAMS).start().wait_boot()
        self.device = self.host.load('rxe')
        self.address = self.host.ip('virtio')

    def daemon(self, name, settings, groups):
        """A daemon, and the folder of its sockets."""
        daemon = level1.HostDaemon(self.host, {**groups, **groups_of(VMS)}, settings, name)
        return daemon, daemon.sockets

    def run(self, command):
        """What it prints."""
        return self.host.run(command, 120).out

    def begin(self, command):
        """A program that ends with its input, as a job."""
        return self.host.spawn(command, 600, stdin=True)

    def link(self, state):
        say('the cable is %s' % {'down': 'pulled', 'up': 'put back'}[state])
        self.host.cable(state)

    def finish(self):
        self.host.powerdown()


class MachineJob:
    """What is used here of lib.agent.Job, of a program on this machine."""

    def __init__(self, command, env):
        self.command = command
        self.process = subprocess.Popen('exec ' + command, shell=True, env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        universal_newlines=True)
        self.out = ''

    @property
    def done(self):
        return self.process.poll() is not None

    def describe(self):
        return '`%s`: status %s' % (self.command, self.process.poll())

    def wait_output(self, text, _timeout):
        self.out += self.process.stdout.readline()
        if text not in self.out:
            raise VmError(self.describe())

    def stdin(self, _nothing):
        self.process.stdin.close()

    def wait(self, timeout, check):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired as exc:
            raise VmError(str(exc)) from exc
        self.out += self.process.stdout.read()
        if check and self.process.returncode:
            raise VmError(self.describe())
        return self


class Machine:
    """The host is this machine."""

    link = None  # others may need it
    notes = []

    def __init__(self, session, device, address):
        self.session = session
        self.device = device
        self.address = address or self._address()
        self.env = dict(os.environ, PATH=':'.join(
            [os.path.join(BUILD, folder) for folder in ('tests/bench', 'backend')] +
            [os.environ['PATH']]))

    def _address(self):
        """The first IPv4 address among its GIDs."""
        folder = '/sys/class/infiniband/%s/ports' % self.device
        for port in sorted(os.listdir(folder)):
            gids = os.path.join(folder, port, 'gids')
            for index in sorted(os.listdir(gids), key=int):
                with open(os.path.join(gids, index)) as stream:
                    words = stream.read().strip().split(':')
                if words[:6] == ['0000'] * 5 + ['ffff']:
                    return '.'.join(str(byte) for byte in bytes.fromhex(''.join(words[6:])))
        raise VmError('%s has no IPv4 address: name one by --address' % self.device)

    def daemon(self, name, settings, groups):
        daemon = Daemon(self.session, VMS, settings=settings, groups=groups, name=name)
        return daemon, daemon.socket_dir

    def run(self, command):
        job = self.begin(command)
        job.stdin(b'')
        return job.wait(120, check=True).out

    def begin(self, command):
        job = MachineJob(command, self.env)
        self.session.add_closer(lambda: kill_process(job.process))
        return job

    def finish(self):
        pass


class Ends:
    """Two VMs that are joined by a path: their daemon."""

    def __init__(self, place, path):
        nic = {'nic rail0': {'device': place.device, 'address': place.address}}
        self.daemon, self.folder = place.daemon('pvrdmad-' + path, {
            'path': PATHS[path], 'workers': 1}, nic if path == 'rnic' else {})


def guests(*args):
    """The command of virtual guests with these arguments."""
    return 'env PVRDMACTL=pvrdmactl bench-guests ' + ' '.join(map(str, args))


def commands(place, ends, seconds):
    """What measures each column."""
    return dict({NATIVE: 'bench-verbs -t %s %s %s' % (seconds, place.device, place.address)},
                **{path: guests('-t', seconds, ends[path].folder, path) for path in ends})


def measure(place, ends, rounds=None, seconds=0.5):
    """All figures by column, of @rounds in which the columns take turns; without a number,
    of those that fit into the time."""
    todo = commands(place, ends, seconds)
    figures = {name: {what: [] for what in FIGURES} for name in todo}
    made, longest = 0, 0.0
    while made < rounds if rounds else (
            not made or time.monotonic() - say.start + longest < TIME_BUDGET):
        begin = time.monotonic()
        for name, command in todo.items():
            said = dict(re.findall(r'(?m)^(\w+) ([\d.]+)$', place.run(command)))
            for what, values in figures[name].items():
                values.append(float(said[what]))
        made += 1
        say('round %d  %s' % (made, '   '.join('%s %.2f us' % (
            name, figures[name]['latency'][-1]) for name in todo)))
        longest = max(longest, time.monotonic() - begin)
    return figures


NOTES = '''\
Medians of %d runs that took turns.  SEND 8 B: half of a round trip.  One thread posts and
polls at both ends.  native verbs: libibverbs alone, on the NIC; the others: virtual guests
at a daemon with one worker.'''


def table(figures):
    form = '%-12s %-5s %-13s %12s   %-26s %9s'
    lines = [form % ('', 'unit', 'path', 'median', 'least to greatest', 'x native')]
    lines.append('-' * len(lines[0]))
    for what, (title, unit, number) in FIGURES.items():
        native = statistics.median(figures[NATIVE][what])
        for name, column in figures.items():
            values = column[what]
            middle = statistics.median(values)
            lines.append((form % (title, unit, name, number % middle, ' to '.join(
                number % value for value in (min(values), max(values))),
                '%.2f' % (middle / native))).rstrip())
            title = unit = ''
    return '\n'.join(lines + [lines[1], NOTES % len(figures[NATIVE]['rate'])])


class Traffic:
    """Numbered messages from vm0 to vm1.  @begin: starts a command as a job; @daemon: that
    of vm0; @folders: of that one's sockets, and of those of vm1's if it is another."""

    def __init__(self, begin, daemon, *folders):
        self.daemon = daemon
        self.job = begin(guests(*['-p ' + peer for peer in folders[1:]], folders[0]))
        self.job.wait_output('running', 60)
        self.before = None  # what the last line was made of
        self.state = 'up'

    def look(self):
        """The paths that they take now, how many messages are done, how many were begun
        again."""
        qps = [qp for qp in self.daemon.ctl_json('qp', 'list', 'vm0')['qps']
               if qp['state'] == 'RTS']
        vm, = [vm for vm in self.daemon.ctl_json('counters')['vms'] if vm['name'] == 'vm0']
        return ({qp['transport'] for qp in qps},
                sum(qp['sent'] - qp['in_flight'] for qp in qps),
                vm['datapath']['replays'])

    def line(self):
        """Print one; the paths that it shows."""
        paths, *counts = self.look()
        now = [time.monotonic(), *counts]
        rates = ['-', '-'] if self.before is None else [
            '%.0f' % ((count - before) / (now[0] - self.before[0]))
            for count, before in zip(now[1:], self.before[1:])]
        self.before = now
        say('link %-4s  path %-10s %8s messages/s  %5s repeated/s  %9d sent' % (
            self.state, ', '.join(sorted(paths)) or '-', *rates, counts[0]))
        return paths

    def watch(self, path, lines=LINES):
        """A line a second, so many at least, until all goes by @path."""
        begin = time.monotonic()
        number = 0
        while True:
            number += 1
            time.sleep(max(begin + number - time.monotonic(), 0))
            if self.job.done:
                raise VmError('it has ended: ' + self.job.describe())
            if self.line() == {path} and number >= lines:
                return
            if number > PATIENCE:
                raise VmError('after %d s it does not go by %s' % (number, path))

    def end(self):
        """How many were sent, each of which has arrived."""
        self.job.stdin(b'')
        out = self.job.wait(120, check=True).out
        said = re.search(r'(?m)^sent (\d+), arrived (\d+)$', out)
        if not said or said.group(1) != said.group(2) or said.group(1) == '0':
            raise VmError('not all has arrived: ' + (out or self.job.describe()))
        return int(said.group(1))


def down_and_up(place, ends, lines=LINES):
    """Traffic meanwhile: how many messages have arrived."""
    path = list(ends)[-1]
    say('numbered messages from vm0 to vm1, path=%s' % PATHS[path])
    traffic = Traffic(place.begin, ends[path].daemon, ends[path].folder)
    traffic.watch(path, lines)
    for state, now in (('down', 'tcp'), ('up', path)) if place.link else ():
        place.link(state)
        traffic.state = state
        traffic.watch(now, lines)
    return traffic.end()


def run_demo(place, rounds=None, seconds=0.5, lines=LINES):
    """All of it: the text that it ends with."""
    say('a daemon for each path: ' + ', '.join(PATHS))
    ends = {path: Ends(place, path) for path in PATHS}
    figures = measure(place, ends, rounds, seconds)
    count = down_and_up(place, ends, lines)
    for path, one in ends.items():
        if one.daemon.stop():
            raise VmError('the daemon of path %s has not ended well' % path)
    return '\n'.join([table(figures)] + place.notes + [
        '', '%d messages were sent and have arrived, each once, whole and in order.' % count])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int,
                        help='runs of each program; default: what fits into the time')
    parser.add_argument('--device', help="this machine's NIC, as ibv_devices names it")
    parser.add_argument('--address', help='an address of it; default: its first IPv4 address')
    args = parser.parse_args()

    def run():
        with Session('demo-rnic') as session:
            place = Machine(session, args.device, args.address) if args.device \
                else Level1(session)
            text = run_demo(place, args.rounds)
            place.finish()
            say('done')
            print('\n%s\nIn all %.0f s.' % (text, time.monotonic() - say.start), flush=True)

    return script.run('demo-rnic', run)


if __name__ == '__main__':
    sys.exit(main())
