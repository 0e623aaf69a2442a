# SPDX-License-Identifier: GPL-2.0-or-later
"""Which tests `make check` does not run each time, and how old their last run is.

Each test is in the core, which `make check` always runs, or in exactly one shard: a test of
pytest's by `@fixture.shard('NAME')` (or `longer`, whose short form is in the core), a program of meson's by its suite `soak-NAME`.  What a
shard runs is in soak.py.

tests/soak.ledger has a line for each run of a shard, and of the core, in the order of time:

    SHARD DATE COMMIT INPUTS LOAD PASSED FAILED SKIPPED SECONDS

COMMIT ends with + if the work tree had changes; INPUTS is a hash of the files that the
shard depends on, LOAD that of the machine as it began (1 minute's average), SECONDS are the
clock's.  A shard's age is the number of lines behind its last one: neither a clock nor the
history is asked, so a clone or a rebase changes nothing.

A shard is *due* if its inputs are others than its last line's, or if that is RENEW lines
old.  `make check` fails if a shard's last line says that something failed, or is TOO_OLD
lines old; what never ran is as old as the ledger.
"""

import collections
import datetime
import hashlib
import os
import subprocess

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEDGER = os.path.join(SOURCE, 'tests', 'soak.ledger')
RENEW, TOO_OLD = 25, 40
UNKNOWN_SECONDS = 900  # of a shard that never ran: what none may exceed

# meson's suites of the core.
CORE_SUITES = ('unit', 'vguest', 'fuzz')
CORE = 'core'  # its name in the ledger

DAEMON = ['backend', 'include', 'meson.build']
VIRTUAL = DAEMON + ['tests/vguest', 'tests/unit', 'tests/reset', 'tests/clock',
                    'guest-provider', 'hw/pvrdma-doorbell.c', 'hw/pvrdma-doorbell.h']
GUESTS = DAEMON + ['hw', 'guest-driver', 'guest-provider', 'images', 'tests/vm',
                   'tests/conftest.py']

Shard = collections.namedtuple('Shard', 'what inputs')
SHARDS = {
    'driver': Shard('guests: our driver on several processors, hot-plug, other kernels', GUESTS),
    'provider': Shard('guests: libraries and drivers of other pairs, no exits', GUESTS),
    'wakeups': Shard('guests: lost wake-ups and posts', GUESTS),
    'moves': Shard('guests that move in a row, with NFS and iSER; saved guests', GUESTS),
    'drawn': Shard('guests that move between three hosts, to places that are drawn', GUESTS),
    'restarts': Shard('the daemon replaced in a row, by itself and by systemd',
                      GUESTS + ['packaging']),
    'users': Shard('connection manager, pyverbs on the stock parts, a wire that fails, siw',
                   GUESTS),
    'storage': Shard('NVMe, NFS and iSER for minutes', GUESTS),
    'demos': Shard('the demos, two adapters, network devices, statistics, events',
                   GUESTS + ['packaging', 'Makefile']),
    'plain': Shard('virtual guests in the plain build by the real clock', VIRTUAL),
    'quiet': Shard('judged times, nothing beside them', VIRTUAL),
    'tsan': Shard('the rest of unit and vguest with ThreadSanitizer', VIRTUAL),
    'rounds': Shard('virtual guests: what only some of many rounds show; 1,000 moves', VIRTUAL),
    'rounds-asan': Shard('the same with AddressSanitizer and UndefinedBehaviorSanitizer',
                         VIRTUAL),
    'rounds-tsan': Shard('the same with ThreadSanitizer', VIRTUAL),
    'fuzz': Shard('each fuzz target for a minute', DAEMON + ['tests/fuzz', 'tests/unit/testdev']),
    'mutants': Shard('checks taken out one by one (tests/mutations)',
                     VIRTUAL + ['tests/mutations']),
    'hw': Shard("the QEMU device's tests in a QEMU with AddressSanitizer and "
                'UndefinedBehaviorSanitizer', DAEMON + ['hw', 'tests/hw', 'tests/conftest.py']),
    'debian13': Shard('the daemon built and tested in a Debian 13 root',
                      VIRTUAL + ['configure', 'Makefile', 'tests/debian13.sh', 'scripts']),
    'debug-driver': Shard('driver and data check in guests whose kernel has lockdep, KASAN and '
                          'DMA debugging', GUESTS),
    'debug-provider': Shard('the provider in such guests', GUESTS),
    'libvirt': Shard('`virsh migrate` between two libvirtd, save, restore',
                     GUESTS + ['tests/libvirt']),
}

