# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs between two guests that go on until they are told to end, whatever happens to
the guests meanwhile.

    program = Perftest('ib_send_bw -b', ends, daemons)
    program.more()      # waits until it has done more than it had
    program.end()       # it must have gone on until now

Each has check(), which raises if the program has ended, and these two.  An operation that
fails, or brings the wrong bytes, ends its program.  Guests may move between hosts: what
runs in a guest is told by its agent, which goes with it.
"""

import collections
import itertools
import re
import time

from lib import parts
from lib.programs import LISTENS, NO_ERRORS, ping_lines
from lib.pvrdma_vm import VmError

# Of a job; it is ended long before.
LIMIT = 3600
# Seconds within which each must have gone on.
PATIENCE = 120

_ports = itertools.count(18900)

# A guest with its device, and the GID's index.
End = collections.namedtuple('End', 'guest device gid')


def end_of(guest, device):
    return End(guest, device, guest.gid_index(device, guest.ip('pvrdma')))


def connected(name, daemons):
    """{QPN: (messages sent, received)} of a VM's RC queue pairs, at all its places; of two
    with the same number the one that is further."""
    found = {}
    for daemon in daemons:
        for qp in daemon.ctl_json('qp', 'list', name)['qps']:
            if qp['type'] == 'RC' and qp['state'] == 'RTS':
                here = (qp['sent'] - qp['in_flight'], qp['received'])
                found[qp['qpn']] = max(found.get(qp['qpn'], here), here)
    return found


def messages(daemons):
    """{(daemon, VM): how many it has sent} of those that are attached."""
    return {(number, vm['name']): vm['datapath']['tx_messages']
            for number, daemon in enumerate(daemons)
            for vm in daemon.ctl_json('counters')['vms'] if vm['attached']}


class Program:
    """@jobs that must not end by themselves; @patience as the guests have."""

    def __init__(self, jobs, patience):
        self.jobs = jobs
        self.patience = patience

    def check(self):
        if any(job.done for job in self.jobs):
            raise VmError('it has ended: ' + self.describe())

    def describe(self):
        return '\n'.join(job.describe() for job in self.jobs)

    def wait(self, condition, what):
        """Wait until @condition returns something, and return that."""
        end = time.monotonic() + PATIENCE * self.patience
        while True:
            found = condition()
            if found is not None:
                return found
            self.check()
            if time.monotonic() > end:
                raise VmError('no %s: %s' % (what, self.jobs[-1].describe()))
            time.sleep(0.1)

    def more_messages(self, daemons):
        """Wait until a VM has sent more, of this one if nothing else uses RDMA.  Each for
        itself: one that has moved begins with zero and must not be compared with the sum of
        its new and its old place, which goes when its daemon hears of it."""
        sent = {}

        def grown():
            more = False
            for vm, count in messages(daemons).items():
                more = more or count > sent.get(vm, count)
                sent[vm] = count
            return True if more else None
        self.wait(grown, 'messages')


class Ongoing(Program):
    """A server in the first of @ends and a client in the second, by their command lines,
    with {dev}, {gid}, {port} and the server's address {ip} put in.  The queue pair by
    which it is judged is the one that the client's guest gets."""

    server = client = None
    before = 'exec '
    # By the connection manager, not by a TCP connection.
    cm = False
    # Messages must go in both directions.
    both = False

    def __init__(self, ends, daemons):
        self.ends = ends
        self.daemons = daemons
        self.name = ends[1].guest.name
        port = next(_ports)
        first, second = [
            self.before + line.format(dev=one.device, gid=one.gid, port=port,
                                  ip=ends[0].guest.ip('pvrdma'))
            for line, one in zip((self.server, self.client), ends)]
        before = connected(self.name, daemons)
        super().__init__([ends[0].guest.spawn(first, LIMIT)], ends[0].guest.patience)
        if self.cm:
            parts.wait_in_guest(ends[0].guest, LISTENS % port, 'listener')
        else:
            ends[0].guest.wait_listen(port, self.jobs[0])
        self.jobs.append(ends[1].guest.spawn(second, LIMIT))
        self.qpn = self.wait(lambda: next(iter(connected(self.name, daemons).keys() -
                                               before.keys()), None), 'connection')

    def counts(self):
        return connected(self.name, self.daemons).get(self.qpn)

    def more(self):
        old = self.wait(self.counts, 'queue pair')

        def grown():
            new = self.counts()
            if new is None:
                return None
            gone_on = [a > b for a, b in zip(new, old)]
            return True if (all if self.both else any)(gone_on) else None
        self.wait(grown, 'messages')

    def end(self):
        self.check()
        for job in reversed(self.jobs):
            job.kill(9)
            job.wait(60)


class Perftest(Ongoing):
    """A bandwidth test in both directions.  It never sleeps, so it steps back where others
    want the processor."""

    before = 'renice -n 10 $$ && exec '
    both = True

    def __init__(self, program, *args):
        self.server = program + ' -d {dev} -p {port} -F -s 65536 -D %d' % LIMIT
        self.client = self.server + ' {ip}'
        super().__init__(*args)


