#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""reorder.py DEVICE DEVICE: a cable between two interfaces that keeps no order.

One frame in ten is held back until some later ones have passed, or for 5 ms if there
are none; none is lost.  Ends with SIGTERM and prints how many frames passed and how many
were overtaken.  Needs CAP_NET_RAW.

reorder.py --plain DEVICE: has the interface send frames of a wire's size with their
checksums, as a relay like this one needs them.
"""

import ctypes
import fcntl
import random
import select
import signal
import socket
import struct
import sys
import time

HELD_S = 0.005
ONE_IN = 10
OVERTAKEN_BY = 4
SIOCETHTOOL = 0x8946
# ETHTOOL_STXCSUM, _STSO, _SGSO
OFFLOADS = (0x17, 0x1f, 0x24)


def plain(device):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack('II', command, 0))
            fcntl.ioctl(sock, SIOCETHTOOL, struct.pack(
                '16sP16x', device.encode(), ctypes.addressof(value)))


class Way:
    """From one interface to the other."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.held = []  # (when, frames still to pass, frame)
        self.passed = self.overtaken = 0

    def send(self, frame):
        self.target.send(frame)
        self.passed += 1

    def take(self):
        frame, address = self.source.recvfrom(65536)
        if address[2] == socket.PACKET_OUTGOING:
            return  # what this program has sent itself
        if random.randrange(ONE_IN) == 0:
            self.held.append([time.monotonic() + HELD_S, OVERTAKEN_BY, frame])
            return
        self.send(frame)
        for entry in self.held:
            entry[1] -= 1
        self.release()

    def release(self):
        now = time.monotonic()
        for entry in [entry for entry in self.held if entry[0] <= now or entry[1] <= 0]:
            self.held.remove(entry)
            self.overtaken += entry[1] < OVERTAKEN_BY
            self.send(entry[2])


def relay(devices):
    socks = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
             for _ in devices]
    for sock, device in zip(socks, devices):
        sock.bind((device, 0))
    ways = {socks[0]: Way(*socks), socks[1]: Way(*reversed(socks))}
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    print('ready', flush=True)
    while not ended:
        waits = any(way.held for way in ways.values())
        for sock in select.select(socks, [], [], HELD_S if waits else 0.1)[0]:
            ways[sock].take()
        for way in ways.values():
            way.release()
    print('%d frames, %d overtaken' % (sum(way.passed for way in ways.values()),
                                       sum(way.overtaken for way in ways.values())))


if __name__ == '__main__':
    if sys.argv[1] == '--plain':
        plain(sys.argv[2])
    else:
        relay(sys.argv[1:])
