# SPDX-License-Identifier: GPL-2.0-or-later
"""Host side of the guest agent: run commands in a guest and get results.

The protocol is described in images/agent/guest-agent.c.  One reader thread
per guest takes frames off the socket and files them with their Job; callers
wait on the Job's condition.  Any number of jobs run at the same time.

Invariants: a Job ends exactly once, either with the guest's EXIT frame or
because the connection was lost, and then Job.wait() returns or raises; writes
to the socket are serialised by Agent._send_lock.

A guest that migrates goes on in the middle of a frame: where its old QEMU's bytes
end, those of the new one follow (Agent.follow, Agent.moved).
"""

import io
import re
import socket
import threading
import time

PROTOCOL_VERSION = 1
MAX_LINE = 128
# The guest enforces its own deadline; the host's is a net below it, wider
# because an emulated guest on a busy machine may be slow to say so.
GRACE = 20.0
# A guest may be nowhere for so long (Agent.hold).
HOLD = 300.0
# What programs say that end with status 0 although they have failed: ibv_*_pingpong -c, of
# other data; rping, whose peer left in the middle of a ping, or to which that was not what
# it waited for; cmtime, of connections that came to nothing; rstream and riostream, which
# take the end of the connection for data.
IN_VAIN = re.compile(
    rb'^(?:invalid data in page|data mismatch!|'
    rb'wait for RDMA_(?:READ_COMPLETE|WRITE_ADV|WRITE_COMPLETE) state|'
    rb'event: RDMA_CM_EVENT_\w+, error|rrecv: |rsend: )', re.M)


class AgentError(Exception):
    """The connection to the agent failed, or a command could not start."""


class CommandFailed(Exception):
    """A command that had to succeed did not; str() holds all of its output."""

    def __init__(self, job):
        super().__init__(job.describe())
        self.job = job


class Job:
    """One command in a guest.

    Attributes valid after wait(): how ('exited', 'killed', 'timeout',
    'failed'), code (exit status, signal or errno), out and err (str).
    """

    def __init__(self, agent, ident, command):
        self.agent = agent
        self.ident = ident
        self.command = command
        self.how = None
        self.code = None
        self.lost = None
        self.started = time.monotonic()
        self.seconds = None
        self._out = bytearray()
        self._err = bytearray()
        self._limit = None

    @property
    def out(self):
        return bytes(self._out).decode('utf-8', 'replace')

    @property
    def err(self):
        return bytes(self._err).decode('utf-8', 'replace')

    @property
    def done(self):
        return self.how is not None or self.lost is not None

    @property
    def in_vain(self):
        """The line by which its status 0 is a lie, or None."""
        for data in (self._out, self._err):
            found = IN_VAIN.search(data)
            if found:
                return data[found.start():].split(b'\n')[0].decode('utf-8', 'replace')
        return None

    @property
    def ok(self):
        return self.how == 'exited' and self.code == 0 and not self.in_vain

    def describe(self):
        """What ran, how it ended and everything it printed."""
        if self.lost:
            end = 'connection lost: %s' % self.lost
        elif self.how is None:
            end = 'still running'
        else:
            end = '%s %s' % (self.how, self.code)
            if self.in_vain:
                end += ', although "%s"' % self.in_vain
        text = '%s: `%s`: %s' % (self.agent.name, self.command, end)
        for name, data in (('stdout', self.out), ('stderr', self.err)):
            if data.strip():
                text += '\n--- %s ---\n%s' % (name, data.rstrip())
        return text

    def wait(self, timeout=None, check=False):
        """Wait for the end; with @check, raise CommandFailed unless exit 0."""
        limit = self._limit if timeout is None else \
            timeout * self.agent.patience
        with self.agent.cond:
            if not self.agent.cond.wait_for(lambda: self.done, limit):
                raise AgentError('no end within %.0f s of %s'
                                 % (limit, self.describe()))
        if self.lost:
            raise AgentError(self.describe())
        if check and not self.ok:
            raise CommandFailed(self)
        return self

    def wait_output(self, text, timeout=30):
        """Wait until @text appears in stdout; raise if the job ends first."""
        def seen():
            return text.encode() in self._out or self.done
        with self.agent.cond:
            self.agent.cond.wait_for(seen, timeout * self.agent.patience)
            if text.encode() not in self._out:
                raise AgentError('%r was not printed by %s'
                                 % (text, self.describe()))

    def kill(self, sig=15):
        self.agent.send(b'KILL %d %d\n' % (self.ident, sig))

    def stdin(self, data):
        """Give bytes to the command's stdin; empty bytes close it."""
        self.agent.send(b'IN %d %d\n' % (self.ident, len(data)) + data)


class Bytes(io.RawIOBase):
    """What comes from a socket, and then from the next; for that it waits while @told
    is not set."""

    def __init__(self, sock):
        super().__init__()
        self.sock = sock
        self.next = None
        self.told = threading.Event()
        self.told.set()

    def readable(self):
        return True

    def readinto(self, buffer):
        got = self.sock.recv_into(buffer)
        while got == 0:
            self.told.wait(HOLD)
            if not self.next:
                break
            self.sock.close()
            self.sock, self.next = self.next, None
            got = self.sock.recv_into(buffer)
        return got


