#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Makefile and configure: what they do without being asked, and what they keep.

usage: test-build.py SOURCE

Works on copies of both files in a folder of its own; configure or meson is a
stub there that writes down how it was called.  Prints TAP.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import tap

STUB = '#!/bin/sh\n[ "$1" = --version ] && { echo 1.9; exit; }\n' \
    'printf "%%s\\n" "$*" >> %s\n'


class Tree:
    """A copy of the top folder's files, with one stub."""

    def __init__(self, source, stub):
        self.dir = os.path.realpath(tempfile.mkdtemp(prefix='test-build-'))
        for name in ('Makefile', 'configure'):
            shutil.copy(os.path.join(source, name), self.dir)
        os.mkdir(self.path('scripts'))
        shutil.copy(os.path.join(source, 'scripts/common.sh'), self.path('scripts'))
        self.calls = self.path('calls')
        bin_dir = self.path('bin')
        os.mkdir(bin_dir)
        stub = self.path(stub)
        with open(stub, 'w') as stream:
            stream.write(STUB % self.calls)
        os.chmod(stub, 0o755)
        self.env = dict(os.environ, PATH=bin_dir + ':' + os.environ['PATH'])
        for name in ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS', 'BUILD', 'PVRDMA_BUILD', 'DESTDIR'):
            self.env.pop(name, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        with open(self.path(name)) as stream:
            return stream.read()

    def called(self):
        """The stub's calls since the last question."""
        if not os.path.exists(self.calls):
            return []
        lines = self.read('calls').splitlines()
        os.unlink(self.calls)
        return lines

    def without(self, *names):
        """All programs of PATH but these; apt and sudo do nothing, and say what."""
        for folder in self.env['PATH'].split(':')[1:]:
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = self.path('bin/' + name)
                if name not in names and not os.path.lexists(path):
                    os.symlink(os.path.join(folder, name), path)
        self.env['PATH'] = self.path('bin')
        for name, script in (('apt-cache', 'echo Package: any'), ('sudo', 'exec "$@"'),
                             ('apt-get', 'echo apt-get "$@"')):
            self.program(name, script)

    def program(self, name, script):
        path = self.path('bin/' + name)
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, 'w') as stream:
            stream.write('#!/bin/sh\n%s\n' % script)
        os.chmod(path, 0o755)

    def run(self, *argv):
        return subprocess.run(argv, cwd=self.dir, env=self.env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              universal_newlines=True, timeout=60)


def no_side_effects(source):
    """On a fresh clone, and in a configured one, whose configure is newer."""
    with Tree(source, 'configure') as tree:
        for state in ('fresh', 'configured'):
            if state == 'configured':
                os.mkdir(tree.path('build'))
                with open(tree.path('build/config.mak'), 'w') as stream:
                    stream.write('PREFIX = /p\n')
                os.utime(tree.path('build/config.mak'), (1, 1))
            for goal in ('help', 'clean', 'install', 'distclean'):
                done = tree.run('make', goal)
                if (done.returncode != 0) != (goal == 'install'):
                    yield '%s: make %s: %d: %s' % (state, goal, done.returncode, done.stdout)
                if tree.called():
                    yield '%s: make %s configures' % (state, goal)


def first_call_configures(source):
    with Tree(source, 'configure') as tree:
        tree.run('make', 'backend')
        if tree.called() != ['--install-deps --builddir=build']:
            yield 'make backend does not configure, or otherwise'


MINE = ['--disable-qemu', '--disable-images', '--disable-fuzz', '--disable-check',
        '--prefix=/opt/with space', '-Dwerror=true']