Line = collections.namedtuple(
    'Line', 'shard date commit inputs load passed failed skipped seconds')


def inputs(name):
    """The hash of what a shard depends on; documents are no part of it."""
    digest = hashlib.sha256()
    for top in sorted(SHARDS[name].inputs):
        for path in files(os.path.join(SOURCE, top)):
            with open(path, 'rb') as stream:
                body = stream.read()
            head = '%s %d\n' % (os.path.relpath(path, SOURCE), len(body))
            digest.update(head.encode() + body)
    return digest.hexdigest()[:12]


def files(top):
    if os.path.isfile(top):
        yield top
    for folder, below, names in os.walk(top):
        below[:] = sorted(name for name in below if name != '__pycache__')
        for name in sorted(names):
            if not name.endswith(('.md', '.pyc')):
                yield os.path.join(folder, name)


def commit():
    """What is checked out, with + if there are changes besides the ledger's."""
    def git(*args):
        return subprocess.run(['git', *args], cwd=SOURCE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False,
                              universal_newlines=True).stdout.strip()
    changed = git('status', '--porcelain', '--untracked-files=no', '--', '.',
                  ':!tests/soak.ledger')
    return (git('rev-parse', '--short=7', 'HEAD') or 'unknown') + ('+' if changed else '')


class Ledger:
    def __init__(self, path=LEDGER):
        self.path = path
        self.lines = []
        if not os.path.exists(path):
            return
        with open(path) as stream:
            for number, text in enumerate(stream, 1):
                words = text.split()
                if not words or words[0].startswith('#'):
                    continue
                try:
                    line = Line(*words[:5], *map(int, words[5:]))
                except (TypeError, ValueError):
                    raise SystemExit('%s:%d: this is no line of the ledger: %s'
                                     % (path, number, text.rstrip())) from None
                self.lines.append(line)

    def last(self, name, passed=False):
        """Its last line, or its last without failures, or None."""
        return next((line for line in reversed(self.lines) if line.shard == name and
                     not (passed and line.failed)), None)

    def age(self, name):
        """How many lines are behind its last one."""
        for number, line in enumerate(reversed(self.lines)):
            if line.shard == name:
                return number
        return len(self.lines)

    def seconds(self, name):
        """How long it takes, to go by its last run."""
        line = self.last(name)
        return line.seconds if line else UNKNOWN_SECONDS

    def stale(self):
        """All shards, the one that waits longest first."""
        order = list(SHARDS)
        return sorted(order, key=lambda name: (self.last(name) is not None, -self.age(name),
                                               order.index(name)))

    def due(self):
        """The shards to run, the one that waits longest first."""
        return [name for name in self.stale() if self.is_due(name)]

    def is_due(self, name):
        line = self.last(name)
        return not line or bool(line.failed) or self.age(name) >= RENEW or \
            line.inputs != inputs(name)

    def problems(self):
        """What of the ledger fails `make check`."""
        for name in SHARDS:
            line = self.last(name)
            if line and line.failed:
                yield 'shard %s: %d failed at %s' % (name, line.failed, line.commit)
            elif self.age(name) >= TOO_OLD:
                yield 'shard %s: its last run is %d lines of the ledger old' % (
                    name, self.age(name))
        for line in self.lines:
            if line.shard not in SHARDS and line.shard != CORE:
                yield 'shard %s, of a line, is not in the table' % line.shard

    def passed_at(self, name):
        """Of a shard that is left out."""
        line = self.last(name, passed=True)
        return 'last passed %s at %s' % (line.date, line.commit) if line else 'never passed yet'

    def add(self, name, counts, load, at, hashed, writes=True):
        """A run has ended: @counts of it; @load, the commit @at and the inputs' hash as it
        began.  Without @writes this object alone knows it."""
        line = Line(name, datetime.date.today().isoformat(), at, hashed, '%.1f' % load,
                    counts.passed, counts.failed, counts.skipped, round(counts.seconds))
        self.lines.append(line)
        if not writes:
            return
        with open(self.path, 'a') as stream:
            stream.write(' '.join(map(str, line)) + '\n')
