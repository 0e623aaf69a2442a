# SPDX-License-Identifier: GPL-2.0-or-later
"""Other people's programs, how each is run between two guests, and its figure.

PROGRAMS is the table of what `make conformance` runs: a server in the first guest and a
client in the second, with the same words.  In them {dev} is the RDMA device, {gid} the
index of its GID for the guest's IPv4 address, {port} a fresh TCP port, {ip} the server's
and {own} the guest's address.

No row sets what its user would not: no environment, no option but those that say what
is to be run, between whom, for how long, and what the program wants to be told of any RoCE
device.  What chooses a device by itself runs while there is no other RDMA device in the
guests, as in a user's (@alone), with TCP beside it; and no row passes whose messages went
another way.

Each program gets so many seconds, and whatever it does the table goes on: a run is
`ok`, or `fails: <the last line it said>`, or `hangs`.
"""

import collections
import itertools
import json
import math
import os
import re

from lib import fabtests, parts
from lib.agent import AgentError, CommandFailed
from lib.programs import CLOCK_UNKNOWN, TRIES, parse_bw, parse_lat, parse_pingpong
from lib.pvrdma_vm import VmError

Row = collections.namedtuple(
    'Row', 'group title server client listens seconds parse unit needs says left carries '
    'alone')
Outcome = collections.namedtuple('Outcome', 'result figure unit detail')

# What a client that connects by rdma_cm waits instead of looking for a TCP port.
HEAD_START = 1.5
# What servers get to end after their clients; these never do.
LINGER = 8
STAYS = ('qperf', 'rcopy', 'cmtime')
_ports = itertools.count(21000)
PROGRAMS = []


def add(group, title, server, client=None, listens=True, seconds=30, parse=None,
        unit='', needs='', says='', left='', carries=1, alone=False):
    """@needs: a command that succeeds in guests whose programs have this.  @says: what
    the client prints if it did its work, of one whose exit status does not tell.  @left: a
    command that succeeds in the server's guest if it did, after both have ended.
    @carries: so many messages the device has carried then, at least.  @alone: to be run
    while the guests have this RDMA device only."""
    PROGRAMS.append(Row(group, title, server, client or server + ' {ip}', listens,
                        seconds, parse, unit, needs, says, left, carries, alone))


# -- figures of their outputs ------------------------------------------------------

def number(pattern, scale=1.0):
    """A parser: the last number that @pattern finds."""
    def parse(text):
        found = re.findall(pattern, text)
        return float(found[-1]) * scale if found else None
    return parse


def last_bw(text):
    """The last row of perftest's table: with -a that of the largest messages."""
    rows = [line.split() for line in text.splitlines() if re.match(r'\s*\d+\s+\d+\s', line)]
    return float(rows[-1][3]) if rows and len(rows[-1]) >= 4 else None


def last_lat(text):
    rows = [line.split() for line in text.splitlines() if re.match(r'\s*\d+\s+\d+\s', line)]
    return float(rows[-1][4]) if rows and len(rows[-1]) >= 6 else None


UNITS = {'us': 1.0, 'ms': 1e3, 'sec': 1e6, 'ns': 1e-3,
         'bytes/sec': 1e-6, 'KB/sec': 1e-3, 'MB/sec': 1.0, 'GB/sec': 1e3}


def qperf_figure(text):
    """Its `latency = ` in us or `bw = ` in MB/s."""
    found = re.search(r'(?:latency|bw|msg_rate)\s*=\s*([\d.]+) ([\w/]+)', text)
    return float(found.group(1)) * UNITS.get(found.group(2), 1.0) if found else None


def fio_figure(text):
    found = re.search(r'bw=\S+ \(([\d.]+)([kM])B/s\)', text)
    return float(found.group(1)) * (1e-3 if found.group(2) == 'k' else 1) if found else None


def fabric_figure(text):
    """fi_pingpong's microseconds per transfer, or MB/s, of its last row."""
    rows = [line.split() for line in text.splitlines() if re.match(r'\d', line)]
    return float(rows[-1][-2]) if rows else None


def ucx_lat(text):
    """The average latency, in us, of ucx_perftest's `Final:` row."""
    found = re.search(r'Final:\s+(\S+)\s+(\S+)\s+(\S+)', text)
    return float(found.group(3)) if found else None