def options_are_kept(source):
    """make after a change of configure, and configure without options."""
    with Tree(source, 'bin/meson') as tree:
        done = tree.run('./configure', '--builddir=b', *MINE)
        if done.returncode:
            yield done.stdout
            return
        first = tree.called()
        config = tree.read('b/config.mak')
        if 'WITH_QEMU = no' not in config or 'PREFIX = /opt/with space' not in config:
            yield 'not written down: ' + config
        done = tree.run('make', 'BUILD=b', '-W', 'configure', 'b/config.mak')
        if tree.called() != first or tree.read('b/config.mak') != config:
            yield 'make configures otherwise: %s' % done.stdout
        tree.run('./configure', '--again', '--builddir=b', '--enable-debug')
        if not any('-Dwerror=true' in call and '-Dbuildtype=debug ' in call
                   for call in tree.called()):
            yield '--again with one more option: not both reach meson'
        os.makedirs(tree.path('b/meson-private'))
        open(tree.path('b/meson-private/coredata.dat'), 'w').close()
        tree.run('./configure', '--builddir=b', *MINE[:4])
        if not any('--reconfigure' in call and '-Dwerror=false' in call and
                   '-Dbuildtype=debugoptimized' in call for call in tree.called()):
            yield 'configure without options keeps earlier ones'


def bench_peers(source):
    """What 'make bench' compares with: installed with the rest, and gone without."""
    peers = {'iperf3': 'iperf3', 'ucx-utils': 'ucx_perftest'}
    with Tree(source, 'bin/meson') as tree:
        tree.without('tshark', *peers.values())
        options = ['--builddir=b'] + [arg for arg in MINE if arg != '--disable-check']
        said = tree.run('./configure', '--install-deps', *options).stdout
        installed = [line for line in said.splitlines()
                     if line.startswith('apt-get ') and ' install ' in line]
        if not any({'tshark', *peers} <= set(line.split()) for line in installed):
            yield 'not installed: ' + said
        lacks = re.findall(r'error: packages are missing:(.*)', said)
        if len(lacks) != 1 or set(lacks[0].split()) & set(peers):
            yield 'the wrong ones are missed: ' + said
        said = tree.run('./configure', *options, '--disable-check').stdout
        if 'iperf3' in said or 'done; ' not in said:
            yield 'asked for without a need: ' + said


def compiler_cache(source):
    """Needed where everything is built several times; the same for each clone."""
    with Tree(source, 'bin/meson') as tree:
        tree.without('ccache')
        options = ['--builddir=b'] + [arg for arg in MINE if arg != '--disable-check']
        said = tree.run('./configure', *options).stdout
        lacks = re.findall(r'error: packages are missing:(.*)', said)
        if len(lacks) != 1 or 'ccache' not in lacks[0].split():
            yield 'not missed: ' + said
        said = tree.run('./configure', *options, '--disable-check').stdout
        if 'ccache' in said or 'done; ' not in said:
            yield 'asked for without a need: ' + said
        tree.program('ninja', 'echo "base $CCACHE_BASEDIR, hash ${CCACHE_NOHASHDIR:-dir}"')
        said = tree.run('make', 'BUILD=b', 'backend').stdout
        if 'base %s, hash 1\n' % tree.dir not in said:
            yield 'another folder finds nothing: ' + said


def cache_that_fails(source):
    """ccache that is there and cannot write: all is compiled without it."""
    with Tree(source, 'bin/other') as tree:
        tree.program('meson', '[ "$1" = --version ] && { echo 1.9; exit; }\n'
                     'echo "CC ${CC-none} $*" >> %s' % tree.calls)
        tree.env['PATH'] = tree.path('bin') + ':' + tree.env['PATH']
        tree.env.pop('CC', None)
        os.makedirs(tree.path('b/meson-private'))
        for works in (False, True):
            # As the real one: its version it says in any case.
            tree.program('ccache', '[ "$1" = --version ] || exec "$@"' if works else
                         '[ "$1" = --version ]')
            cc = tree.run('sh', '-c', '. scripts/common.sh; cached_cc gcc').stdout
            if cc != ('ccache gcc\n' if works else 'gcc\n'):
                yield 'works: %s: scripts compile by %s' % (works, cc)
            for name, text in (('meson-private/coredata.dat', ''),
                               ('build.ninja', ' command = ccache cc -c\n')):
                with open(tree.path('b/' + name), 'w') as stream:
                    stream.write(text)
            said = tree.run('./configure', '--builddir=b', *MINE).stdout
            calls = tree.called()
            if len(calls) != 1 or calls[0].startswith('CC none setup --reconfigure') != works or \
                    calls[0].startswith('CC cc setup --prefix') == works:
                yield 'works: %s: meson is called by %s' % (works, calls)
            if said.count('compiling without it') != (not works):
                yield 'works: %s: it is said otherwise: %s' % (works, said)
            os.makedirs(tree.path('b/meson-private'), exist_ok=True)


