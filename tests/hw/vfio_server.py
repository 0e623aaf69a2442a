# SPDX-License-Identifier: GPL-2.0-or-later
"""A vfio-user server that a test scripts: the other end of QEMU's pvrdma.

It serves one connection after the other in a thread, answers like a healthy
pvrdmad with one 15ad:0820 device, and keeps a log of what it got.  A test
changes its answers through `hooks`: command number -> function(server,
message), which returns what goes out instead: bytes (a whole message, or
anything else), SILENT, CLOSE, DEFAULT (the healthy answer) or a tuple
(bytes, descriptors).

Only what the client may legitimately do is accepted: a malformed message is
noted in `violations`, which every test checks at its end.
"""

import array
import fcntl
import json
import mmap
import os
import socket
import struct
import threading
import time

VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, REGION_INFO, IO_FDS = 1, 2, 3, 4, 5, 6
IRQ_INFO, SET_IRQS, REGION_READ, REGION_WRITE, RESET = 7, 8, 9, 10, 13
FEATURE, MIG_READ, MIG_WRITE = 16, 17, 18

# Of FEATURE: what it is about, and how.
MIGRATION, MIG_STATE, LOG_START, LOG_STOP, LOG_REPORT, MIG_SIZE = 1, 2, 6, 7, 8, 9
LOG_SHARE = 0x8001              # include/pvrdma/dirty.h
PUT_BACK = 0x8002               # include/pvrdma/vfio_user.h
GET, SET, PROBE = 1 << 16, 1 << 17, 1 << 18
STOP, RUNNING, STOP_COPY, RESUMING = 1, 2, 3, 4
MIG_PATHS = {(RUNNING, STOP), (STOP, RUNNING), (STOP, STOP_COPY), (STOP_COPY, STOP),
             (STOP_COPY, RUNNING), (STOP, RESUMING), (RESUMING, STOP)}
ENOTTY = 25

SILENT, CLOSE, DEFAULT = object(), object(), object()

HEADER = struct.Struct('<HHIII')
REGION = struct.Struct('<IIIIQQ')
ACCESS = struct.Struct('<QII')
REPLY, NO_REPLY, ERROR = 1, 0x10, 0x20

F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4

# include/pvrdma/doorbell.h
DB_INDEX, DB_TYPE, DB_SUBTYPE, DB_SIZE = 9, 0x800015ad, 1, 0xb0000
DB_MAGIC, DB_VERSION = 0x42445250, 1
DB_KICK, DB_BAD, DB_WRITES = 64, 128, 136
DB_SEND, DB_RECV, DB_SRQ = 0x1000, 0x4000, 0x7000
DB_ARM, DB_QP_OWNER, DB_CQ_OWNER, DB_SRQ_OWNER = (
    0x10000, 0x50000, 0x70000, 0x90000)


class Message:
    """One command of the client; descriptors in `fds` are closed later."""

    def __init__(self, header, body, fds):
        self.id, self.command, self.size, self.flags, _ = HEADER.unpack(header)
        self.body = body
        self.fds = fds

    def access(self):
        """(region, offset, data or count) of a REGION_READ or _WRITE."""
        offset, region, count = ACCESS.unpack_from(self.body)
        data = self.body[ACCESS.size:]
        return region, offset, data if data else count

    def feature(self):
        """(number, GET, SET or both and PROBE, data) of a FEATURE."""
        flags, = struct.unpack_from('<I', self.body, 4)
        return flags & 0xffff, flags & ~0xffff, self.body[8:]


def reply(msg, payload=b'', flags=REPLY, error=0, **change):
    """A reply's bytes; `change` overrides id, command or size."""
    return HEADER.pack(change.get('id', msg.id),
                       change.get('command', msg.command),
                       change.get('size', HEADER.size + len(payload)),
                       flags, error) + payload


def refuse(msg, error):
    return reply(msg, flags=REPLY | ERROR, error=error)


def region_reply(msg, size, flags=3, caps=b'', cap_offset=None, index=None):
    """A region reply; with `caps`, the CAPS flag and a list behind it."""
    if caps or cap_offset is not None:
        flags |= 8
        cap_offset = REGION.size if cap_offset is None else cap_offset
    want, _, asked = struct.unpack_from('<III', msg.body)
    return reply(msg, REGION.pack(REGION.size + len(caps), flags,
                                  asked if index is None else index,
                                  cap_offset or 0, size, 0) + caps)


def type_cap(kind=DB_TYPE, subtype=DB_SUBTYPE, following=0):
    return struct.pack('<HHIII', 2, 1, following, kind, subtype)


