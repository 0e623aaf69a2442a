# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that migrate: from one QEMU to another, whose adapter has another socket.

    guest = migrate(guest, daemon.socket('vm2b'))

The guest keeps its name, addresses and jobs: its agent follows.  Its cables must end
in guests that listen (that were started first): these take the new QEMU's connection
when the old one's ends.
"""

import copy
import os
import time

from lib.pvrdma_vm import VmError, say

# The daemon's side of a move is a few ms; memory is what takes time.
MOVE_TIMEOUT = 120


def another(guest, socket, host, args):
    """Another QEMU for @guest, with the adapter on the daemon's @socket."""
    target = copy.copy(guest)
    target.socket = socket
    if host:
        target.host = host
    target.console = guest.session.path('%s-%d.con' % (guest.name, guest.generation + 1))
    target.extra_args = [arg for arg in guest.extra_args
                         if not str(arg).startswith(('-incoming', 'unix:', 'file:'))]
    target.extra_args += args
    target.proc = None
    target.launch()
    return target


def target_of(guest, socket, host=None, state=None):
    """One that waits for @guest; with @state it loads that file."""
    way_in = state or guest.session.path('%s-%d.move' % (guest.name, guest.generation))
    target = another(guest, socket, host,
                     ['-incoming', ('file:' if state else 'unix:') + way_in])
    target.way_in = way_in
    end = time.monotonic() + 20 * guest.patience
    while not os.path.exists(target.way_in):
        if not target.alive or time.monotonic() > end:
            raise VmError('%s: no QEMU that waits for it' % guest.name)
        time.sleep(0.02)
    return target


def begin(guest, target, downtime=1000, **capabilities):
    """Set @guest in motion; @downtime: ms that the last of its memory may take.  Its QEMU
    hears of what becomes of it at the target."""
    guest.qmp('migrate-set-capabilities', capabilities=[
        {'capability': name.replace('_', '-'), 'state': state}
        for name, state in dict(capabilities, return_path=True).items()])
    guest.qmp('migrate-set-parameters', **{'max-bandwidth': 1 << 30,
                                           'downtime-limit': downtime})
    guest.qmp('migrate', uri='unix:' + target.way_in)


def wait(guest, *states):
    """Wait for the migration to be in one of @states; what QEMU says of it."""
    end = time.monotonic() + MOVE_TIMEOUT * guest.patience
    while True:
        info = guest.qmp('query-migrate')
        if info.get('status') in states:
            return info
        if info.get('status') in ('failed', 'cancelled', 'completed') or \
                time.monotonic() > end:
            raise VmError('%s: migration: %s' % (guest.name, info))
        time.sleep(0.05)


def has_moved(guest, target):
    """Once the target runs."""
    target.wait_status('running')
    guest.proc.kill()
    guest.proc.wait()
    target.agent.moved()


def save(guest, path):
    """Its state into a file; it stands still from then on."""
    guest.qmp('migrate', uri='file:' + path)
    wait(guest, 'completed')


def instead(guest, begin):
    """@begin makes another QEMU, which goes on, instead of the guest's own; returns it."""
    guest.agent.hold()
    guest.proc.kill()
    guest.proc.wait()
    target = begin()
    guest.agent.follow(target._sock('ctl'), lambda: target.alive)
    has_moved(guest, target)
    return target


def restore(guest, path):
    """From that file."""
    return instead(guest, lambda: target_of(guest, guest.socket, state=path))


def load_snapshot(guest, tag, args):
    """From a snapshot, in what @args add."""
    return instead(guest, lambda: another(guest, guest.socket, None,
                                          args + ['-loadvm', tag]))


def migrate(guest, socket, host=None, downtime=1000):
    """Move @guest; returns it as it is then, with what QEMU says of its last_move.  Its
    old QEMU has ended."""
    return together([(guest, socket, host)], downtime)[0]


def together(moves, downtime=1000, held=None):
    """Move several guests at the same time: (guest, socket, host) of each; returns them
    as they are then.  With @held all stand still when the last of them does, until that
    returns."""
    targets = []
    for guest, socket, host in moves:
        target = target_of(guest, socket, host)
        guest.agent.follow(target._sock('ctl'), lambda target=target: target.alive)
        targets.append(target)
    guests = [guest for guest, _, _ in moves]
    for guest, target in zip(guests, targets):
        begin(guest, target, downtime, pause_before_switchover=held is not None)
    if held is not None:
        for guest in guests:
            wait(guest, 'pre-switchover')
        held()
        for guest in guests:
            guest.qmp('migrate-continue', state='pre-switchover')
    for guest, target in zip(guests, targets):
        target.last_move = wait(guest, 'completed')
    for guest, target in zip(guests, targets):
        has_moved(guest, target)
        say('%s has moved, %s ms of downtime' % (guest.name,
                                                 target.last_move.get('downtime')))
    return targets
