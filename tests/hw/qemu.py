# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the built QEMU without a guest: a test drives the bus through qtest.

qtest is QEMU's own protocol for device tests: text commands over a socket that
read and write ports and memory as a CPU would.  No CPU runs.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.environ.get('PVRDMA_BUILD', os.path.join(TOP, 'build'))
BINARY = os.path.join(BUILD, 'qemu', 'qemu-system-x86_64')
# Of the daemon; a build of QEMU alone has none.
BACKEND = os.environ.get('PVRDMA_BACKEND', os.path.join(BUILD, 'backend'))

DEVFN = 5 << 3 | 1
BAR0, BAR1, BAR2 = 0xe0000000, 0xe0001000, 0xe0200000
MEMORY = ['-object', 'memory-backend-memfd,id=mem,size=16M,share=on',
          '-machine', 'memory-backend=mem']
NIC = ['-device', 'vmxnet3,addr=5.0,multifunction=on,romfile=']
TIMEOUT = 20
# The guest asks for S3: PM1_CNT, if PMBASE is 0x600.
S3 = 'outw 0x604 0x%x' % (1 << 13 | 1 << 10)
# AddressSanitizer knows too little of coroutines, and says so.
NOISE = re.compile(r'==\d+==WARNING: ASan .*\n|'
                   r'False positive error reports may follow\n|'
                   r'For details see .*/sanitizers/.*\n')


def base_args(machine='q35', accel='qtest'):
    return [BINARY, '-machine', machine, '-accel', accel, '-m', '16M',
            '-nodefaults', '-display', 'none']


def fails_to_start(args):
    """Run QEMU that must not start; returns what it prints."""
    done = subprocess.run(base_args() + args, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)
    if done.returncode != 1:
        raise AssertionError('QEMU ended with %d: %s' % (done.returncode,
                                                         done.stdout))
    return done.stdout