class Rping(Ongoing):
    """SENDs, a READ and a WRITE in turns, with the data compared."""

    cm = True
    server = 'rping -s -V -S 8192 -a {ip} -p {port}'
    client = 'rping -c -V -S 8192 -a {ip} -p {port}'


class Counting(Ongoing):
    """Fetch-and-add by the client."""

    server = 'countcheck -d {dev} -g {gid} -p {port}'
    client = server + ' {ip}'

    def end(self):
        """The number that both agree on."""
        self.check()
        self.jobs[1].kill(15)
        for job in self.jobs:
            job.wait(PATIENCE, check=True)
        said = re.search(r'^counter (\d+), successes (\d+)$', self.jobs[0].out, re.M)
        if not said or said.group(1) != said.group(2) or int(said.group(1)) == 0:
            raise VmError('it has not counted: ' + self.jobs[0].describe())
        return int(said.group(1))

    def waits(self):
        """How long it stood still at most, in us by its guest's clock, in each second until
        now."""
        return [int(us) for us in re.findall(r'(?m)^at \d+, longest wait (\d+) us$',
                                             self.jobs[1].out)]


class Rounds(Program):
    """One that comes to an end by itself, over and over until it is told not to."""

    count = 0

    def __init__(self, guest, round_of_it):
        """@round_of_it: shell lines that fail if it does."""
        Rounds.count += 1
        self.flag = '/tmp/enough%d' % Rounds.count
        self.guest = guest
        self.job = guest.spawn('n=0; while [ ! -e %s ]; do n=$((n + 1)); '
                               'echo "round $n begins"; %s || exit 1; done' % (
                                   self.flag, round_of_it), LIMIT)
        super().__init__([self.job], guest.patience)
        self.job.wait_output('round 1 begins', PATIENCE)

    def more(self):
        """Until the round that is going on has ended."""
        self.job.wait_output('round %d begins' % (self.job.out.count('begins') + 1),
                             3 * PATIENCE)

    def end(self):
        self.check()
        self.guest.run('touch ' + self.flag)
        if not self.job.wait(3 * PATIENCE).ok:
            raise VmError('it has failed: ' + self.describe())


class Datacheck(Rounds):
    """Every operation, both ways, each byte compared, but those of UC, whose messages are
    lost while a VM is paused.  end() tells how many times."""

    def __init__(self, ends):
        server, client = ends
        port = next(_ports)
        lines = ['datacheck -d %s -g %d -p %d -n 1 -r' % (one.device, one.gid, port)
                 for one in ends]
        self.server = server.guest.spawn('while %s; do :; done' % lines[0], LIMIT)
        super().__init__(client.guest, '%s %s' % (lines[1], server.guest.ip('pvrdma')))
        self.jobs.append(self.server)

    def end(self):
        super().end()
        if len(re.findall(NO_ERRORS, self.job.out)) != self.job.out.count('begins'):
            raise VmError(self.job.describe())
        self.server.kill(9)
        self.server.wait(60)
        return self.job.out.count('begins')


class Connecting(Rounds):
    """Connections by the connection manager, one after the other, each with SENDs, READs
    and WRITEs whose data is compared at both ends.  One may come to nothing if the manager
    says so; one that does not come to an end, or to a bad one when it was there, is a
    failure.  end() tells how many were made, and the events of the others.

    rping's status does not tell: that of one whose connection ends in the middle is 0.  What
    counts is the data that it has printed, on which it has spent all of its pings."""

    PINGS, SIZE = 2, 1000
    # The server keeps its last lines until it has this much of them, and is killed.
    BUFFER = 4096
    # Of one; the manager gives up after some 70.
    SECONDS = 180
    REFUSED = 'RDMA_CM_EVENT_(ADDR_ERROR|ROUTE_ERROR|CONNECT_ERROR|UNREACHABLE|REJECTED), '
    CONNECT = '''(
    said=$(%(rping)s 2>&1)
    ended=$?
    printf '%%s\n' "$said"
    [ $ended = 0 ] && [ $(printf '%%s\n' "$said" | grep -c '^ping data: ') = %(pings)d ] &&
        echo connected && exit 0
    [ $ended != 137 ] && echo "$said" | grep -qE '%(refused)s' &&
        ! echo "$said" | grep -q 'DISCONNECT\\|completion')'''

    def __init__(self, ends):
        server, client = [end.guest for end in ends]
        ip, port = server.ip('pvrdma'), next(_ports)
        self.server = server.spawn('rping -s -P -v -S %d -a %s -p %d' % (
            self.SIZE, ip, port), LIMIT)
        parts.wait_in_guest(server, LISTENS % port, 'listener')
        self.rping = 'timeout -s KILL %d rping -c -v -V -C %%d -S %d -a %s -p %d' % (
            self.SECONDS * client.patience, self.SIZE, ip, port)
        super().__init__(client, self.CONNECT % {
            'rping': self.rping % self.PINGS, 'pings': self.PINGS,
            'refused': self.REFUSED})
        self.jobs.append(self.server)

    def made(self):
        return len(re.findall('(?m)^connected$', self.job.out))

    def check_data(self, made):
        """Each of @made connections has had all of its pings at both ends, and no other."""
        lines = list(ping_lines(self.PINGS, self.SIZE))
        rounds = re.split('(?m)^connected\n', self.job.out)[:made]
        for said in rounds:
            got = re.findall('(?m)^ping data: (.*)$', said)
            if got != lines:
                raise VmError('a connection with other pings: ' + said)
        # So many more that those before are printed.
        more = self.BUFFER // self.SIZE + 1
        self.guest.run(self.rping % more, self.SECONDS + 20)
        # Which another guest's agent may send later than this one's has said all.
        end = time.monotonic() + PATIENCE * self.patience
        while len(self.served()) < made * self.PINGS and not self.server.done and \
                time.monotonic() < end:
            time.sleep(0.1)
        got = self.served()[:made * self.PINGS]
        if got != made * lines:
            raise VmError('the server had %d pings of %d connections, or other data: %s' % (
                len(got), made, self.server.describe()[-6000:]))

    def served(self):
        """What the server has printed of pings, but for a line that is not whole yet."""
        return re.findall('(?m)^server ping data: (.*)\n', self.server.out)

    def more(self):
        """Until a further one was made."""
        made = self.made()
        self.wait(lambda: True if self.made() > made else None, 'connection')

    def end(self):
        super().end()
        made = self.made()
        self.check_data(made)
        self.server.kill(9)
        self.server.wait(60)
        return made, re.findall(self.REFUSED, self.job.out)


