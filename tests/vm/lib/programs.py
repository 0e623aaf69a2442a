# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the distribution's RDMA programs as pairs and read their figures.

A Pair is two guests and one RDMA device in each, on the same network: the
pvrdma adapters beside vmxnet3, or soft-RoCE on virtio-net.  Each program runs
as server in the first guest and as client in the second; both must exit 0.
Figures are taken from the programs' own output, nothing is computed beside it.
"""

import itertools
import math
import re

from lib.pvrdma_vm import VmError

# What perftest complains of when it could not measure the clock.
CLOCK_UNKNOWN = 'Correlation coefficient r^2'
# Does a program listen on this port by the connection manager?  The kernel says so a moment
# before it is true; the program has left that moment once it waits for something.  One that
# asks all the time (rstream) never waits, and gets a while.
LISTENS = ("pid=$(rdma resource show cm_id | "
           r"sed -n 's/.*state LISTEN.* pid \([0-9]*\) .*:%d .*/\1/p' | head -n 1) && "
           "[ $pid ] && { grep -q '^State:.S' /proc/$pid/status || sleep 0.1; }")
# perftest -R agrees by a first connection and then listens anew, while the client asks at once:
# a client that is faster is refused, and perftest 4.5's next try ends it by a signal.
TOO_EARLY = 'Event: RDMA_CM_EVENT_REJECTED; error: 8.'
TRIES = 3
# The last line of our own programs, which exit with 0 only then; they must have done something.
NO_ERRORS = r'(?m)^[1-9]\d* (?:checks|messages, \d+ flushed), 0 errors$'
# Of rping, which has 64 unless it is told.
PING = 64

# The programs' ports for their own TCP exchange; each run gets a fresh one,
# because an old one may be in TIME_WAIT.
_ports = itertools.count(18600)


class Pair:
    """@kind: 'pvrdma' or 'virtio' (the link whose addresses make the GIDs)."""

    def __init__(self, guests, kind, device):
        self.guests = guests
        self.kind = kind
        self.device = device
        self.gids = []
        self.find_gids()

    def find_gids(self):
        """Look the GID indexes up; again after a driver was loaded anew."""
        self.gids = [g.gid_index(self.device, g.ip(self.kind))
                     for g in self.guests]

    def run(self, template, timeout=120, server=0):
        """Run a program on both sides and return (server job, client job).

        @template: a command with {dev}, {gid} and {port}; the client's gets
        the server's address as last argument.  @server: which guest serves.
        """
        port = next(_ports)
        order = (server, 1 - server)
        one, two = (self.guests[i] for i in order)
        commands = [template.format(dev=self.device, gid=self.gids[i],
                                    port=port) for i in order]
        first = one.spawn(commands[0], timeout)
        try:
            one.wait_listen(port, first)
            second = two.run('%s %s' % (commands[1], one.ip(self.kind)),
                             timeout)
            first.wait(check=True)
        finally:
            if not first.done and one.alive:
                first.kill(9)
        return first, second


def ping_lines(count, size):
    """What rping -v says behind "ping data: " of pings with its data as they should be."""
    letters = [chr(c) for c in range(65, 123)]
    for number in range(count):
        text = 'rdma-ping-%d: ' % number
        yield text + ''.join(letters[(number + i) % len(letters)]
                             for i in range(size - 1 - len(text)))


def check_pings(server, client, count, size=PING):
    """Both jobs of `rping -v -C count` have had each byte of each ping: the server by its
    READ, the client by the server's WRITE.  Their status says little: that of an end in the
    middle is 0, and so is that of a server whose client leaves."""
    for job, begin in ((server, 'server ping data: '), (client, 'ping data: ')):
        if job.out.splitlines() != [begin + line for line in ping_lines(count, size)]:
            raise VmError('not %d pings of %d bytes: %s' % (count, size, job.describe()))


class Program:
    """One program of the demo and of the tests.

    @title: what a reader sees; @template: see Pair.run(); @parse: takes the
    client's stdout and returns the figure; @unit; @better: 'less' or 'more'.
    """

    def __init__(self, title, template, parse, unit, better):
        self.title = title
        self.template = template
        self.parse = parse
        self.unit = unit
        self.better = better

    def run(self, pair, timeout=120, server=0):
        """Run it and return the client's figure.

        perftest measures the processor's clock against the time of day before it
        prints; if the vCPU stalls between two readings, as on a busy host, these
        do not fit, it says so, counts with 0 MHz and prints 0 or inf.  Such a run
        is made again.  Whatever else has no figure is an error, above all a run
        in which no message completed; soft-RoCE and siw, which are measured and not
        tested, get another try then.
        """
        for _ in range(TRIES):
            _, client = pair.run(self.template, timeout, server)
            figure = self.parse(client.out)
            if figure is None:
                break
            if CLOCK_UNKNOWN not in client.err:
                if 0 < figure < math.inf:
                    return figure
                if pair.device not in ('rxe0', 'siw0'):
                    break
        raise VmError('no figure in the output of %s' % client.describe())

    def ratio(self, ours, other):
        """How many times better @ours is."""
        if self.better == 'less':
            ours, other = other, ours
        return ours / other


def parse_pingpong(text):
    """Microseconds per iteration (a round trip) of ibv_*_pingpong."""
    found = re.search(r'iters in .* seconds = ([\d.]+) usec/iter', text)
    return float(found.group(1)) if found else None


def _table(text):
    """The one row of numbers below perftest's header, or None."""
    lines = text.splitlines()
    for i, line in enumerate(lines[:-1]):
        if line.strip().startswith('#bytes'):
            row = lines[i + 1].split()
            try:
                return [float(x) for x in row]
            except ValueError:
                return None
    return None


