#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Attach this terminal to the console of a guest that `make demo-shell` runs.

usage: console.py vm1|vm2|SOCKET          Ctrl-] leaves, the guest stays up
"""

import os
import select
import socket
import sys
import termios
import tty

LEAVE = b'\x1d'


def connect(name):
    """The console's socket of a guest by name, or by its path."""
    build = os.environ.get('PVRDMA_BUILD') or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), '..', '..', 'build')
    path = name if '/' in name else os.path.join(build, 'demo-shell', name)
    # The link's target is short enough for a socket address, the link may
    # not be.
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(os.path.realpath(path))
    return sock


def relay(sock, keyboard, screen):
    """Copy both ways until either end is over."""
    while True:
        ready, _, _ = select.select([sock, keyboard], [], [])
        if sock in ready:
            data = sock.recv(4096)
            if not data:
                return 'the guest has ended'
            os.write(screen, data)
        if keyboard in ready:
            data = os.read(keyboard, 1024)
            if not data or LEAVE in data:
                return 'detached'
            sock.sendall(data)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith('-'):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        sock = connect(sys.argv[1])
    except OSError as exc:
        print('console: %s: %s (is "make demo-shell" running?)'
              % (sys.argv[1], exc), file=sys.stderr)
        return 1
    keyboard = sys.stdin.fileno()
    saved = termios.tcgetattr(keyboard) if os.isatty(keyboard) else None
    print('attached; Ctrl-] leaves, Enter shows the prompt\r', flush=True)
    try:
        if saved:
            tty.setraw(keyboard)
        sock.sendall(b'\n')
        end = relay(sock, keyboard, sys.stdout.fileno())
    finally:
        if saved:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)
    print('\n%s' % end)
    return 0


if __name__ == '__main__':
    sys.exit(main())
