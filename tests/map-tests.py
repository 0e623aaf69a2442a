#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Where are the tests of another revision today?

usage: map-tests.py [--quiet] OLDREV

Lists the tests of OLDREV, checked out into a temporary worktree, and those of this tree:
pytest's of tests/vm (also with the debugging kernel's), tests/l1, tests/hw and tests/libvirt,
and meson's of a plain build, one with AddressSanitizer and UndefinedBehaviorSanitizer and one
with ThreadSanitizer, for which meson is set up and nothing compiled.  Says of each old one
where it is: `core` (what `make check` runs), `shard NAME`, both for one that is longer in
the shard, or, of what is gone, `covered by` tests that tests/covered-by names with the
reason.

Fails if a test is nowhere, if what covers it is no test, or if one is in no shard that
tests/shards.py knows.  A meson test's name has its build's in front: asan:vguest-basic.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

TESTS = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(TESTS)
sys.dont_write_bytecode = True
sys.path.insert(0, TESTS)
from shards import SHARDS

# Of meson, as `configure --sanitize` sets them up.
BUILDS = {'plain': 'none', 'asan': 'address,undefined', 'tsan': 'thread'}
CORE_SUITES = {'unit', 'vguest', 'fuzz'}
CORE = 'core'
LIBVIRT = 'libvirt'  # the shard that is a folder


class Problem(Exception):
    pass


