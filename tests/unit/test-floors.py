#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Do arrows run up?  See backend/floors.

Reads every #include "..." below backend/ and the symbols that each object of the
daemon's library leaves undefined, and reports, as TAP, every use of a room by one
on a line above it in backend/floors.  Also tests itself: arrows that run up, made
for the purpose, must be found.  The same symbols say who moves the bytes of links.

usage: test-floors.py SOURCE-DIR NM ARCHIVE
"""

import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import tap

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


class Floors:
    """The order of the rooms, and which room a file belongs to."""

    def __init__(self, path):
        self.order = {}
        self.places = {}
        with open(path) as file:
            for line in file:
                if line.startswith('#') or not line.strip():
                    continue
                _, room, *files = line.split()
                self.order[room] = len(self.order)
                for place in files:
                    self.places[place] = room

    def room(self, path):
        """Of a file, named from backend/; None: not one of ours."""
        folder = path.split('/')[0] + '/' if '/' in path else None
        return self.places.get(folder or path)

    def arrow_runs_up(self, user, used):
        return self.order[used] > self.order[user]


def sources(backend):
    for folder, _, files in os.walk(backend):
        for name in files:
            if name.endswith(('.c', '.h')):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, backend), path


def included(path, backend):
    """Files of backend/ that the file at @path includes, named from backend/."""
    with open(path) as file:
        text = file.read()
    for name in INCLUDE.findall(text):
        beside = os.path.relpath(os.path.join(os.path.dirname(path), name), backend)
        for candidate in (beside, name):
            if os.path.exists(os.path.join(backend, candidate)):
                yield candidate
                break


def bad_includes(floors, backend):
    for name, path in sources(backend):
        room = floors.room(name)
        if room is None:
            yield '%s is in no room' % name
            continue
        for used in included(path, backend):
            if floors.room(used) and floors.arrow_runs_up(room, floors.room(used)):
                yield '%s (%s) includes %s (%s)' % (name, room, used, floors.room(used))


def object_room(floors, member):
    """meson names an object after its source: datapath_sched.c.o."""
    name = os.path.basename(member)[:-len('.o')]
    for place, room in floors.places.items():
        if place.endswith('/') and name.startswith(place[:-1] + '_'):
            return room
    return floors.room(name)


def symbols(nm, archive):
    """Of each object: what it defines and what it needs."""
    out = subprocess.run([nm, '--format=posix', archive], check=True,
                         stdout=subprocess.PIPE, universal_newlines=True).stdout
    objects, current = {}, None
    for line in out.splitlines():
        if line.endswith(':'):
            member = line[:-1]
            if member.endswith(']'):
                member = member[member.index('[') + 1:-1]
            current = objects.setdefault(member, (set(), set()))
        elif current is not None and line.strip():
            symbol, kind = line.split()[:2]
            current[1 if kind == 'U' else 0].add(symbol)
    return objects


def bad_symbols(floors, objects):
    home = {}
    for member, (defined, _) in objects.items():
        for symbol in defined:
            home.setdefault(symbol, member)
    for member, (_, needed) in sorted(objects.items()):
        room = object_room(floors, member)
        if room is None:
            yield '%s is in no room' % member
            continue
        for symbol in sorted(needed):
            used = home.get(symbol) and object_room(floors, home[symbol])
            if used and floors.arrow_runs_up(room, used):
                yield '%s (%s) uses %s of %s' % (member, room, symbol, used)


# What moves bytes of a descriptor, and who of transport/link may call it: a link's are
# stream.c's alone, so that TLS has one place; what is there of a connection of which nothing
# is known yet is looked at by listen.c; queue.c's are an eventfd's.
MOVES_BYTES = {'read', 'readv', 'recv', 'recvfrom', 'recvmsg', 'recvmmsg', 'write', 'writev',
               'send', 'sendto', 'sendmsg', 'sendmmsg', 'sendfile', 'splice'}
LINKS = 'transport_link_'
MAY_MOVE = {'stream': MOVES_BYTES, 'listen': {'recv'}, 'queue': {'read', 'write'}}


def bad_moves(objects):
    for member, (_, needed) in sorted(objects.items()):
        name = os.path.basename(member)
        if name.startswith(LINKS):
            # recv() is __recv_chk() where the compiler can tell how long the buffer is.
            calls = {re.sub('^__(.*)_chk$', r'\1', symbol) for symbol in needed}
            may = MAY_MOVE.get(name[len(LINKS):-len('.c.o')], set())
            for symbol in sorted(calls & MOVES_BYTES - may):
                yield '%s calls %s()' % (member, symbol)


# Those who use channels know them, not the other way.
def bad_channels(backend):
    for name, path in sources(backend):
        if name.startswith('transport/rnic/'):
            for used in included(path, backend):
                if used.startswith('transport/iwarp/'):
                    yield '%s includes %s' % (name, used)


def bad_channel_symbols(objects):
    home = {symbol: member for member, (defined, _) in objects.items() for symbol in defined}
    for member, (_, needed) in sorted(objects.items()):
        if os.path.basename(member).startswith('transport_rnic_'):
            for symbol in sorted(needed):
                if os.path.basename(home.get(symbol, '')).startswith('transport_iwarp_'):
                    yield '%s uses %s' % (member, symbol)


# What waits for a VM's token or for a lock that a worker holds through a page fault: transport/
# is called by the main loop outside of coroutines (iwarp/deferred.c).
WAITS = {'vm_token_take', 'vm_qp_lock', 'vm_cq_lock', 'grace_wait'}


def bad_waits(floors, objects):
    for member, (_, needed) in sorted(objects.items()):
        if object_room(floors, member) == 'transport':
            for symbol in sorted(needed & WAITS):
                yield '%s calls %s()' % (member, symbol)


# What asks the name service, which may wait for other hosts, with the main loop.
NAMES = {'getpwnam', 'getpwnam_r', 'getpwuid', 'getpwuid_r', 'getgrnam', 'getgrnam_r',
         'getgrgid', 'getgrgid_r', 'getgrouplist', 'initgroups', 'getaddrinfo', 'gethostbyname',
         'getnameinfo', 'g_resolver_lookup_by_name', 'g_get_home_dir', 'g_get_user_name'}


def asks_for_names(objects):
    for member, (_, needed) in sorted(objects.items()):
        for symbol in sorted(needed & NAMES):
            yield '%s calls %s()' % (member, symbol)


def self_test(floors):
    """Arrows made for the purpose are found, and the ones down are not."""
    passing = {LINKS + 'link.c.o': (set(), {'__recv_chk'}),
               LINKS + 'stream.c.o': (set(), {'sendmsg'})}
    up = {'guest_mem.c.o': (set(), {'vm_attach'}), 'vm_attach.c.o': ({'vm_attach'}, set())}
    down = {'guest_mem.c.o': ({'guest_fault'}, set()), 'vm_attach.c.o': (set(), {'guest_fault'})}
    waits = {'transport_iwarp_setup_bind.c.o': (set(), {'vm_token_take', 'vm_token_try'}),
             'verbs_qp.c.o': (set(), {'vm_token_take'})}
    channels = {'transport_rnic_end.c.o': (set(), {'flow_lose'}),
                'transport_iwarp_flow.c.o': ({'flow_lose'}, {'rnic_pair_want'}),
                'transport_rnic_pair.c.o': ({'rnic_pair_want'}, set())}
    return (list(bad_channel_symbols(channels)) == ['transport_rnic_end.c.o uses flow_lose'] and
            list(bad_waits(floors, waits)) ==
            ['transport_iwarp_setup_bind.c.o calls vm_token_take()'] and
            list(bad_moves(passing)) == [LINKS + 'link.c.o calls recv()'] and
            len(list(bad_symbols(floors, up))) == 1 and
            len(list(asks_for_names({'a.c.o': (set(), {'getpwnam'})}))) == 1 and
            not list(bad_symbols(floors, down)) and
            floors.arrow_runs_up('datapath', 'transport') and
            not floors.arrow_runs_up('transport', 'datapath'))


def main():
    source, nm, archive = sys.argv[1:]
    backend = os.path.join(source, 'backend')
    floors = Floors(os.path.join(backend, 'floors'))
    objects = symbols(nm, archive)
    return tap.run([
        ('the test finds arrows', lambda: [] if self_test(floors) else ['it does not']),
        ('includes', lambda: bad_includes(floors, backend)),
        ('symbols', lambda: bad_symbols(floors, objects)),
        ('bytes of links pass stream.c', lambda: bad_moves(objects) if any(
            LINKS + 'stream' in member for member in objects) else ['there is no stream.c']),
        ('transport/rnic/ uses nothing of transport/iwarp/', lambda: [
            *bad_channels(backend), *bad_channel_symbols(objects)]),
        ('transport/ waits for no token', lambda: bad_waits(floors, objects)),
        ('nobody waits for names', lambda: asks_for_names(objects)),
        ('all objects were read', lambda: [] if len(objects) > 20 else
         ['only %d objects in %s' % (len(objects), archive)]),
    ])


if __name__ == '__main__':
    sys.exit(main())