class NvmeCopy(Rounds):
    """A file of random bytes is copied to an NVMe disk over RDMA, past all caches, and
    back, and compared.  The target is in the first of @ends; its disk is in its memory."""

    NQN = 'nqn.2026-11.org.pvrdma:copy'
    SERVE = '''set -e
modprobe -a configfs nvmet nvmet-rdma
config=/sys/kernel/config
mountpoint -q $config || mount -t configfs none $config
cd $config/nvmet
head -c %(bytes)d /dev/zero > /tmp/disk
mkdir subsystems/%(nqn)s
echo 1 > subsystems/%(nqn)s/attr_allow_any_host
cd subsystems/%(nqn)s/namespaces
mkdir 1
echo 1 > 1/buffered_io
echo /tmp/disk > 1/device_path
echo 1 > 1/enable
cd $config/nvmet/ports
mkdir 1
echo rdma > 1/addr_trtype
echo ipv4 > 1/addr_adrfam
echo %(ip)s > 1/addr_traddr
echo %(port)d > 1/addr_trsvcid
ln -s $config/nvmet/subsystems/%(nqn)s 1/subsystems/'''
    # A connection that is lost is not made anew: what is under way fails then.
    ATTACH = ('modprobe nvme-rdma && echo transport=rdma,traddr=%(ip)s,trsvcid=%(port)d,'
              'nqn=%(nqn)s,nr_io_queues=1,keep_alive_tmo=60,ctrl_loss_tmo=0 '
              '> /dev/nvme-fabrics')
    DETACH = 'for c in /sys/class/nvme/*; do echo 1 > $c/delete_controller; done'
    WITHDRAW = '''cd /sys/kernel/config/nvmet && rm ports/1/subsystems/* && rmdir ports/1 &&
echo 0 > subsystems/%(nqn)s/namespaces/1/enable && rmdir subsystems/%(nqn)s/namespaces/1 &&
rmdir subsystems/%(nqn)s && rm /tmp/disk'''
    MIB = 4

    def __init__(self, ends):
        self.ends = ends
        self.names = {'ip': ends[0].guest.ip('pvrdma'), 'port': next(_ports),
                      'nqn': self.NQN, 'bytes': self.MIB << 20}
        target, host = [one.guest for one in ends]
        target.run(self.SERVE % self.names)
        host.run(self.ATTACH % self.names)
        parts.wait_in_guest(host, '[ -b /dev/nvme*n1 ]', 'the NVMe disk')
        disk = host.run('echo /dev/nvme*n1').out.strip()
        super().__init__(host, 'head -c %d /dev/urandom > /tmp/file && '
                         'dd if=/tmp/file of=%s bs=256k oflag=direct 2>/dev/null && '
                         'dd if=%s of=/tmp/back bs=256k iflag=direct 2>/dev/null && '
                         'cmp /tmp/file /tmp/back' % (self.MIB << 20, disk, disk))

    def end(self):
        super().end()
        host = self.ends[1].guest
        host.run(self.DETACH)
        self.ends[0].guest.run(self.WITHDRAW % self.names)
        trouble = host.run('dmesg | grep -i "nvme.*\\(recovery\\|reconnect\\|timeout\\)"',
                           check=False).out
        if trouble:
            raise VmError('NVMe: ' + trouble)