def ucx_bw(text):
    found = re.search(r'Final:\s+(.*)', text)
    return float(found.group(1).split()[4]) if found else None


# -- the table ---------------------------------------------------------------------

def _ibverbs():
    words = ' -d {dev} -g {gid} -p {port} -n 300'
    for title, more in (
            ('ibv_rc_pingpong', ''), ('ibv_rc_pingpong -c', ''),
            ('ibv_rc_pingpong -e -c', ''), ('ibv_rc_pingpong -N', ''),
            ('ibv_rc_pingpong -t', ''), ('ibv_rc_pingpong -o', ''),
            ('ibv_uc_pingpong', ''), ('ibv_uc_pingpong -e', ''),
            ('ibv_ud_pingpong', ' -s 1024'), ('ibv_ud_pingpong -e', ' -s 1024'),
            ('ibv_srq_pingpong', ''), ('ibv_srq_pingpong -e', ''),
            ('ibv_xsrq_pingpong', '')):
        add('ibverbs-utils', title, title + words + more, parse=parse_pingpong,
            unit='us')


def _rdmacm():
    def cm(title, server, client, **more):
        add('rdmacm-utils', title, server, client, listens=False, seconds=15, **more)
    # 0 after an end in the middle, too; of what comes back it prints what was as it is sent.
    cm('rping -C 10 -V', 'rping -s -a {own} -p {port} -C 10 -V',
       'rping -c -v -a {ip} -p {port} -C 10 -V', says='\nping data: rdma-ping-9: ')
    # These two, and rdma_server and its client, count completions, good or bad, and do not
    # look at the data: they say that they have connected, and not more.
    cm('ucmatose', 'ucmatose -b {own} -p {port}', 'ucmatose -s {ip} -p {port}')
    cm('ucmatose -c 10 -C 20 -S 4096', 'ucmatose -b {own} -p {port} -c 10 -C 20 -S 4096',
       'ucmatose -s {ip} -p {port} -c 10 -C 20 -S 4096')
    # These have a port of their own: their -p is a port space.
    cm('udaddy', 'udaddy -b {own}', 'udaddy -s {ip} -b {own}')
    # Who cannot join ends with status 0 all the same.
    cm('mckey', 'mckey -m 239.1.1.1 -b {own}', 'mckey -m 239.1.1.1 -s -b {own}',
       says='data transfers complete')
    cm('rdma_server, rdma_client', 'rdma_server -s {own} -p {port}',
       'rdma_client -s {ip} -p {port}')
    cm('rstream -b 10.0 -T n', 'rstream -b {own} -p {port} -T b -S 4096 -C 200',
       'rstream -s {ip} -p {port} -T b -S 4096 -C 200', says='custom    4k      200 ')
    cm('riostream', 'riostream -b {own} -p {port} -S 4096 -C 200',
       'riostream -s {ip} -p {port} -S 4096 -C 200', says='custom    4k      200 ')
    cm('rcopy', 'rcopy -p {port}',
       'sh -c "seq 600000 > /tmp/rcopy.in && '
       'rcopy /tmp/rcopy.in {ip}:/tmp/rcopy.out -p {port}"',
       left='sh -c "seq 600000 | cmp - /tmp/rcopy.out && rm /tmp/rcopy.out"')
    cm('cmtime -c 20', 'cmtime -b {own} -p {port} -c 20',
       'cmtime -s {ip} -p {port} -c 20')


def _perf(name, options, lat, size='', iters=200, seconds=30, needs=''):
    last = '-a' in options.split()
    parse = (last_lat if last else parse_lat) if lat else (last_bw if last else parse_bw)
    add('perftest', ' '.join((name + ' ' + options + ' ' + size).split()),
        '%s -d {dev} -p {port} -F %s -n %d %s' % (name, options, iters, size),
        listens='-R' not in options.split(),
        seconds=15 if '-R' in options.split() else seconds, parse=parse,
        unit='us' if lat else 'MB/s', needs=needs)


