#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Take out one check after another; the tests that are there for it must fail.

usage: run.py [--builddir DIR] [--jobs N] [--part N/ALL] [--list] [PATTERN...]

The lists beside this file, list and list-state, name the checks: those that stand between
a guest, a VMM or a peer and memory that is not theirs, the CVEs of the device that QEMU once
had among them.  Each entry is

    FILE
    - LINE                  as it stands there, once
    + LINE                  in its place
    ! PROGRAM [CASE]        what must fail then, below tests/; CASE as with -p,
                            and before PROGRAM NAME=VALUE for its environment

with as many pairs of - and + as belong together, such as what is saved and what is loaded.
With VGUEST_JUDGE=1 the program judges times: it runs when the others are through, and
nothing runs beside it.  A program that can judge is told to, or not to (VGUEST_JUDGE=0).

Works on N copies of the tracked files [one for each processor], each with a build of its
own, in DIR [build-mutants in the source tree].  The named tests must pass in the copy as it
is.  Prints "ok" or "FAIL", the file and the line for each, and last "N passed, N failed, N
skipped".
PATTERN: entries whose file, line or test contains it; of those, the N-th of ALL parts [1/1].
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
LISTS = ('list', 'list-state')
LIMIT = 240
JUDGE = 'VGUEST_JUDGE=1'


class Mutation:
    def __init__(self, file, changes, test):
        self.file, self.changes = file, changes  # pairs of an old and a new line
        words = test.split(' ')
        self.env = []
        while '=' in words[0]:
            self.env.append(words.pop(0))
        self.program, self.case = words[0], ' '.join(words[1:])

    def __str__(self):
        return '%s: %s' % (self.file, self.changes[0][0])

    def judges(self):
        return JUDGE in self.env

    def test(self):
        return ' '.join(filter(None, (*self.env, self.program, self.case)))


def read_lists(folder):
    """All entries."""
    for name in LISTS:
        yield from read_list(os.path.join(folder, name))


def read_list(path):
    file = old = None
    changes = []
    with open(path) as stream:
        for number, line in enumerate(stream, 1):
            kind, _, text = line.strip().partition(' ')
            if not kind or kind.startswith('#'):
                continue
            if kind == '-' and old is None:
                old = text
            elif kind == '+' and old is not None:
                changes.append((old, text))
                old = None
            elif kind == '!' and file and changes and old is None:
                yield Mutation(file, changes, text)
                changes = []
            elif not text and old is None and not changes:
                file = kind
            else:
                sys.exit('%s:%d: malformed line' % (path, number))