def output(argv, folder, env=None):
    done = subprocess.run(argv, cwd=folder, env=dict(os.environ, **(env or {})),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        raise Problem('%s: status %d\n%s' % (' '.join(argv), done.returncode, done.stdout))
    return done.stdout


@contextlib.contextmanager
def checked_out(revision):
    with tempfile.TemporaryDirectory(prefix='map-tests-') as temp:
        folder = os.path.join(temp, 'tree')
        output(['git', 'worktree', 'add', '--detach', folder, revision], SOURCE)
        try:
            yield folder
        finally:
            output(['git', 'worktree', 'remove', '--force', folder], SOURCE)


def collected(source, folder, temp, *options):
    """Names of pytest's tests in tests/@folder, also those that only a build for the
    debugging kernel has."""
    builds = [os.path.join(temp, 'none')]
    if folder == 'vm':
        builds.append(os.path.join(temp, 'debug'))
        images = os.path.join(builds[1], 'images')
        os.makedirs(images, exist_ok=True)
        with open(os.path.join(images, 'image.info'), 'w') as stream:
            stream.write('kernel 6.1.0-debug\n')
    found = {}
    for build in builds:
        argv = ['pytest-3', '--co', *options, os.path.join('tests', folder)]
        done = subprocess.run(argv, cwd=source, stdin=subprocess.DEVNULL,
                              env=dict(os.environ, PVRDMA_BUILD=build, PYTEST_ADDOPTS='',
                                       PYTHONDONTWRITEBYTECODE='1'),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, check=False)
        # 5: none was chosen.
        if done.returncode not in (0, 5):
            raise Problem('%s: status %d\n%s' % (' '.join(argv), done.returncode,
                                                 done.stdout))
        for name in re.findall(r'(?m)^(?:tests/)?(\S+::\S+)$', done.stdout):
            found[name] = None
    return list(found)


def of_meson(source, temp):
    """{name: suites} of all builds."""
    found = {}
    for build, sanitize in BUILDS.items():
        with tempfile.TemporaryDirectory(dir=temp) as folder:
            output(['meson', 'setup', '-Db_sanitize=' + sanitize, '-Db_lundef=%s' % (
                'true' if sanitize == 'none' else 'false'), folder, source], temp)
            for test in json.loads(output(['meson', 'introspect', '--tests', folder], temp)):
                found['%s:%s' % (build, test['name'])] = {
                    suite.split(':')[-1] for suite in test['suite']}
    return found


def names_of(source, temp):
    """All tests of an old tree."""
    with open(os.path.join(source, 'tests', 'conftest.py')) as stream:
        everything = ['--long'] if "'--long'" in stream.read() else ['--shard', 'all']
    return [name for folder in ('vm', 'l1', 'hw', 'libvirt')
            if os.path.isdir(os.path.join(source, 'tests', folder))
            for name in collected(source, folder, temp, *everything)] + \
        list(of_meson(source, temp))


def places_of(source, temp, problems):
    """{name: places} of today's tests."""
    found = collections.defaultdict(list)
    for name in collected(source, 'libvirt', temp):
        found[name].append('shard ' + LIBVIRT)
    for folder in ('vm', 'l1', 'hw'):
        for shard in (None, *(name for name in SHARDS if SHARDS[name].by == 'vm')):
            for name in collected(source, folder, temp, *(['--shard', shard] if shard
                                                          else [])):
                found[name].append('shard ' + shard if shard else CORE)
        for name in collected(source, folder, temp, '--shard', 'all'):
            if name not in found:
                problems.append('%s is neither in the core nor in a shard' % name)
    for name, suites in of_meson(source, temp).items():
        shards = [suite[len('soak-'):] for suite in suites if suite.startswith('soak-')]
        found[name] = [CORE] * bool(suites & CORE_SUITES) + \
            ['shard ' + shard for shard in shards]
        if len(found[name]) != 1 or any(
                shard not in SHARDS or SHARDS[shard].by != name.partition(':')[0]
                for shard in shards):
            problems.append('%s is in %s, which is neither the core nor one shard of its build' % (
                name, ' and '.join(sorted(suites)) or 'no suite'))
    for name, places in found.items():
        if len(places) > 2 or len(places) == 2 and CORE not in places:
            problems.append('%s is in more than one shard: %s' % (name, ', '.join(places)))
    return found


def covered_by(path):
    """[(name, names that cover it, reason)] of the table."""
    rows = []
    with open(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.startswith('#') or not line.strip():
                continue
            found = re.fullmatch(r'(\S+): ([^\s;]+(?: [^\s;]+)*); (\S.*)\n', line)
            if not found:
                raise Problem('%s:%d: not "TEST: TEST...; reason"' % (path, number))
            rows.append((found.group(1), found.group(2).split(), found.group(3)))
    return rows


def in_build(build, name):
    """@name of the table, as it is called in that build if it says none."""
    return name if ':' in name else '%s:%s' % (build, name)


def covering(table, today):
    """{name: (names that cover it, reason)}, of each build where the table names none; and
    what it names that is no test."""
    found, missing = {}, []
    for name, others, reason in table:
        builds = [''] if ':' in name else BUILDS
        for build in builds:
            full = [in_build(build or name.split(':')[0], other) for other in others]
            found[in_build(build, name)] = full, reason
            missing += ['%s is said to be covered by %s, which is no test' % (
                in_build(build, name), other) for other in full if not today.get(other)]
    return found, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--quiet', action='store_true', help='only counts and problems')
    parser.add_argument('revision', metavar='OLDREV')
    args = parser.parse_args()
    problems = []
    try:
        with tempfile.TemporaryDirectory(prefix='map-tests-') as temp:
            with checked_out(args.revision) as tree:
                old = names_of(tree, temp)
            today = places_of(SOURCE, temp, problems)
        table, missing = covering(covered_by(os.path.join(TESTS, 'covered-by')), today)
    except Problem as exc:
        print('map-tests: %s' % exc, file=sys.stderr)
        return 1
    problems += missing
    counts = collections.Counter()
    for name in old:
        if today.get(name):
            place = ', '.join(today[name])
        elif name in table:
            others, reason = table[name]
            place = 'covered by %s: %s' % (' and '.join(others), reason)
        else:
            place = 'NOWHERE'
            problems.append('%s is nowhere' % name)
        counts[place.split(' by ')[0]] += 1
        if not args.quiet:
            print('%-60s %s' % (name, place))
    print('%d tests of %s: %s' % (len(old), args.revision, ', '.join(
        '%s %d' % row for row in sorted(counts.items()))))
    new = set(today) - set(old)
    print('%d tests are new' % len(new))
    for problem in problems:
        print('FAIL ' + problem)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