def _perftest():
    for verb in ('send', 'write', 'read', 'atomic'):
        lat, bw = 'ib_%s_lat' % verb, 'ib_%s_bw' % verb
        small = '' if verb == 'atomic' else '-s 8'
        large = '' if verb == 'atomic' else '-s 65536'
        mid = '' if verb == 'atomic' else '-s 4096'
        _perf(lat, '', True, small)
        _perf(bw, '', False, large, 100)
        if verb != 'write':  # whose completions perftest does not wait for by events
            _perf(lat, '-e', True, small)
            _perf(bw, '-e', False, mid)
        _perf(bw, '-q 16', False, mid, 200)
        _perf(bw, '-b', False, mid)
        _perf(lat, '-R', True, small)
        _perf(bw, '-R', False, mid)
        if verb != 'atomic':
            _perf(lat, '-a', True, '', 5, 90)
            _perf(bw, '-a', False, '', 5, 90)
        if verb in ('send', 'write'):
            _perf(lat, '-c UC', True, small)
            _perf(bw, '-c UC', False, mid)
            _perf(lat, '-I 64', True, '-s 64')
            _perf(bw, '-I 64', False, '-s 64')
    for options in ('-c UD', '-c UD -e', '-c UD -R', '-g -c UD', '-c UD -q 4', '-c UD -b',
                    '--use-srq', '--use-srq -q 4', '-c XRC', '--odp', '-Q 1',
                    '-m 256', '-N', '--mr_per_qp -q 4', '--use_old_post_send', '-r 16 -t 8',
                    '-q 4 -R'):
        _perf('ib_send_bw', options, False, '-s 1024')
    _perf('ib_send_lat', '-c UD', True, '-s 8')
    _perf('ib_write_bw', '-l 4', False, '-s 4096')
    _perf('ib_write_bw', '-c UC -q 4', False, '-s 4096')
    _perf('ib_read_bw', '-o 1', False, '-s 4096')
    _perf('ib_atomic_bw', '-A FETCH_AND_ADD -q 2', False)
    _perf('ib_atomic_lat', '-A CMP_AND_SWAP', True)
    newer = 'ib_write_bw --help | grep -q write_with_imm'
    _perf('ib_write_bw', '--write_with_imm', False, '-s 4096', needs=newer)
    _perf('ib_write_bw', '--write_with_imm -q 4', False, '-s 4096', needs=newer)
    _perf('ib_write_bw', '--write_with_imm -c UC', False, '-s 4096', needs=newer)
    _perf('ib_write_lat', '--write_with_imm', True, '-s 8', needs=newer)


def _ucx():
    def row(words, parse, unit, rounds, layer='', **more):
        # Without a terminal one that was built with MPI (Debian 13's) takes itself for a
        # part of an MPI job.
        server, client = ('script -qec "ucx_perftest %s%s -n %d -w 10 -p {port}%s" /dev/null'
                          % (layer, words, rounds, peer) for peer in ('', ' {ip}'))
        add('UCX', 'ucx_perftest ' + words, server, client, parse=parse, unit=unit,
            carries=rounds, **more)

    for words, parse, unit in (
            ('-x rc_verbs -t am_lat -D short -s 8', ucx_lat, 'us'),
            ('-x rc_verbs -t put_lat -D short -s 8', ucx_lat, 'us'),
            ('-x rc_verbs -t fadd -s 8', ucx_lat, 'us'),
            ('-x rc_verbs -t am_bw -D zcopy -s 4096', ucx_bw, 'MB/s'),
            ('-x ud_verbs -t am_lat -D short -s 8', ucx_lat, 'us')):
        row(words, parse, unit, 200, '-d {dev}:1 ')
    for test, size, parse, unit in (
            ('tag_lat', 8, ucx_lat, 'us'), ('tag_bw', 65536, ucx_bw, 'MB/s'),
            ('tag_bw', 1048576, ucx_bw, 'MB/s'), ('ucp_put_lat', 8, ucx_lat, 'us'),
            ('ucp_get', 4096, ucx_lat, 'us'), ('ucp_fadd', 8, ucx_lat, 'us'),
            ('ucp_cswap', 8, ucx_lat, 'us'), ('stream_lat', 8, ucx_lat, 'us')):
        row('-t %s -s %d' % (test, size), parse, unit, 20 if size > 65536 else 100,
            alone=True)