class Agent:
    """Connection to one guest's agent over a UNIX socket.

    @path: QEMU's chardev socket; @alive: callable telling whether the QEMU
    process still runs, so that waiting ends early when it does not.
    @patience: all time limits are multiplied by it.
    """

    def __init__(self, name, path, alive=lambda: True, patience=1):
        self.name = name
        self.patience = patience
        self.path = path
        self.alive = alive
        self.cond = threading.Condition()
        self.lost = None
        self.hello = False
        self._send_lock = threading.Lock()
        self._jobs = {}
        self._next = 1
        self._sock = None
        self._bytes = None
        self._next_sock = None
        self._pongs = set()

    def connect(self, timeout):
        """Connect to QEMU's socket, which appears early in its start."""
        self._sock = self._open(self.path, self.alive, timeout)
        self._bytes = Bytes(self._sock)
        threading.Thread(target=self._reader, daemon=True).start()

    def hold(self, on=True):
        """The guest's QEMU may end before another one is there that it goes to."""
        if on:
            self._bytes.told.clear()
        else:
            self._bytes.told.set()

    def follow(self, path, alive, timeout=20):
        """The guest is going to another QEMU, which has this socket."""
        self._bytes.next = self._next_sock = self._open(path, alive, timeout)
        self.path, self.alive = path, alive
        self.hold(False)

    def moved(self):
        """It is there."""
        with self._send_lock:
            self._sock = self._next_sock

    def _open(self, path, alive, timeout):
        end = time.monotonic() + timeout
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(path)
                return sock
            except OSError as exc:
                sock.close()
                if not alive():
                    raise AgentError('%s: QEMU ended at its start'
                                     % self.name) from exc
                if time.monotonic() > end:
                    raise AgentError('%s: no socket %s: %s'
                                     % (self.name, path, exc)) from exc
                time.sleep(0.02)

    def wait_hello(self, timeout):
        """Wait until the guest's agent runs."""
        end = time.monotonic() + timeout * self.patience
        with self.cond:
            while not self.hello:
                if self.lost or not self.alive():
                    raise AgentError('%s: the guest ended before its agent '
                                     'was up (%s)' % (self.name, self.lost))
                if time.monotonic() > end:
                    raise AgentError('%s: no agent after %.0f s'
                                     % (self.name, timeout))
                self.cond.wait(0.25)

    def is_up(self, timeout=60):
        """The guest's agent runs already, and does not say so."""
        if not self.ping(timeout):
            raise AgentError('%s: its agent does not answer (%s)' % (self.name, self.lost))
        self.hello = True

    def expect_boot(self):
        """The guest is about to boot again: wait_hello() waits for that, and its
        jobs are lost."""
        with self.cond:
            self.hello = False
            for job in self._jobs.values():
                job.lost = 'the guest booted again'
            self._jobs.clear()
            self.cond.notify_all()

    def close(self):
        if self._sock:
            self.hold(False)
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock.close()

    def send(self, data):
        with self._send_lock:
            try:
                self._sock.sendall(data)
            except OSError as exc:
                raise AgentError('%s: %s' % (self.name, exc)) from exc

    def spawn(self, command, timeout=60, stdin=False):
        """Start a shell command; the guest kills it after @timeout seconds.

        With @stdin the caller feeds it (Job.stdin) and closes it; otherwise
        stdin is empty.
        """
        with self.cond:
            if self.lost:
                raise AgentError('%s: %s' % (self.name, self.lost))
            job = Job(self, self._next, command)
            self._jobs[self._next] = job
            self._next += 1
        timeout *= self.patience
        job._limit = timeout + GRACE
        body = command.encode()
        self.send(b'RUN %d %d %d\n' % (job.ident, int(timeout * 1000),
                                       len(body)) + body)
        if not stdin:
            job.stdin(b'')
        return job

    def run(self, command, timeout=60, check=True):
        """Run a shell command to its end and return the finished Job."""
        return self.spawn(command, timeout).wait(check=check)

    def kill_jobs(self):
        """End what still runs."""
        with self.cond:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.kill(9)
        for job in jobs:
            job.wait(60)

    def ping(self, timeout=10):
        """Whether the agent answers within @timeout seconds."""
        with self.cond:
            token = self._next
            self._next += 1
        self.send(b'PING %d\n' % token)
        with self.cond:
            return self.cond.wait_for(lambda: token in self._pongs or
                                      self.lost, timeout * self.patience) and not self.lost

    # -- reader thread ----------------------------------------------------

    def _reader(self):
        try:
            stream = io.BufferedReader(self._bytes)
            while True:
                line = stream.readline(MAX_LINE)
                if not line:
                    reason = 'the agent closed the connection'
                    break
                self._frame(line, stream)
        except (OSError, ValueError) as exc:
            reason = str(exc)
        with self.cond:
            self.lost = reason
            for job in self._jobs.values():
                if not job.done:
                    job.lost = reason
            self._jobs.clear()
            self.cond.notify_all()

    def _frame(self, line, stream):
        words = line.split()
        if not words or not line.endswith(b'\n'):
            raise ValueError('bad frame from the agent: %r' % line)
        body = b''
        if words[0] == b'OUT':
            length = int(words[3])
            body = stream.read(length)
            if len(body) != length:
                raise ValueError('the agent ended within a frame')
        with self.cond:
            if words[0] == b'HELLO':
                if int(words[1]) != PROTOCOL_VERSION:
                    raise ValueError('agent protocol %s, not %d'
                                     % (words[1], PROTOCOL_VERSION))
                self.hello = True
            elif words[0] == b'PONG':
                self._pongs.add(int(words[1]))
            elif words[0] == b'OUT':
                job = self._jobs.get(int(words[1]))
                if job:
                    (job._out if words[2] == b'1' else job._err).extend(body)
            elif words[0] == b'EXIT':
                job = self._jobs.pop(int(words[1]), None)
                if job:
                    job.how = words[2].decode()
                    job.code = int(words[3])
                    job.seconds = time.monotonic() - job.started
            else:
                raise ValueError('unknown frame %r' % line)
            self.cond.notify_all()