class Copy:
    def __init__(self, builddir):
        self.src = os.path.join(builddir, 'src')
        self.out = os.path.join(builddir, 'out')
        self.log = open(os.path.join(builddir, 'log'), 'w')
        names = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others',
                                '--exclude-standard'], cwd=SOURCE, check=True,
                               stdout=subprocess.PIPE).stdout.decode().split('\0')
        wanted = {name for name in names
                  if name and os.path.isfile(os.path.join(SOURCE, name))}
        for name in wanted:
            self.put(name, self.read(SOURCE, name))
        for folder, _, files in os.walk(self.src):
            for file in files:
                path = os.path.join(folder, file)
                if os.path.relpath(path, self.src) not in wanted:
                    os.unlink(path)

    @staticmethod
    def read(base, name):
        with open(os.path.join(base, name), 'rb') as stream:
            return stream.read()

    def put(self, name, data):
        """Only what changes gets a new time, so that ninja does little."""
        path = os.path.join(self.src, name)
        if os.path.exists(path) and self.read(self.src, name) == data:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as stream:
            stream.write(data)
        shutil.copymode(os.path.join(SOURCE, name), path)

    def quiet(self, *argv, limit=3600):
        """Exit status; 124 if it took too long."""
        self.log.write('+ %s\n' % ' '.join(argv))
        self.log.flush()
        try:
            return subprocess.run(argv, cwd=self.src, stdout=self.log,
                                  stderr=subprocess.STDOUT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            return 124

    def setup(self):
        if not os.path.exists(os.path.join(self.out, 'build.ninja')) and \
                self.quiet('sh', '-c', '. "$2/scripts/common.sh"; '
                           'CC=$(cached_cc cc) meson setup "$@"', 'sh', self.out, self.src):
            raise RuntimeError('meson failed, see %s' % self.log.name)

    def build(self, programs):
        return self.quiet('ninja', '-j', '2', '-C', self.out, *programs) == 0

    def run(self, mutation):
        """Status of its test; the daemon that vguest tests start is built as well."""
        argv = ['env', *mutation.env, os.path.join(self.out, 'tests', mutation.program), '--tap']
        return self.quiet(*argv, *(['-p', mutation.case] if mutation.case else []),
                          limit=LIMIT)


def targets(mutations):
    names = {'tests/' + m.program for m in mutations}
    if any('/vguest/' in name for name in names):
        names |= {'backend/pvrdmad', 'backend/pvrdmactl', 'tests/softnic/pvrdmad-softnic'}
    return sorted(names)


def places(lines, old):
    """Where this line is; once, if all is well (tests/unit/test-mutations.py)."""
    return [i for i, line in enumerate(lines) if line.strip() == old]


def try_one(copy, mutation):
    """What is wrong, or nothing."""
    text = copy.read(SOURCE, mutation.file).decode()
    before = text.split('\n')
    lines = list(before)
    for old, new in mutation.changes:
        found = places(before, old)
        if len(found) != 1:
            return 'the line is there %d times' % len(found)
        line = before[found[0]]
        lines[found[0]] = line[:len(line) - len(line.lstrip())] + new
    copy.put(mutation.file, '\n'.join(lines).encode())
    try:
        if not copy.build(targets([mutation])):
            return 'it does not compile'
        return '' if copy.run(mutation) else '%s still passes' % mutation.test()
    finally:
        copy.put(mutation.file, text.encode())


def work(copy, mutations, results):
    """Try what is left of @mutations, as others do; None tells that it is over."""
    try:
        copy.setup()
        good = {}
        while True:
            m = mutations.get_nowait()
            if m.test() not in good:
                # What is built may have the last one's mutation still.
                good[m.test()] = copy.run(m) if copy.build(targets([m])) else 'no build'
            results.put((m, try_one(copy, m) if good[m.test()] == 0 else
                         '%s fails (status %s) with nothing taken out; see %s'
                         % (m.test(), good[m.test()], copy.log.name)))
    except queue.Empty:
        pass
    finally:
        results.put(None)


def try_with(copies, mutations):
    """Yields each with what is wrong, or nothing; as many at once as there are @copies."""
    todo, results = queue.Queue(), queue.Queue()
    for m in mutations:
        todo.put(m)
    for copy in copies:
        threading.Thread(target=work, daemon=True, args=(copy, todo, results)).start()
    left, ended = len(mutations), 0
    while ended < len(copies):
        result = results.get()
        ended += not result
        if result:
            left -= 1
            yield result
    if left:
        sys.exit('%d were not tried' % left)


def try_all(mutations, builddir, jobs):
    """Those that judge times are the last, one at a time."""
    copies = []
    for number in range(jobs):
        os.makedirs(os.path.join(builddir, str(number)), exist_ok=True)
        copies.append(Copy(os.path.join(builddir, str(number))))
    yield from try_with(copies, [m for m in mutations if not m.judges()])
    yield from try_with(copies[:1], [m for m in mutations if m.judges()])


def part(text):
    number, parts = map(int, text.split('/'))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--builddir', default=os.path.join(SOURCE, 'build-mutants'))
    parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--part', type=part, default=(1, 1))
    parser.add_argument('--list', action='store_true')
    parser.add_argument('pattern', nargs='*')
    args = parser.parse_args()
    mutations = [m for m in read_lists(HERE)
                 if not args.pattern or any(p in '%s %s' % (m, m.test()) for p in args.pattern)]
    number, parts = args.part
    mutations = mutations[len(mutations) * (number - 1) // parts:
                          len(mutations) * number // parts]
    if args.list:
        print('\n'.join('%s  (%s)' % (m, m.test()) for m in mutations))
        return 0
    passed = failed = 0
    for m, problem in try_all(mutations, os.path.abspath(args.builddir), args.jobs):
        print('%s %s%s' % ('FAIL' if problem else 'ok  ', m, problem and ': ' + problem),
              flush=True)
        failed += bool(problem)
        passed += not problem
    print('%d passed, %d failed, 0 skipped' % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main())