def apt_lists(source):
    """Fetched once, by root, for all that run side by side; else said."""
    with Tree(source, 'bin/other') as tree:
        # The installed packages are known in any case.
        tree.program('apt-cache', 'echo Package: any')
        tree.program('apt-get', 'if [ "$1" = indextargets ]; then cat lists; exit; fi\n'
                     'echo "$@" >> %s; sleep 0.3; echo has > lists' % tree.calls)
        tree.program('id', 'echo $ID')
        tree.program('sudo', 'exec "$@"')
        tree.program('meson', 'echo 1.9')
        tree.env['PATH'] = tree.path('bin') + ':' + tree.env['PATH']
        script = 'set -e; prefix=p; log=log; . scripts/common.sh; apt_lists; echo end'
        tree.env['ID'] = '1000'
        done = tree.run('sh', '-c', script)
        if done.returncode != 1 or "run 'apt-get update' as root" not in done.stdout:
            yield 'not root: %s' % done.stdout
        tree.env['ID'] = '0'
        for shell in ('sh', 'bash'):
            jobs = [subprocess.Popen([shell, '-c', script], cwd=tree.dir, env=tree.env,
                                     stdout=subprocess.PIPE, universal_newlines=True)
                    for _ in range(3)]
            said = [job.communicate(timeout=60)[0] for job in jobs]
            if any(job.returncode for job in jobs) or ''.join(said).count('end\n') != 3 or \
                    tree.called() != ['-q update']:
                yield '%s: not once for all: %s' % (shell, said)
            os.unlink(tree.path('lists'))
        for calls in (['-q update'], []):
            tree.run('./configure', '--builddir=b', '--install-deps', *MINE)
            if tree.called() != calls:
                yield 'configure: not %s' % calls


# Those that `make all` starts, but for ninja, where the second may need the first.
PARTS = ('hw/build-qemu.sh', 'images/build-image.sh', 'guest-driver/build.sh',
         'guest-provider/build.sh', 'guest-provider/fetch-runtime.sh')


def side_by_side(source):
    """QEMU is built beside the daemon, the driver after the image; one that fails counts."""
    with Tree(source, 'bin/meson') as tree:
        tree.run('./configure', '--builddir=build', *MINE[2:])
        begin = 'echo "begin $0" >> %s\n' % tree.calls
        end = 'echo "end $0" >> %s\n' % tree.calls
        tree.program('ninja', begin + 'n=0\nuntil grep -q "begin hw/" %s; do sleep 0.1; '
                     'n=$((n + 1)); [ $n -lt 100 ] || exit 1; done\n' % tree.calls + end)
        for part in PARTS:
            os.makedirs(os.path.dirname(tree.path(part)), exist_ok=True)
            tree.program('../' + part, begin + ('sleep 0.3\n' if 'image' in part else '') + end)
        tree.env['PATH'] = tree.path('bin') + ':' + tree.env['PATH']
        tree.called()
        done = tree.run('make')
        calls = tree.called()
        if done.returncode or len(calls) != 2 + 2 * len(PARTS):
            yield 'not all, or not beside: %s %s' % (calls, done.stdout)
        elif calls.index('begin guest-driver/build.sh') < calls.index('end images/build-image.sh'):
            yield 'a driver before its kernel: %s' % calls
        # Several goals have parts in common.
        tree.program('ninja', 'mkdir ninja || echo two >> %s\nsleep 0.3; rmdir ninja' % tree.calls)
        os.mkdir(tree.path('packaging'))
        for part in (*PARTS, 'packaging/build-deb.sh'):
            tree.program('../' + part, begin)
        done = tree.run('make', '-j4', 'PYTHON=true', 'all', 'bench', 'check', 'soak')
        calls = tree.called()
        parts = [call for call in calls if call.startswith('begin ')]
        if done.returncode or 'two' in calls or len(parts) != len(PARTS) + 1 or \
                '--no-rebuild' not in ''.join(calls):
            yield 'several goals: %s %s' % (calls, done.stdout)
        for part in ('bin/ninja', *PARTS):
            tree.program('../' + part, '. scripts/common.sh; prefix=p; die "it broke"'
                         if part != 'bin/ninja' else 'exit 1')
            noise = [other for other in ('hw/build-qemu.sh', 'guest-provider/build.sh')
                     if other != part]
            for other in noise:
                tree.program('../' + other, 'sleep 0.5; echo noise')
            done = tree.run('make')
            end = done.stdout.rpartition('noise\n')[2]
            if not done.returncode:
                yield '%s fails, and make does not' % part
            if ('backend' if 'ninja' in part else os.path.dirname(part).replace(
                    'hw', 'qemu')) not in re.findall(r'^make (\S+)$', end, re.M) or \
                    ('[p] error: it broke\n' in end) != ('ninja' not in part):
                yield '%s fails, and that is not said at the end: %s' % (part, done.stdout)
            for other in (part, *noise):
                tree.program('../' + other, 'exit 0')
        if tree.run('make').returncode:
            yield 'what failed is mended, and make fails'


