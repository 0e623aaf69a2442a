#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages by RDS in a guest, whose bytes both ends compare.

usage: rds-talk.py serve OWN PORT COUNT
       rds-talk.py call OWN PORT COUNT ADDRESS

Rounds of one message each of SIZES, which the server sends back.
"""

import random
import socket
import sys

SIZES = (8, 100, 4096, 4097, 20000, 65536)


def main(what, own, port, count, address=None):
    sock = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
    sock.bind((own, int(port) if what == 'serve' else 0))
    sock.settimeout(60)
    print('ready', flush=True)
    for number in range(int(count)):
        for size in SIZES:
            text = random.Random('%d %d' % (number, size)).randbytes(size)
            if what == 'call':
                sock.sendto(text, (address, int(port)))
            got, sender = sock.recvfrom(1 << 17)
            if got != text:
                print('message %d of %d bytes is wrong' % (number, size))
                return 1
            if what == 'serve':
                sock.sendto(text, sender)
    print('%d messages right' % (int(count) * len(SIZES)), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
