#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The shards and their ledger: nothing is in no shard, and what is old or red is said.

usage: test-ledger.py SOURCE BUILDDIR

Prints TAP.
"""

import contextlib
import functools
import importlib.util
import io
import json
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import tap

SOURCE, BUILD = sys.argv[1:]
sys.path.insert(0, os.path.join(SOURCE, 'tests'))
import runner
import shards
import soak

NAMES = list(shards.SHARDS)
TREE = shards.Tree()


def ledger_of(folder, *lines):
    """A ledger of lines (shard, inputs, failed)."""
    path = os.path.join(folder, 'ledger')
    with open(path, 'w') as stream:
        stream.write('# a comment\n\n')
        for name, inputs, failed in lines:
            stream.write('%s 2026-11-27 abcdef0 %s 0.5 10 %d 1 99\n' % (name, inputs, failed))
    return shards.Ledger(path)


def now(name):
    return (name, shards.inputs(name), 0)


def table(_):
    """Each shard runs something, has inputs that exist, and no name twice."""
    if list(soak.TASKS) != NAMES:
        yield 'soak.py runs %s, the table has %s' % (list(soak.TASKS), NAMES)
    if not len(NAMES) <= shards.RENEW < shards.TOO_OLD:
        yield 'behind a run of all shards some are old'
    for name in NAMES:
        for path in shards.SHARDS[name].inputs:
            if not os.path.exists(os.path.join(SOURCE, path)):
                yield '%s: there is no %s' % (name, path)


def own_ledger(_):
    """The one in the tree can be read; `make check` itself judges it."""
    try:
        shards.Ledger()
    except SystemExit as exc:
        yield str(exc)


def due(folder):
    """Unknown, changed, red and aged shards; the stalest first."""
    first, second, third = NAMES[:3]
    ledger = ledger_of(folder, now(first), (second, 'other', 0), (third, shards.inputs(third), 1))
    wanted = [name for name in NAMES if name != first]
    if sorted(ledger.due(TREE)) != sorted(wanted):
        yield 'due: %s' % ledger.due(TREE)
    if ledger.due(TREE)[:len(NAMES) - 3] != NAMES[3:] or ledger.due(TREE)[-2:] != [second, third]:
        yield 'in another order: %s' % ledger.due(TREE)
    everything = [now(name) for name in NAMES]
    ledger = ledger_of(folder, *everything)
    if ledger.due(TREE):
        yield 'due behind a run of all: %s' % ledger.due(TREE)
    ledger = ledger_of(folder, *everything, *[now(first)] * shards.RENEW)
    if first in ledger.due(TREE) or sorted(ledger.due(TREE)) != sorted(NAMES[1:]):
        yield 'behind %d lines: %s' % (shards.RENEW, ledger.due(TREE))
    ledger = ledger_of(folder, *everything, *[(shards.CORE, '-', 0)] * shards.TOO_OLD)
    if ledger.due(TREE) or list(ledger.problems()):
        yield 'the core makes shards old'
    # What changed while it ran.
    if not ledger_of(folder, *everything, (first, '-', 0)).is_due(first, TREE):
        yield 'inputs that changed are those of a line'


def problems(folder):
    first, second = NAMES[:2]
    everything = [now(name) for name in NAMES]
    for lines, wanted in (
            (everything, []),
            ([], []),
            ([now(first)] * (shards.TOO_OLD - 1), []),
            ([now(first)] * shards.TOO_OLD, NAMES[1:]),
            (everything + [now(first)] * shards.TOO_OLD, NAMES[1:]),
            (everything + [(second, 'x', 2)], [second]),
            (everything + [(second, 'x', 2), now(second)], []),
            (everything + [(shards.CORE, '-', 2)], []),
            (everything + [('nobody', 'x', 0)], ['nobody'])):
        found = list(ledger_of(folder, *lines).problems())
        if list(ledger_of(folder, *lines).problems(wanted)) and 'nobody' not in wanted:
            yield 'what ran counts twice'
        if len(found) != len(wanted) or \
                not all('shard %s' % name in text for name, text in zip(wanted, found)):
            yield '%s ...: %s' % (lines[-1:], found)


def added(folder):
    """A line that is written is read again as it was; without writing only this one has it."""
    ledger = ledger_of(folder, now(NAMES[0]))
    counts = runner.Counts('x')
    counts.passed, counts.skipped, counts.began, counts.ended = 7, 2, 1.0, 61.6
    ledger.add(NAMES[1], counts, 0.25, 'abc+', 'hash')
    ledger.add(NAMES[2], counts, 0.25, 'abc+', 'hash', writes=False)
    again = shards.Ledger(ledger.path)
    line = again.last(NAMES[1])
    if line is None or line != ledger.last(NAMES[1]) or line.seconds != 61:
        yield 'it is read as %s' % (line,)
    if again.last(NAMES[2]) or not ledger.last(NAMES[2]):
        yield 'written, or forgotten'
    if 'at abc+' not in again.passed_at(NAMES[1]) or 'never' not in again.passed_at(NAMES[2]):
        yield again.passed_at(NAMES[1])


def bad_line(folder):
    path = os.path.join(folder, 'ledger')
    for text in ('driver 2026-11-27 abc hash 0.1 1 2\n', 'driver d c h 0.1 x 0 0 1\n',
                 'driver d c h 0.1 1 0 0 1 1\n'):
        with open(path, 'w') as stream:
            stream.write(text)
        try:
            shards.Ledger(path)
            yield 'taken: ' + text
        except SystemExit:
            pass


def hashes(folder):
    """A changed file, a new one and a new name change the hash; a document does not."""
    source, shards.SOURCE = shards.SOURCE, folder
    table_of = dict(shards.SHARDS)
    try:
        shards.SHARDS['x'] = shards.Shard('x', ['top', 'file'])
        os.makedirs(os.path.join(folder, 'top', 'below'))
        seen = []
        for path, text in (('file', 'a'), ('file', 'b'), ('top/below/c', ''), ('top/d', 'x'),
                           ('top/below/d', 'x')):
            with open(os.path.join(folder, path), 'w') as stream:
                stream.write(text)
            seen.append(shards.inputs('x'))
        if len(set(seen)) != len(seen):
            yield str(seen)
        os.symlink('nowhere', os.path.join(folder, 'top', '.#lock'))
        for path in ('top/README.md', 'other'):
            with open(os.path.join(folder, path), 'w') as stream:
                stream.write('words')
        os.makedirs(os.path.join(folder, 'top', '__pycache__'))
        open(os.path.join(folder, 'top', '__pycache__', 'x'), 'w').close()
        if shards.inputs('x') != seen[-1]:
            yield 'documents count'
    finally:
        shards.SOURCE = source
        shards.SHARDS.clear()
        shards.SHARDS.update(table_of)


class Args:
    budget = 28
    builddir = 'nowhere'


def budget(folder):
    """A shard that is old has more time, and one that only skipped has no line."""
    check = load('run-check')
    minutes = (time.monotonic() - check.START) / 60
    old = ledger_of(folder, (NAMES[0], 'x', 0), *[(NAMES[1], 'x', 0)] * shards.RENEW)
    for name, args_budget, wanted in ((NAMES[0], minutes + 2, True), (NAMES[1], minutes + 2, True),
                                      (NAMES[0], minutes + 1, True), (NAMES[1], minutes + 1, False),
                                      (NAMES[0], (minutes + 1) / 2, False)):
        Args.budget = args_budget
        if check.fits(name, Args, old) != wanted:
            yield '%s by %s: not %s' % (name, args_budget, wanted)
    tasks, soak.TASKS[NAMES[2]] = soak.TASKS[NAMES[2]], lambda args: [
        runner.said(runner.Counts('x'), 'skipped', 'for a reason')]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            counts = soak.run_shard(NAMES[2], folder, old, TREE, True)
        if old.last(NAMES[2]) or counts.skipped != 1:
            yield 'a line of what was skipped: %s' % (old.last(NAMES[2]),)
    finally:
        soak.TASKS[NAMES[2]] = tasks


def load(name):
    spec = importlib.util.spec_from_file_location('loaded', os.path.join(
        SOURCE, 'tests', name + '.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suites(folder):
    """Each program of this build is in the core or in a shard; others would be named."""
    yield from runner.foreign_suites(BUILD)
    os.mkdir(os.path.join(folder, 'meson-info'))
    with open(os.path.join(folder, 'meson-info', 'intro-tests.json'), 'w') as stream:
        json.dump([{'name': 'good', 'suite': ['p:unit']},
                   {'name': 'none', 'suite': ['p']},
                   {'name': 'unknown', 'suite': ['p:soak-nobody']},
                   {'name': 'not here', 'suite': ['p:soak-tsan']},
                   {'name': 'no suite', 'suite': ['p:soak-driver']},
                   {'name': 'here', 'suite': ['p:soak-plain']},
                   {'name': 'two', 'suite': ['p:unit', 'p:soak-plain']}], stream)
    found = [text.partition(':')[0] for text in runner.foreign_suites(folder)]
    if found != ['none', 'unknown', 'not here', 'no suite', 'two']:
        yield 'named: %s' % found


def in_folder(function):
    with tempfile.TemporaryDirectory(prefix='test-ledger-') as folder:
        yield from function(folder)


def main():
    checks = (table, own_ledger, due, problems, added, bad_line, hashes, budget, suites)
    return tap.run([(function.__name__, functools.partial(in_folder, function))
                    for function in checks])


if __name__ == '__main__':
    sys.exit(main())