def _libfabric():
    add('libfabric', 'fi_info -p verbs', 'fi_info -p verbs -d {dev}', 'true',
        listens=None, carries=0)
    for what, words in (('msg', '-e msg -d {dev}'),
                        ('dgram', '-e dgram -d {dev}-dgram'),
                        ('rdm', '-e rdm -d {dev}')):
        provider = "'verbs;ofi_rxm'" if what == 'rdm' else 'verbs'
        base = 'fi_pingpong -p %s %s -I 20 -S %d -c ' % (
            provider, words, 1024 if what == 'dgram' else 65536)
        add('libfabric', 'fi_pingpong -p %s -e %s' % (provider.strip("'"), what),
            base + '-B {port}', base + '-P {port} {ip}', seconds=25,
            parse=fabric_figure, unit='us')


def _fabtests():
    for provider, words in fabtests.ONE_SIDED:
        add('fabtests, ' + provider, words.split(' -s')[0], words + " -p '%s' -d {dev}" %
            provider, 'true', listens=None, needs='command -v fi_rma_bw', carries=0)
    for provider, words in fabtests.PAIRS:
        base = "%s -p '%s' -s {own}" % (words, provider)
        add('fabtests, ' + provider, words, base, listens=False, seconds=20,
            needs='command -v fi_rma_bw')


def _qperf():
    for test in ('rc_lat', 'rc_bw', 'rc_bi_bw', 'rc_rdma_write_lat',
                 'rc_rdma_write_poll_lat', 'rc_rdma_write_bw', 'rc_rdma_read_lat',
                 'rc_rdma_read_bw', 'rc_fetch_add_mr', 'rc_compare_swap_mr',
                 'ver_rc_fetch_add', 'ver_rc_compare_swap', 'uc_lat', 'uc_bw',
                 'ud_lat', 'ud_bw'):
        add('qperf', 'qperf -cm 1 ' + test, 'qperf -lp {port}',
            'qperf -lp {port} -t 1 -cm 1 -i {dev}:1 {ip} ' + test, seconds=15,
            parse=qperf_figure, unit='us' if test.endswith('lat') else
            '/s' if test.endswith('mr') else 'MB/s')


def _fio():
    base = 'fio --name=x --ioengine=rdma --port={port} --bs=64k --size=8m --iodepth=8 '
    for verb in ('write', 'send', 'read'):
        add('fio', 'fio rdma verb=' + verb, base + '--rw=read',
            base + '--hostname={ip} --verb=%s --rw=%s' % (
                verb, 'read' if verb == 'read' else 'write'), listens=False,
            seconds=20, parse=fio_figure, unit='MB/s')


def _mpi():
    # The agents stand for ssh, which the guests have not.
    for title, words in (
            ('Open MPI', 'mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent '
             '/tmp/mpi-agent --host {names} /opt/mpiring.openmpi 10'),
            ('Open MPI, pml ucx', 'mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent '
             '/tmp/mpi-agent --host {names} --mca pml ucx /opt/mpiring.openmpi 10'),
            ('MPICH', 'mpiexec.mpich -launcher rsh -launcher-exec /tmp/mpi-agent '
             '-hosts {names} -n 2 -ppn 1 /opt/mpiring.mpich 10')):
        add('MPI', title + ', ring of 2', 'true', words, listens=None, seconds=60,
            parse=number(r'1048576 bytes\s+([\d.]+) us'), unit='us',
            says=': all data right\n', carries=100, alone=True)


for _fill in (_ibverbs, _rdmacm, _perftest, _ucx, _libfabric, _fabtests, _qperf, _fio, _mpi):
    _fill()

# What is tried in `make check`; and what Debian sets up not to use RDMA.
UNTOLD = ('ucx_perftest -t tag_lat -s 8', 'Open MPI, pml ucx, ring of 2',
          'MPICH, ring of 2')
BY_TCP = ('Open MPI, ring of 2',)

# -- running one -------------------------------------------------------------------

