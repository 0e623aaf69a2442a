#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs by SMC-R in a guest, and what its users' tools set: Debian has no smc-tools.

usage: smc-talk.py ueid NAME                as `smcd ueid add`
       smc-talk.py serve PORT COUNT BYTES
       smc-talk.py call ADDRESS PORT COUNT BYTES

COUNT connections at the same time, each with BYTES of its own in both directions at once,
which both ends compare.  What ends well says how much came, and of each connection the mode
that the kernel says it has (as `smcss`): SMCR, or TCP for one that fell back.
"""

import random
import socket
import struct
import sys
import threading

AF_SMC = 43
NETLINK_SOCK_DIAG, NETLINK_GENERIC = 4, 16
REQUEST, DUMP, ACK = 0x1, 0x300, 0x4
SOCK_DIAG_BY_FAMILY = 20
# smc_diag.h: an active socket, and the names of modes.
ACTIVE = 1
MODES = {0: 'SMCR', 1: 'TCP', 2: 'SMCD'}
# genetlink.h and smc.h.
GET_FAMILY, FAMILY_ID, FAMILY_NAME = 3, 1, 2
ADD_UEID, UEID = 10, 1
BLOCK = 100000


def messages(sock):
    """Type and body of each message of an answer."""
    while True:
        data = sock.recv(1 << 16)
        while data:
            length, kind = struct.unpack_from('=IH', data)
            if kind == 3:  # done
                return
            yield kind, data[16:length]
            if kind == 2:  # an error, or that there is none
                return
            data = data[(length + 3) & ~3:]


def ask(protocol, kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.send(struct.pack('=IHHII', 16 + len(body), kind, REQUEST | flags, 1, 0) + body)
        for answer, text in messages(sock):
            if answer == 2 and struct.unpack_from('=i', text)[0]:
                raise OSError(-struct.unpack_from('=i', text)[0], 'netlink')
            if answer != 2:
                yield text


def attribute(kind, value):
    return struct.pack('=HH', 4 + len(value), kind) + value + bytes(-len(value) % 4)


def add_ueid(name):
    family = next(ask(NETLINK_GENERIC, 16, 0, struct.pack('=BBH', GET_FAMILY, 1, 0) +
                      attribute(FAMILY_NAME, b'SMC_GEN_NETLINK\0')))[4:]
    while struct.unpack_from('=HH', family)[1] != FAMILY_ID:
        family = family[(struct.unpack_from('=H', family)[0] + 3) & ~3:]
    number, = struct.unpack_from('=H', family, 4)
    list(ask(NETLINK_GENERIC, number, ACK, struct.pack('=BBH', ADD_UEID, 1, 0) +
             attribute(UEID, name.encode().ljust(32) + b'\0')))


def modes(port):
    """Of the connections that have this port at either end."""
    found = []
    for text in ask(NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP,
                    struct.pack('=4B', AF_SMC, 0, 0, 0) + bytes(48)):
        _, state, mode, _ = struct.unpack_from('=4B', text)
        if state == ACTIVE and port in struct.unpack_from('>HH', text, 4):
            found.append(MODES[mode])
    return found


def smc_socket():
    """Python knows no addresses of SMC's, which are those of IPv4."""
    sock = socket.socket(AF_SMC, socket.SOCK_STREAM, 0)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=sock.detach())


def blocks(seed, total):
    """The bytes of one direction, in pieces of many sizes."""
    drawn = random.Random(seed)
    while total:
        size = min(total, drawn.randrange(1, BLOCK))
        total -= size
        yield drawn.randbytes(size)


class Talk(threading.Thread):
    """One connection, until all has come."""

    def __init__(self, sock, number, total, server):
        super().__init__()
        self.sock, self.total = sock, total
        self.out, self.into = ('%d %s' % (number, way) for way in (
            ('down', 'up') if server else ('up', 'down')))
        self.right = 0
        self.start()

    def send(self):
        for block in blocks(self.out, self.total):
            self.sock.sendall(block)

    def run(self):
        sender = threading.Thread(target=self.send)
        sender.start()
        for block in blocks(self.into, self.total):
            got = bytearray()
            while len(got) < len(block):
                more = self.sock.recv(len(block) - len(got))
                if not more:
                    return
                got += more
            if got != block:
                return
            self.right += len(block)
        sender.join()


def talk(socks, port, total, server):
    talks = []
    for sock in socks:
        # Who is who: connections may be accepted in another order than they were made in.
        if server:
            number = sock.recv(1)[0]
        else:
            number = len(talks)
            sock.sendall(bytes([number]))
        talks.append(Talk(sock, number, total, server))
    found = modes(port)
    for each in talks:
        each.join()
    # The other end looks at it still; its order is another one.
    for sock in socks:
        sock.sendall(b'.')
    for sock in socks:
        if sock.recv(1) != b'.':
            return 1
    print('%d bytes right, by %s' % (sum(each.right for each in talks),
                                     ' '.join(sorted(found))), flush=True)
    return 0 if all(each.right == total for each in talks) else 1


def main(what, *words):
    if what == 'ueid':
        add_ueid(*words)
        return 0
    address = words[0] if what == 'call' else ''
    port, count, total = map(int, words[-3:])
    if what == 'call':
        socks = [smc_socket() for _ in range(count)]
        for sock in socks:
            sock.connect((address, port))
    else:
        listener = smc_socket()
        listener.bind(('', port))
        listener.listen(count)
        print('listens', flush=True)
        socks = [listener.accept()[0] for _ in range(count)]
    return talk(socks, port, total, what == 'serve')


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