def errors(source):
    with Tree(source, 'bin/meson') as tree:
        for args in (['--again', '--builddir=none'], ['--frobnicate'], ['--prefix=x']):
            done = tree.run('./configure', *args)
            if done.returncode != 1 or 'configure: error: ' not in done.stdout:
                yield '%s: %d: %s' % (args, done.returncode, done.stdout)
        if tree.called():
            yield 'meson was called'


def locks(source):
    """Two builds in one folder: the second waits, and says so."""
    script = '. %s/scripts/common.sh; prefix=p; lock_folder .; echo begin; sleep 0.5; ' \
        'echo end' % source
    with tempfile.TemporaryDirectory(prefix='test-build-') as folder:
        with open(os.path.join(folder, 'said'), 'w+') as said:
            jobs = [subprocess.Popen(['sh', '-c', script], cwd=folder,
                                     stdout=os.open(said.name, os.O_WRONLY | os.O_APPEND))
                    for _ in range(2)]
            status = [job.wait(60) for job in jobs]
            lines = said.read().splitlines()
    waits = [line for line in lines if 'waiting for another build' in line]
    rest = [line for line in lines if line not in waits]
    if any(status) or len(waits) != 1 or rest != ['begin', 'end'] * 2:
        yield '%s: %s' % (status, lines)
    # The scripts that fill a folder with what they fetch and build.
    for name in ('images/build-image.sh', 'images/build-debug-kernel.sh',
                 'guest-driver/build.sh', 'guest-provider/build.sh',
                 'guest-provider/fetch-runtime.sh', 'packaging/build-deb.sh',
                 'tests/vm/debian-root.sh', 'tests/debian13.sh', 'hw/build-qemu.sh'):
        with open(os.path.join(source, name)) as stream:
            text = stream.read()
        if not any(word in text for word in ('\nlock_folder ', '\nflock ')):
            yield '%s takes no lock' % name


# What downloads.sh calls as apt-get: a package "a" that it says the sum of.
APT_GET = r"""
case "$*" in
    *--print-uris*) echo "'http://nowhere/a.deb' a.deb 4 SHA256:$SUM"; exit ;;
esac
echo fetched >> "$CALLS"
[ -z "${E:-}" ] || { echo "$E" >&2; exit 100; }
[ -f a.deb ] || echo "$CONTENT" > a.deb
"""