def doorbell_memfd(size=DB_SIZE, seal=True, version=DB_VERSION):
    fd = os.memfd_create('doorbells', os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    os.pwrite(fd, struct.pack('<II', DB_MAGIC, version), 0)
    if seal:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    return fd


def log_memfd(ranges, short=0, seal=True):
    """The bits of these ranges, one behind the other; `short`: by so many bytes."""
    fd = os.memfd_create('dirty', os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, sum(log_bytes(size) for _, size in ranges) - short)
    if seal:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    return fd


def log_bytes(size):
    return -(-size // 4096 // 32768) * 4096


class Server(threading.Thread):
    def __init__(self, path, doorbells=True, max_fds=16, features=(), hooks=None):
        """`features`: numbers of those it has; `hooks`: from its first message on."""
        super().__init__(daemon=True)
        self.path = path
        self.max_fds = max_fds
        self.features = features
        self.state = RUNNING
        self.states = []        # each it was set to
        self.saved = b''        # to be read at STOP_COPY
        self.reading = 0        # how far that is
        self.size = 0           # what it is said to be
        self.loaded = bytearray()
        self.put_back = 0       # how often the client said that it is a snapshot
        self.logged = None      # ranges, if it logs
        self.dirty = set()      # pages
        self.shared = None      # the log's bits, if the client has them
        self.to_close = []      # descriptors, at the end
        self.hooks = hooks or {}
        self.log = []           # (command, flags, body, number of fds)
        self.violations = []
        self.maps = {}          # address -> (size, flags, offset, fd)
        self.vectors = {}       # index -> eventfd
        self.registers = bytearray(4096)
        self.command = 0
        self.resets = 0
        self.connections = 0
        self.db_fd = doorbell_memfd() if doorbells else -1
        self.kick_fd = os.eventfd(0, os.EFD_NONBLOCK) if doorbells else -1
        self.db = mmap.mmap(self.db_fd, DB_SIZE) if doorbells else None
        self.changed = threading.Condition()
        self.conn = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        self.stopping = False
        self.start()

    # -- life ---------------------------------------------------------------

    def run(self):
        while not self.stopping:
            try:
                self.conn = self.listener.accept()[0]
            except OSError:
                return
            self.connections += 1
            try:
                while self._serve_one():
                    pass
            except OSError:
                pass
            self._hang_up()

    def _hang_up(self):
        with self.changed:
            conn, self.conn = self.conn, None
            if conn:
                conn.close()
            for fd in [m[3] for m in self.maps.values()] + list(
                    self.vectors.values()):
                os.close(fd)
            self.maps, self.vectors = {}, {}
            self.changed.notify_all()

    def kill(self):
        """End the connection and the listener, as if the daemon had died."""
        self.stopping = True
        for sock in (self.listener, self.conn):
            try:
                if sock:
                    sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.listener.close()
        self.join(10)

    def close(self):
        self.kill()
        if self.db:
            self.db.close()
            os.close(self.db_fd)
            os.close(self.kick_fd)
        for fd in self.to_close:
            os.close(fd)
        if os.path.exists(self.path):
            os.unlink(self.path)

    def wait(self, condition, what, seconds=10):
        """Wait until condition() holds; it runs with the state locked."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError('no %s; got %s' % (
                        what, [entry[0] for entry in self.log]))
                self.changed.wait(left)

    # -- messages -------------------------------------------------------------

    def _receive(self, size):
        data, fds = b'', array.array('i')
        while len(data) < size:
            part, control, _, _ = self.conn.recvmsg(
                size - len(data), socket.CMSG_SPACE(16 * 4))
            for level, kind, value in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(value[:len(value) // 4 * 4])
            if not part:
                return None, fds
            data += part
        return data, list(fds)

    def _serve_one(self):
        header, fds = self._receive(HEADER.size)
        if header is None:
            return False
        size = HEADER.unpack(header)[2]
        if not HEADER.size <= size <= (1 << 20) + 64:
            self.violations.append('message of %d bytes' % size)
            return False
        body, late = self._receive(size - HEADER.size)
        if body is None:
            return False
        if late:
            self.violations.append('descriptors in a body')
        msg = Message(header, body, fds)
        with self.changed:
            self.log.append((msg.command, msg.flags, msg.body, len(fds)))
        hook = self.hooks.get(msg.command)
        answer = hook(self, msg) if hook else DEFAULT
        if answer is DEFAULT:
            answer = self._default(msg)
        for fd in msg.fds:
            os.close(fd)
        with self.changed:
            self.changed.notify_all()
        if answer is CLOSE:
            return False
        if answer is not SILENT and not msg.flags & NO_REPLY:
            data, out = answer if isinstance(answer, tuple) else (answer, [])
            if out:
                socket.send_fds(self.conn, [data], out)
            else:
                self.conn.sendall(data)
        return True

    def _default(self, msg):
        handler = {
            VERSION: self._version, DMA_MAP: self._map, DMA_UNMAP: self._unmap,
            GET_INFO: lambda m: reply(m, struct.pack(
                '<IIII', 16, 3, 10 if self.db else 9, 3)),
            REGION_INFO: self._region, IO_FDS: self._io_fds,
            IRQ_INFO: lambda m: reply(m, struct.pack(
                '<IIII', 16, 1, struct.unpack_from('<III', m.body)[2], 34)),
            SET_IRQS: self._set_irqs, REGION_READ: self._read,
            REGION_WRITE: self._write, RESET: self._reset,
            FEATURE: self._feature, MIG_READ: self._mig_read,
            MIG_WRITE: self._mig_write,
        }.get(msg.command)
        if not handler:
            self.violations.append('command %d' % msg.command)
            return refuse(msg, 95)
        return handler(msg)

    def _version(self, msg):
        proposal = json.loads(msg.body[4:-1])
        if msg.body[-1] or 'capabilities' not in proposal:
            self.violations.append('VERSION without capabilities')
        text = json.dumps({'capabilities': {
            'max_msg_fds': self.max_fds, 'max_data_xfer_size': 1048576,
            'max_dma_maps': 65535, 'pgsizes': 4096, 'write_multiple': False}})
        return reply(msg, struct.pack('<HH', 0, 0) + text.encode() + b'\0')

    def _map(self, msg):
        argsz, flags, offset, addr, size = struct.unpack('<IIQQQ', msg.body)
        overlap = any(addr < a + m[0] and a < addr + size
                      for a, m in self.maps.items())
        if argsz != 32 or overlap or size == 0 or len(msg.fds) != 1:
            self.violations.append('DMA_MAP 0x%x+0x%x, %d fds%s' % (
                addr, size, len(msg.fds), ', overlaps' if overlap else ''))
            return refuse(msg, 22)
        self.maps[addr] = (size, flags, offset, os.dup(msg.fds[0]))
        return reply(msg)

    def _unmap(self, msg):
        _, _, addr, size = struct.unpack('<IIQQ', msg.body)
        if self.maps.get(addr, (0,))[0] != size:
            self.violations.append('DMA_UNMAP 0x%x+0x%x' % (addr, size))
            return refuse(msg, 2)
        os.close(self.maps.pop(addr)[3])
        return reply(msg, msg.body)

    def _region(self, msg):
        index = struct.unpack_from('<III', msg.body)[2]
        if index == DB_INDEX and self.db:
            return region_reply(msg, DB_SIZE, 7, type_cap()), [self.db_fd]
        return region_reply(msg, {0: 4096, 1: 4096, 2: 2 << 20, 7: 256}.get(
            index, 0))

    def _io_fds(self, msg):
        entry = struct.pack('<QQIIIIQ', 0, 2 << 20, 0, 0, 0, 0, 0)
        return (reply(msg, struct.pack('<IIII', 56, 0, 2, 1) + entry),
                [self.kick_fd])

    def _set_irqs(self, msg):
        _, flags, index, start, count = struct.unpack_from('<IIIII', msg.body)
        if flags == 0x21 and count == 0:
            for fd in self.vectors.values():
                os.close(fd)
            self.vectors = {}
        elif (flags, index) != (0x24, 2) or len(msg.fds) not in (
                0, count) or len(msg.fds) > self.max_fds:
            self.violations.append('SET_IRQS 0x%x' % flags)
            return refuse(msg, 22)
        for i, fd in enumerate(msg.fds):
            self.vectors[start + i] = os.dup(fd)
        return reply(msg)

    def _read(self, msg):
        region, offset, count = msg.access()
        if region == 7:
            data = struct.pack('<HHHH', 0x15ad, 0x820, self.command,
                               0)[offset:offset + count]
        else:
            data = bytes(self.registers[offset:offset + count])
        return reply(msg, ACCESS.pack(offset, region, count) + data)

    def _write(self, msg):
        region, offset, data = msg.access()
        if region == 7:
            self.command = struct.unpack('<H', data)[0]
        elif region == 1:
            self.registers[offset:offset + len(data)] = data
        return reply(msg, ACCESS.pack(offset, region, len(data)))

    def _reset(self, msg):
        self.resets += 1
        self.state = RUNNING
        return reply(msg)

    # -- migration --------------------------------------------------------------

    def _feature(self, msg):
        number, how, data = msg.feature()
        head = msg.body[:8]
        if number not in self.features:
            return refuse(msg, ENOTTY)
        if how & PROBE:
            return reply(msg, head + data)
        if (number, how) == (MIGRATION, GET):
            return reply(msg, head + struct.pack('<Q', 1))
        if (number, how) == (MIG_SIZE, GET):
            return reply(msg, head + struct.pack('<Q', self.size))
        if (number, how) == (MIG_STATE, GET):
            return reply(msg, head + struct.pack('<Ii', self.state, -1))
        if (number, how) == (MIG_STATE, SET):
            return self._set_state(msg, struct.unpack('<Ii', data)[0])
        if (number, how) == (PUT_BACK, SET):
            if self.state != RESUMING or self.loaded or data:
                self.violations.append('PUT_BACK %r in state %u' % (data, self.state))
            self.put_back += 1
            return reply(msg, head)
        if (number, how) in ((LOG_START, SET), (LOG_SHARE, SET)):
            page, count, _ = struct.unpack_from('<QII', data)
            if page != 4096 or len(data) != 16 + 16 * count or self.logged:
                self.violations.append('DMA_LOGGING_START %r' % data)
            self.logged = list(struct.iter_unpack('<QQ', data[16:]))
            if number == LOG_SHARE:
                return self.share_log(msg)
            return reply(msg, head + data)
        if (number, how) == (LOG_STOP, SET):
            if self.logged is None:
                self.violations.append('DMA_LOGGING_STOP without a log')
            self.logged = None
            self.shared = None
            return reply(msg, head + data)
        if (number, how) == (LOG_REPORT, GET):
            return self._log_report(msg, head, data)
        self.violations.append('DEVICE_FEATURE %d 0x%x' % (number, how))
        return refuse(msg, 22)

    def share_log(self, msg, **how):
        """The answer that brings it; `how`: not as it ought to be."""
        fd = log_memfd(self.logged, **how)
        self.to_close.append(fd)
        if not how:
            self.shared = mmap.mmap(fd, 0)
        return reply(msg, msg.body), [fd]

    def _set_state(self, msg, state):
        if (self.state, state) not in MIG_PATHS:
            self.violations.append('state %d to %d' % (self.state, state))
            return refuse(msg, 22)
        self.state = state
        with self.changed:
            self.states.append(state)
        self.reading = 0
        if state == RESUMING:
            self.loaded = bytearray()
        return reply(msg, msg.body)

    def _log_report(self, msg, head, data):
        addr, size, page = struct.unpack('<QQQ', data)
        if page != 4096 or addr % 4096 or size % 4096 or not any(
                a <= addr and addr + size <= a + s for a, s in self.logged or ()):
            self.violations.append('DMA_LOGGING_REPORT 0x%x+0x%x' % (addr, size))
            return refuse(msg, 2)
        bits = 0
        for each in [p for p in self.dirty if addr <= p < addr + size]:
            self.dirty.discard(each)
            bits |= 1 << (each - addr) // 4096
        return reply(msg, head + data + bits.to_bytes(
            -(-size // 4096 // 64) * 8, 'little'))

    def _mig_read(self, msg):
        argsz, size = struct.unpack('<II', msg.body)
        if argsz != 8 + size or self.state != STOP_COPY:
            self.violations.append('MIG_DATA_READ %d' % size)
        data = self.saved[self.reading:self.reading + size]
        self.reading += len(data)
        return reply(msg, struct.pack('<II', 8 + len(data), len(data)) + data)

    def _mig_write(self, msg):
        argsz, size = struct.unpack_from('<II', msg.body)
        if argsz != 8 + size or len(msg.body) != argsz or \
                self.state != RESUMING:
            self.violations.append('MIG_DATA_WRITE %d' % size)
        self.loaded += msg.body[8:]
        return reply(msg)

    # -- for tests -------------------------------------------------------------

    def commands(self):
        with self.changed:
            return [entry[0] for entry in self.log]

    def guest_memory(self, addr, size):
        """Bytes of guest memory as a daemon would see them."""
        with self.changed:
            for base, (length, _, offset, fd) in self.maps.items():
                if base <= addr and addr + size <= base + length:
                    return os.pread(fd, size, offset + addr - base)
        raise AssertionError('0x%x is not mapped' % addr)

    def store(self, addr, data, log=True):
        """What a daemon does to guest memory; `log`: and tells."""
        with self.changed:
            for base, (length, _, offset, fd) in self.maps.items():
                if base <= addr and addr + len(data) <= base + length:
                    os.pwrite(fd, data, offset + addr - base)
                    break
            else:
                raise AssertionError('0x%x is not mapped' % addr)
            if log and self.shared:
                self._mark(addr)
            elif log:
                self.dirty.add(addr & ~4095)

    def _mark(self, addr):
        at = 0
        for base, size in self.logged:
            if base <= addr < base + size:
                page = (addr - base) // 4096
                self.shared[at + page // 8] |= 1 << page % 8
            at += log_bytes(size)

    def doorbell(self, offset, size=8):
        return int.from_bytes(self.db[offset:offset + size], 'little')

    def set_doorbell(self, offset, value, size):
        self.db[offset:offset + size] = value.to_bytes(size, 'little')

    def kicks(self):
        """Doorbell kicks since the last call."""
        try:
            return os.eventfd_read(self.kick_fd)
        except BlockingIOError:
            return 0
