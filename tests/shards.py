# SPDX-License-Identifier: GPL-2.0-or-later
"""Which tests `make check` does not run each time, and how old their last run is.

Each test is in the core, which `make check` always runs, or in exactly one shard: a test of
pytest's by `@fixture.shard('NAME')` (or `longer`, whose short form is in the core), a program of meson's by its suite `soak-NAME`.  What a
shard runs is in soak.py.

tests/soak.ledger has a line for each run of a shard, and of the core, in the order of time:

    SHARD DATE COMMIT INPUTS LOAD PASSED FAILED SKIPPED SECONDS

COMMIT ends with + if the work tree had changes; INPUTS is a hash of the files that the
shard depends on, - if they changed while it ran, LOAD that of the machine as it began (1
minute's average; - of a run of CI's, which does not say), SECONDS are the clock's.  A shard's age is the number of other shards' lines
behind its last one: neither a clock nor the history is asked, so a clone or a rebase changes
nothing.  A run in which nothing passed or failed, for lack of what it needs, has no line.

A shard is *due* if it never ran, if something failed in its last line, if its inputs are others
than that line's, or if that is RENEW lines old.  `make check` fails if a shard's last line says that
something failed, or is TOO_OLD lines old; what never ran is as old as the ledger.
"""

import collections
import datetime
import hashlib
import os
import subprocess

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEDGER = os.path.join(SOURCE, 'tests', 'soak.ledger')
RENEW, TOO_OLD = 32, 40  # more than there are shards
UNKNOWN_SECONDS = 900  # of a shard that never ran: what none may exceed

# meson's suites of the core.
CORE_SUITES = ('unit', 'vguest', 'fuzz')
CORE = 'core'  # its name in the ledger

DAEMON = ['backend', 'include', 'meson.build']
VIRTUAL = DAEMON + ['tests/meson.build', 'tests/vguest', 'tests/unit', 'tests/reset',
                    'tests/softnic', 'tests/clock', 'guest-provider', 'hw/pvrdma-doorbell.c',
                    'hw/pvrdma-doorbell.h', 'hw/pvrdma-eventfd.c', 'hw/pvrdma-eventfd.h']
GUESTS = DAEMON + ['hw', 'guest-driver', 'guest-provider', 'images', 'scripts', 'tests/vm',
                   'tests/conftest.py', 'tests/pytest.ini']

# Parts of the mutations, so that each fits into what is left of a run.
MUTANTS = 3