class Qemu:
    """One QEMU with a pvrdma device, on 00:05.1 unless told otherwise."""

    def __init__(self, sock, args=None, machine='q35', memory=None,
                 place='5.1', device='', socket_json=None, fds=(),
                 accel='qtest', preexec=None, reconnect=False):
        """`device`: more properties; `socket_json`: an address for `sock`;
        `accel`: with 'tcg' a CPU runs; `preexec`: called in QEMU's process;
        `reconnect`: as by default.  Most tests want a lost server to stay lost, even if
        it goes on to listen."""
        properties = '%s,id=rdma,addr=%s,socket=%s%s' % (
            'pvrdma' + (device and ',' + device), place, sock,
            '' if reconnect else ',reconnect=off')
        if socket_json:
            properties = {'driver': 'pvrdma', 'id': 'rdma', 'addr': place,
                          'socket': socket_json}
            if not reconnect:
                properties['reconnect'] = False
            properties = json.dumps(properties)
        self.events = []
        self.last_log = ''
        self.dir = tempfile.mkdtemp(prefix='pvrdma-hw-')
        listeners = []
        for kind in ('qtest', 'qmp'):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(os.path.join(self.dir, kind))
            listener.listen(1)
            listener.settimeout(TIMEOUT)
            listeners.append(listener)
        self.log_path = os.path.join(self.dir, 'log')
        with open(self.log_path, 'wb') as log:
            self.process = subprocess.Popen(
                base_args(machine, accel) +
                (MEMORY if memory is None else memory) +
                ['-qtest', 'unix:%s/qtest' % self.dir, '-qtest-log',
                 '/dev/null', '-qmp', 'unix:%s/qmp' % self.dir] + NIC +
                ['-device', properties] + (args or []),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=fds, preexec_fn=preexec)
        try:
            self.qtest, self.qmp = [self._accept(each) for each in listeners]
            self.qmp_file = self.qmp.makefile('r')
            self.qtest_file = self.qtest.makefile('r')
            self.qmp_file.readline()
            self.execute('qmp_capabilities')
        except BaseException:
            self.close()
            raise
        finally:
            for each in listeners:
                each.close()

    def _accept(self, listener):
        deadline = time.monotonic() + TIMEOUT
        listener.settimeout(0.2)
        while True:
            try:
                conn = listener.accept()[0]
                conn.settimeout(TIMEOUT)
                return conn
            except TimeoutError:
                if self.process.poll() is not None:
                    raise AssertionError('QEMU ended: ' + self.log())
                if time.monotonic() > deadline:
                    raise

    def log(self):
        with open(self.log_path, errors='replace') as stream:
            return NOISE.sub('', stream.read())

    def close(self):
        """End QEMU; returns all that it has printed."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for name in ('qtest', 'qmp', 'qtest_file', 'qmp_file'):
            if hasattr(self, name):
                getattr(self, name).close()
        if os.path.exists(self.log_path):
            self.last_log = self.log()
        shutil.rmtree(self.dir, ignore_errors=True)
        return self.last_log

    def execute(self, command, **arguments):
        """One QMP command; returns its reply, which may be an error."""
        self.qmp.sendall(json.dumps({'execute': command, 'arguments':
                                     arguments}).encode())
        while True:
            answer = json.loads(self.qmp_file.readline())
            if 'event' not in answer:
                return answer
            self.events.append(answer)

    def status(self):
        return self.execute('query-status')['return']['status']

    def wait_status(self, status):
        self.until(lambda: self.status() == status, status)

    def happened(self):
        """Names of the events so far."""
        self.status()
        return [event['event'] for event in self.events]

    def connections(self):
        """(connected, held) of each PVRDMA_CONNECTION so far."""
        self.status()
        return [(e['data']['connected'], e['data']['held'])
                for e in self.events if e['event'] == 'PVRDMA_CONNECTION']

    def connected(self):
        return self.property('connected')

    def property(self, name):
        return self.execute('qom-get', path='/machine/peripheral/rdma',
                            property=name)['return']

    def command(self, text):
        self.qtest.sendall(text.encode() + b'\n')
        while True:
            line = self.qtest_file.readline().split()
            if not line:
                raise AssertionError('QEMU ended: ' + self.log())
            if line[0] == 'OK':
                return line[1:]
            if line[0] != 'IRQ':
                raise AssertionError('%s: %s' % (text, line))

    # -- bus accesses ---------------------------------------------------------

    def write(self, addr, value, size=4):
        self.command('write%s 0x%x 0x%x' % ({2: 'w', 4: 'l', 8: 'q'}[size],
                                            addr, value))

    def read(self, addr, size=4):
        return int(self.command('read%s 0x%x' % ({2: 'w', 4: 'l', 8: 'q'}[size],
                                                 addr))[0], 16)

    def write_bytes(self, addr, data):
        self.command('write 0x%x 0x%x 0x%s' % (addr, len(data), data.hex()))

    def read_bytes(self, addr, size):
        return bytes.fromhex(self.command('read 0x%x 0x%x' % (
            addr, size))[0][2:])

    def config(self, offset, value=None, size=4, devfn=DEVFN):
        """Read config space, or write it if a value is given."""
        letter = {1: 'b', 2: 'w', 4: 'l'}[size]
        self.command('outl 0xcf8 0x%x' % (1 << 31 | devfn << 8 | offset & 0xfc))
        port = 0xcfc + (offset & 3)
        if value is None:
            return int(self.command('in%s 0x%x' % (letter, port))[0], 16)
        self.command('out%s 0x%x 0x%x' % (letter, port, value))
        return None

    def enable(self, command=6, devfn=DEVFN, away=0):
        """Place the BARs, `away` from the usual place, and turn on memory
        decoding and bus mastering."""
        for i, addr in enumerate((BAR0, BAR1, BAR2)):
            self.config(0x10 + 4 * i, addr + away, devfn=devfn)
        self.config(4, command, 2, devfn=devfn)

    def capability(self, wanted, devfn=DEVFN):
        at = self.config(0x34, size=1, devfn=devfn)
        while at:
            if self.config(at, size=1, devfn=devfn) == wanted:
                return at
            at = self.config(at + 1, size=1, devfn=devfn)
        raise AssertionError('no capability 0x%x' % wanted)

    def enable_msix(self, address, masked=0, devfn=DEVFN, away=0):
        """Let vector i write 0xc0de00 + i to address + 4 * i."""
        cap = self.capability(0x11, devfn)
        self.config(cap + 2, 0xc000, 2, devfn)
        for i in range(3):
            entry = BAR0 + away + 16 * i
            self.write(entry, address + 4 * i)
            self.write(entry + 4, 0)
            self.write(entry + 8, 0xc0de00 + i)
            self.write(entry + 12, masked >> i & 1)
        self.config(cap + 2, 0x8000, 2, devfn)

    def mask(self, vector, masked):
        self.write(BAR0 + 16 * vector + 12, int(masked))

    def until(self, condition, what, seconds=10):
        """Poll: qtest lets the main loop run between two commands."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError('no ' + what)
            time.sleep(0.01)