# What `mpirun` calls instead of ssh: HOST COMMAND...; the server runs in each guest.
MPI_AGENT = '''#!/bin/bash
host=$1; shift
exec 3<>/dev/tcp/$host/7000 || exit 1
echo "$*" >&3
code=1
while IFS= read -r line <&3; do
    case $line in "MPI-AGENT-RC "*) code=${line#MPI-AGENT-RC } ;; *) printf '%s\\n' "$line" ;; esac
done
exit "$code"
'''
MPI_SERVER = '''
import socket, subprocess, threading
server = socket.create_server(('', 7000))
def serve(sock):
    line = sock.makefile('rb', buffering=0).readline()
    done = subprocess.run(['bash', '-c', line.decode()], stdin=subprocess.DEVNULL,
                          stdout=sock, stderr=sock, check=False)
    sock.sendall(b'\\nMPI-AGENT-RC %d\\n' % done.returncode)
    sock.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
'''


TROUBLE = re.compile(r'error|fail|could ?n.t|cannot|unable|not supported|unreachable', re.I)


def last_line(job):
    """The line in which a program says what is wrong, the first such one: the later
    ones follow from it.  Else what it said last."""
    if job.in_vain:
        return job.in_vain[:160]
    lines = [line.strip() for text in (job.err, job.out) for line in text.splitlines()
             if re.search(r'\w', line)]
    for line in [line for line in lines if TROUBLE.search(line)] + lines[::-1]:
        # UCX begins with the time and the place in its source.
        return re.sub(r'^\[[\d.]+\] \[\S+ *:\d+\] +\S+ +', '', line)[:160]
    return '%s %s, no word' % (job.how, job.code)


class Runner:
    """Runs rows of the table on the Pair @name of a Lab; @least: seconds that each gets."""

    def __init__(self, lab, name, least=0):
        self.lab = lab
        self.least = least
        self.name = name
        self.pair = lab.pairs[name]

    def command(self, template, guest, port):
        pair = self.pair
        return 'deb ' + template.format(
            dev=pair.device, gid=pair.gids[guest], port=port, ip=pair.guests[0].ip(pair.kind),
            own=pair.guests[guest].ip(pair.kind),
            names=','.join('%s-%s' % (g.name, pair.kind) for g in pair.guests))

    def once(self, row):
        """(server job or None, client job); both have ended."""
        one, two = self.pair.guests
        port = next(_ports)
        seconds = max(row.seconds, self.least)
        server = one.spawn(self.command(row.server, 0, port), seconds + 15)
        if row.listens is None:  # no server at all, or a program of one side
            server.wait()
            if row.server != 'true':
                return server, server
            return server, one.run(self.command(row.client, 0, port), seconds,
                                   check=False)
        try:
            if row.listens:
                one.wait_listen(port, server, 15)
            else:
                one.run('usleep %d' % int(HEAD_START * 1e6))
            job = two.run(self.command(row.client, 1, port), seconds, check=False)
            end = LINGER if job.ok and not row.title.startswith(STAYS) else 0
            with one.agent.cond:
                one.agent.cond.wait_for(lambda: server.done, end * one.patience)
        finally:
            if not server.done:
                server.kill(9)
        server.wait()
        return server, job

    def run(self, row):
        """The Outcome; raises only if a guest has gone."""
        with self.lab.alone(self.name if row.alone else None):
            # Whom it runs alone gets acquainted by datagrams, and may go on by TCP.
            before = self.lab.carried(self.name, not row.alone)
            outcome = self.attempt(row)
            carried = self.lab.carried(self.name, not row.alone) - before
        if outcome.result.startswith('ok') and carried < row.carries:
            return outcome._replace(result='not by RDMA', figure=None)
        return outcome

    def attempt(self, row):
        for turn in range(TRIES):
            try:
                server, client = self.once(row)
            except (VmError, AgentError, CommandFailed) as exc:
                if not all(guest.alive for guest in self.pair.guests):
                    raise
                text = last_line(exc.job) if hasattr(exc, 'job') else \
                    str(exc).splitlines()[0][:160]
                return Outcome('fails: ' + text, None, row.unit, str(exc)[-6000:])
            detail = (server.describe() + '\n' + client.describe())[-6000:]
            if client.how == 'timeout':
                return Outcome('hangs (%d s)' % max(row.seconds, self.least), None,
                               row.unit, detail)
            if row.group.startswith('fabtests') and client.how == 'exited' and \
                    client.code in fabtests.NOT_OFFERED:
                return Outcome('not offered', None, row.unit, detail)
            if not client.ok:
                return Outcome('fails: ' + last_line(client), None, row.unit, detail)
            if row.says not in client.out:
                return Outcome('fails: ' + last_line(client), None, row.unit, detail)
            if not server.ok and not row.title.startswith(STAYS):
                return Outcome('server fails: ' + (
                    'does not end' if server.how == 'killed' else last_line(server)),
                    None, row.unit, detail)
            if row.left and not self.pair.guests[0].run('deb ' + row.left, check=False).ok:
                return Outcome('fails: not what was sent', None, row.unit, detail)
            if not row.parse:
                return Outcome('ok', None, row.unit, detail)
            try:
                figure = row.parse(client.out)
            except (ValueError, IndexError):
                figure = None
            if figure is not None and 0 < figure < math.inf:
                return Outcome('ok', figure, row.unit, detail)
            if CLOCK_UNKNOWN not in client.err and turn:
                break
        return Outcome('ok, no figure', None, row.unit, detail)