# What it is for, what it depends on, and where a test says that it is in it: `vm`, by pytest's
# marks; by meson's suites in the build `plain`, `asan` or `tsan`; None: other tests again.
Shard = collections.namedtuple('Shard', 'what inputs by', defaults=(None,))
SHARDS = {
    'driver': Shard('guests: our driver on several processors, hot-plug, other kernels', GUESTS,
                    'vm'),
    'provider': Shard('guests: libraries and drivers of other pairs, no exits', GUESTS, 'vm'),
    'wakeups': Shard('guests: lost wake-ups and posts', GUESTS, 'vm'),
    'moves': Shard('guests that move in a row, with NFS and iSER; saved guests', GUESTS, 'vm'),
    'drawn': Shard('guests that move between three hosts, to places that are drawn', GUESTS,
                   'vm'),
    'restarts': Shard('the daemon replaced in a row, by itself and by systemd',
                      GUESTS + ['packaging', 'tests/vguest'], 'vm'),
    'users': Shard('connection manager, pyverbs on the stock parts, SMC-R and other applications, '
                   'a wire that fails, siw', GUESTS, 'vm'),
    'rnic-l1': Shard('the daemon on a host with an RDMA NIC: soft-RoCE of Linux 6.12, siw; a VM '
                     'in it; demo',
                     GUESTS + ['tests/l1', 'tests/softnic', 'tests/vguest', 'tests/bench'], 'vm'),
    'rnic-suites': Shard('virtual guests over the channels of soft-RoCE, in such a host',
                         GUESTS + ['tests/l1', 'tests/vguest', 'tests/clock',
                                   'tests/meson.build'], 'vm'),
    'storage': Shard('NVMe, NFS and iSER for minutes', GUESTS, 'vm'),
    'packages': Shard('packages installed, used and removed in guests', GUESTS + ['packaging'],
                      'vm'),
    'demos': Shard('the demos, two adapters, network devices, statistics, events',
                   GUESTS + ['packaging', 'Makefile'], 'vm'),
    'plain': Shard('virtual guests in the plain build by the real clock', VIRTUAL, 'plain'),
    'quiet': Shard('judged times, nothing beside them', VIRTUAL, 'plain'),
    'asan': Shard('the rest of vguest with AddressSanitizer and UndefinedBehaviorSanitizer',
                  VIRTUAL, 'asan'),
    'rnic': Shard('virtual guests over channels of an RDMA NIC in memory, with AddressSanitizer '
                  'and UndefinedBehaviorSanitizer', VIRTUAL, 'asan'),
    'tsan': Shard('the rest of unit and vguest with ThreadSanitizer', VIRTUAL, 'tsan'),
    'rnic-tsan': Shard('virtual guests over channels of an RDMA NIC in memory, with '
                       'ThreadSanitizer', VIRTUAL, 'tsan'),
    'rounds': Shard('virtual guests: what only some of many rounds show; 1,000 moves', VIRTUAL),
    'rounds-asan': Shard('the same with AddressSanitizer and UndefinedBehaviorSanitizer',
                         VIRTUAL),
    'rounds-tsan': Shard('the same with ThreadSanitizer', VIRTUAL),
    'fuzz': Shard('each fuzz target for a minute', DAEMON + ['tests/fuzz', 'tests/unit/testdev']),
    **{'mutants-%d' % part: Shard('checks taken out one by one (tests/mutations), part %d' % part,
                                  VIRTUAL + ['tests/mutations'])
       for part in range(1, MUTANTS + 1)},
    'hw': Shard("the QEMU device's tests in a QEMU with AddressSanitizer and "
                'UndefinedBehaviorSanitizer', DAEMON + ['hw', 'scripts', 'tests/hw', 'tests/conftest.py']),
    'debian13': Shard('the daemon built and tested in a Debian 13 root',
                      VIRTUAL + ['configure', 'Makefile', 'tests/debian13.sh', 'scripts',
                                 'tests/fuzz']),
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
            if not os.path.isfile(path):
                continue  # an editor's lock
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


class Tree:
    """What is tested: the commit, and each shard's inputs as the run began."""

    def __init__(self):
        self.commit = commit()
        self.inputs = {name: inputs(name) for name in SHARDS}

    def unchanged(self, name):
        """A shard's inputs at its end."""
        return self.inputs[name] if inputs(name) == self.inputs[name] else '-'


def commit():
    """What is checked out, with + if there are changes besides the ledger's."""
    def git(*args):
        return subprocess.run(['git', *args], cwd=SOURCE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False,
                              universal_newlines=True).stdout.strip()
    changed = git('status', '--porcelain', '--', '.', ':!tests/soak.ledger')
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
        """How many shards' lines are behind its last one."""
        names = [line.shard for line in reversed(self.lines) if line.shard != CORE]
        return names.index(name) if name in names else len(names)

    def seconds(self, name):
        """How long it takes, to go by its last run that passed."""
        line = self.last(name, passed=True)
        return line.seconds if line else UNKNOWN_SECONDS

    def stale(self):
        """All shards, the one that waits longest first."""
        order = list(SHARDS)
        return sorted(order, key=lambda name: (self.last(name) is not None, -self.age(name),
                                               order.index(name)))

    def due(self, tree):
        """The shards to run, the one that waits longest first."""
        return [name for name in self.stale() if self.is_due(name, tree)]

    def is_due(self, name, tree):
        line = self.last(name)
        return not line or self.is_red(name) or self.is_old(name) or \
            line.inputs != tree.inputs[name]

    def is_old(self, name):
        return self.age(name) >= RENEW

    def is_red(self, name):
        line = self.last(name)
        return bool(line and line.failed)

    def problems(self, ran=()):
        """What of the ledger fails `make check`; shards that @ran in it count by themselves."""
        for name in SHARDS:
            line = self.last(name)
            if name in ran:
                continue
            if self.is_red(name):
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