def parse_lat(text):
    """perftest's t_typical in microseconds: the median, one way."""
    row = _table(text)
    return row[4] if row and len(row) >= 6 else None


def parse_bw(text):
    """perftest's average bandwidth in its MB/s (2^20 bytes)."""
    row = _table(text)
    return row[3] if row and len(row) >= 4 else None


# It finds the GID by itself.
PERFTEST = '-d {dev} -p {port} -F'


def pingpong(events=False, size=4096, iters=200):
    return Program(
        'ibv_rc_pingpong%s %d B' % (' -e' if events else '', size),
        'ibv_rc_pingpong -d {dev} -g {gid} -p {port} -s %d -n %d%s'
        % (size, iters, ' -e' if events else ''),
        parse_pingpong, 'us', 'less')


def srq_pingpong(events=False, size=4096, iters=400, qps=16):
    return Program(
        'ibv_srq_pingpong%s %d B' % (' -e' if events else '', size),
        'ibv_srq_pingpong -d {dev} -g {gid} -p {port} -s %d -n %d -q %d%s'
        % (size, iters, qps, ' -e' if events else ''),
        parse_pingpong, 'us', 'less')


def latency(name, size=8, iters=500):
    arg = '' if 'atomic' in name else ' -s %d' % size
    return Program('%s %d B' % (name, size),
                   '%s %s%s -n %d' % (name, PERFTEST, arg, iters),
                   parse_lat, 'us', 'less')


def bandwidth(name, size=65536, iters=200):
    arg = '' if 'atomic' in name else ' -s %d' % size
    return Program('%s %d B' % (name, size),
                   '%s %s%s -n %d' % (name, PERFTEST, arg, iters),
                   parse_bw, 'MB/s', 'more')


def timed_bandwidth(name, size=65536, seconds=1):
    """As bandwidth(), for @seconds: as many messages as that takes, so that a
    fast device is measured as long as a slow one."""
    return Program('%s %d B' % (name, size),
                   '%s %s -s %d -D %d -f 0' % (name, PERFTEST, size, seconds),
                   parse_bw, 'MB/s', 'more')


def demo_programs():
    """What the demo shows, in its order."""
    return [pingpong(False, 64, 1000), pingpong(True, 64, 1000),
            latency('ib_send_lat', iters=1000),
            latency('ib_write_lat', iters=1000),
            latency('ib_read_lat', iters=1000),
            latency('ib_atomic_lat', iters=1000),
            timed_bandwidth('ib_send_bw'), timed_bandwidth('ib_write_bw'),
            timed_bandwidth('ib_read_bw')]