def untold(lab, more):
    """[(title, result, what was said)] of programs that choose a device by themselves, on
    the Lab's own device: those from which others stand for theirs, with @more all."""
    prepare(lab.guests, lab.pairs.values())
    runner = Runner(lab, lab.name, 200)
    found = []
    for row in PROGRAMS:
        if row.alone and (more or row.title in UNTOLD):
            outcome = runner.run(row)
            found.append((row.title, outcome.result, outcome.detail))
    return found


def offered(guest):
    """The rows whose programs @guest has."""
    has = {needs: not needs or guest.run('deb sh -c "%s"' % needs, check=False).ok
           for needs in {row.needs for row in PROGRAMS}}
    return [row for row in PROGRAMS if has[row.needs]]


def prepare(guests, pairs):
    """What the programs want of a guest: names, and a way to start a command in
    another one for mpirun."""
    # MPICH's processes call each other by the bare name.
    hosts = '127.0.0.1 localhost\n' + ''.join(
        '%s %s-%s%s\n' % (guest.ip(pair.kind), guest.name, pair.kind,
                          ' ' + guest.name if pair.kind == 'virtio' else '')
        for guest in guests for pair in pairs)
    for guest in guests:
        for name, text in (('/debian/etc/hosts', hosts), ('/tmp/mpi-agent', MPI_AGENT),
                           ('/tmp/mpi-server.py', MPI_SERVER)):
            parts.put_in_guest(guest, name, text.encode())
        guest.run('chmod 755 /tmp/mpi-agent')
        server = guest.spawn('deb python3 /tmp/mpi-server.py', 100000)
        guest.wait_listen(7000, server)


def describe(outcome):
    """An Outcome as a cell of the table."""
    if outcome.figure is None:
        return outcome.result.replace('|', '/')
    return '%s %s' % ('%.3g' % outcome.figure if outcome.figure < 1000
                      else '%.0f' % outcome.figure, outcome.unit)


def plain(outcomes):
    """@outcomes for JSON."""
    return {name: [list(key) + list(outcome) for key, outcome in found.items()]
            for name, found in outcomes.items()}


def load(folder, name):
    """What plain() made of an earlier run on these parts, if there was one."""
    path = os.path.join(folder, 'programs-%s.json' % name)
    if not os.path.exists(path):
        return {}
    with open(path) as stream:
        return {name: {tuple(words[:2]): Outcome(*words[2:]) for words in rows}
                for name, rows in json.load(stream).items()}


def table(outcomes):
    """Markdown, a table for each group; @outcomes: {device: {(group, title):
    Outcome}}."""
    lines = []
    done = []
    for row in PROGRAMS:
        key = (row.group, row.title)
        if not any(key in found for found in outcomes.values()):
            continue
        if row.group not in done:
            done.append(row.group)
            lines += ['', '| %s | %s |' % (row.group, ' | '.join(outcomes)),
                      '|---' * (len(outcomes) + 1) + '|']
        lines.append('| `%s` | %s |' % (row.title, ' | '.join(
            describe(found[key]) if key in found else ''
            for found in outcomes.values())))
    return lines[1:]