class Downloads:
    """Scripts that fetch into folders of their own, with one cache."""

    def __init__(self, source, folder):
        self.source = source
        self.folder = folder
        self.cache = os.path.join(folder, 'cache')
        self.kept = os.path.join(self.cache, 'pvrdma', 'downloads', 'a.deb')
        self.calls = os.path.join(folder, 'calls')
        self.number = 0
        self.apt = os.path.join(folder, 'apt-get')
        self.stub(APT_GET)

    def stub(self, text):
        with open(self.apt, 'w') as stream:
            stream.write('#!/bin/sh\n' + text)
        os.chmod(self.apt, 0o755)

    def fetch(self, content='new', real='new', script='', cache=None, shell='sh'):
        """Fetch what apt says has @content, and gets with @real.  Returns a process."""
        self.number += 1
        folder = os.path.join(self.folder, 'build%d' % self.number)
        os.mkdir(folder)
        total = hashlib.sha256((content + '\n').encode()).hexdigest()
        env = dict(os.environ, SUM=total, CONTENT=real, CALLS=self.calls, log='log', HOME='',
                   XDG_CACHE_HOME=self.cache if cache is None else cache)
        done = subprocess.Popen(
            [shell, '-euc', '. %s/scripts/downloads.sh\n%s\nfetch d %s download a || '
             'exit $((7 + $?)); cat d/a.deb' % (self.source, script, self.apt)], cwd=folder, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        return done

    def said(self, *args, **kwargs):
        """Exit status, what it got, and how often apt downloaded for it."""
        done = self.fetch(*args, **kwargs)
        out = done.communicate(timeout=60)[0].strip()
        count = 0
        if os.path.exists(self.calls):
            with open(self.calls) as stream:
                count = len(stream.read().splitlines())
            os.unlink(self.calls)
        return done.returncode, out, count

    def keep(self, text):
        if os.path.exists(self.kept):
            os.unlink(self.kept)
        with open(self.kept, 'w') as stream:
            stream.write(text + '\n')


def downloads(source):
    """Kept by name, and taken only with the checksum that apt says now."""
    with tempfile.TemporaryDirectory(prefix='test-build-') as folder:
        here = Downloads(source, folder)
        for what, wanted, found in (
                ('nothing is kept', (0, 'new', 1), here.said()),
                ('it is kept', (0, 'new', 0), here.said()),
                ('by bash', (0, 'new', 0), here.said(shell='bash')),
                ('a new version of that name', (0, 'newer', 1), here.said('newer', 'newer')),
                ('this took its place', (0, 'newer', 0), here.said('newer', 'none')),
                ('what apt gets is wrong', (9, '', 1), here.said('right', 'wrong')),
                ('that was not kept', (9, '', 1), here.said('wrong', 'none')),
                ('apt finds that out', (9, '', 1), here.said('right', script='E="E: Failed to '
                 'fetch u  Hash Sum mismatch"; export E')),
                ('apt gets nothing', (8, '', 1),
                 here.said('right', script='E="E: 404"; export E')),
                ('no folder is known', (0, 'new', 1), here.said(cache='')),
                ('the folder cannot be made', (0, 'new', 1), here.said(cache='/proc/none')),
        ):
            if found != wanted:
                yield '%s: %s, not %s' % (what, found, wanted)
        # A size that fits is enough for apt-get.
        here.keep('bad')
        if here.said() != (0, 'new', 1) or here.said() != (0, 'new', 0):
            yield 'a kept file that is damaged is used, or stays'
        # What an earlier run left there.
        for cache, count in ((None, 0), (os.path.join(folder, 'other'), 1)):
            if here.said(script='mkdir d; echo bad > d/a.deb', cache=cache) != (0, 'new', count):
                yield 'a damaged file that was there is used'


def downloads_at_once(source):
    """Of many builds none sees half a file; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix='test-build-') as folder:
        here = Downloads(source, folder)
        text = 'x' * 3000000
        here.stub(APT_GET.replace('echo "$CONTENT"',
                                  "{ head -c 3000000 /dev/zero | tr '\\0' x; echo; }"))
        jobs = [here.fetch(text, '') for _ in range(8)]
        for job in jobs:
            out = job.communicate(timeout=60)[0].strip()
            if job.returncode or out != text:
                yield 'one of them: %d, %d bytes' % (job.returncode, len(out))
        os.unlink(here.calls)
        kept = os.listdir(os.path.dirname(here.kept))
        if kept != ['a.deb'] or here.said(text, '') != (0, text, 0):
            yield 'kept: %s' % kept


def downloads_go(source):
    """What was not used for long, and the oldest of what is too much."""
    with tempfile.TemporaryDirectory(prefix='test-build-') as folder:
        here = Downloads(source, folder)
        here.said()
        store = os.path.dirname(here.kept)

        def keep(name, days):
            path = os.path.join(store, name)
            with open(path, 'w') as stream:
                stream.write(100 * 'x')
            os.utime(path, (time.time() - days * 86400,) * 2)

        keep('old with space', 62)
        keep('young', 50)
        here.said('b', 'b')
        if sorted(os.listdir(store)) != ['a.deb', 'young']:
            yield 'after 60 days: %s' % os.listdir(store)
        keep('first', 3)
        keep('second two', 4)
        keep('third', 5)
        os.utime(here.kept, (time.time() - 6 * 86400,) * 2)
        # It is used: now it is the youngest.
        here.said('b', 'b')
        if here.said('b', 'b', script='downloads_bytes=250; cp %s d.deb; keep_download d.deb'
                     % here.kept) != (0, 'b', 0):
            yield 'what is used is removed'
        if sorted(os.listdir(store)) != ['a.deb', 'd.deb', 'first', 'second two']:
            yield 'beyond the bound: %s' % os.listdir(store)
        # Another build is about to store one: it is not counted, and never looks old.
        keep('.new-of-other', 7)
        here.said('b', 'b', script='downloads_bytes=250; cp %s d.deb; '
                  'touch -d "100 days ago" d.deb; same_file() { [ -z "$(find "$1" '
                  '-mtime +9)" ] && ln -f "$1" "$2"; }; rm %s/d.deb; '
                  'keep_download d.deb' % (here.kept, store))
        if not {'.new-of-other', 'd.deb'} <= set(os.listdir(store)):
            yield 'what is being stored was removed: %s' % os.listdir(store)


def bootstraps(source):
    """Of what is kept, only what debootstrap put into the root was used."""
    with Tree(source, 'bin/other') as tree:
        store = tree.path('cache/pvrdma/downloads')
        os.makedirs(store)
        for name in ('used.deb', 'unused.deb'):
            with open(os.path.join(store, name), 'w') as stream:
                stream.write(name)
            os.utime(os.path.join(store, name), (time.time() - 50 * 86400,) * 2)
        tree.program('debootstrap', 'debs=${1#--cache-dir=} to=$3/var/cache/apt/archives\n'
                     'mkdir -p $to\ncat $debs/unused.deb\necho new > $debs/new.deb\n'
                     'cp $debs/new.deb $debs/used.deb $to')
        tree.env['PATH'] = tree.path('bin') + ':' + tree.env['PATH']
        tree.env['XDG_CACHE_HOME'] = tree.path('cache')
        done = tree.run('sh', '-euc', 'prefix=p log=log; . scripts/common.sh; '
                        '. %s/scripts/downloads.sh; bootstrap s root m' % source)
        young = sorted(name for name in os.listdir(store)
                       if time.time() - os.stat(os.path.join(store, name)).st_mtime < 86400)
        if done.returncode or young != ['new.deb', 'used.deb'] or \
                sorted(os.listdir(store)) != ['new.deb', 'unused.deb', 'used.deb']:
            yield 'used: %s, kept: %s: %s' % (young, os.listdir(store), done.stdout)


def fuzz_floors(source):
    """Each fuzz target must try something, and no line is left of one that is gone."""
    def names(path, pattern):
        with open(os.path.join(source, 'tests', 'fuzz', path)) as stream:
            return re.findall(pattern, stream.read(), re.M)
    targets = names('meson.build', r"^  '([a-z0-9-]+)': ")
    floors = names('floors', r'^([a-z0-9-]+) [1-9][0-9]*$')
    if not targets or sorted(targets) != sorted(floors):
        yield 'targets: %s; those with a floor: %s' % (targets, floors)


def main():
    checks = (no_side_effects, first_call_configures, options_are_kept, bench_peers,
              compiler_cache, cache_that_fails, apt_lists, side_by_side, errors, locks,
              downloads, downloads_at_once, downloads_go, bootstraps, fuzz_floors)
    return tap.run([(check.__name__, functools.partial(check, sys.argv[1]))
                    for check in checks])


if __name__ == '__main__':
    sys.exit(main())
