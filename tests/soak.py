#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes longer than `make check` may: many rounds of it, and other kernels.

usage: soak.py [--builddir DIR] [--factor N] [PART...]

Parts, in this order; without names all of them:
  vguest     the tests that repeat what only some rounds show, N times as often; so 100 N
             moves in a row, and as many over TCP
  asan tsan  unit, vguest and what `make check` leaves out (suite soak) in builds with
             sanitizers, N tenths of a plain build's rounds; and 100 N moves as above
  fuzz       each target for 10 N minutes at most an hour
  mutants    checks taken out one by one (tests/mutations)
  hw         the QEMU device's tests in a QEMU with AddressSanitizer and
             UndefinedBehaviorSanitizer
  debian13   the daemon built and tested in a Debian 13 root
  debug      driver, provider and data check in guests whose kernel has lockdep,
             KASAN and DMA debugging (images/build-debug-kernel.sh)
  vm         guests: 10^6 round trips without an exit, lost wake-ups, pyverbs on the stock
             parts, pairs of libraries and guest parts that `make check` leaves out,
             fio --verify over NVMe, NFS and iSER, migrations in a row, 100 restarts of the
             daemon, 50 by systemd
  libvirt    `virsh migrate` between two libvirtd, save, restore (tests/libvirt)

Ends as `make check` does, with each part's time and `N passed, N failed, N
skipped`, written to BUILDDIR/soak-summary.
"""

import argparse
import glob
import importlib.util
import os
import sys

TESTS = os.path.dirname(os.path.abspath(__file__))


def load_check():
    spec = importlib.util.spec_from_file_location('run_check',
                                                  os.path.join(TESTS, 'run-check.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load_check()

# Moves in a row, 100 in a plain build and 10 in others, by both paths.
MOVES = ['vguest-moves', 'tcp-moves']


def repeating():
    """Those of tests/vguest that ask how many rounds."""
    names = []
    for path in sorted(glob.glob(os.path.join(TESTS, 'vguest', 'test-*.c'))):
        with open(path) as stream:
            if 'vgt_rounds(' in stream.read():
                names.append(os.path.basename(path)[len('test-'):-len('.c')])
    return names


def vguest(args):
    return check.meson_layer(
        'vguest', args.builddir,
        ['--no-rebuild', '--timeout-multiplier=%d' % (2 * args.factor), '--suite=vguest'] +
        sorted({*('vguest-' + name for name in repeating()), *MOVES}),
        dict(os.environ, VGUEST_SOAK=str(args.factor)))


def sanitizer(name):
    def run(args):
        return check.sanitizer(name, args.builddir, (
            (check.UNIT_AND_VGUEST + ['--suite=soak'], args.factor),
            (['--suite=vguest', '--suite=soak', *MOVES], 10 * args.factor)))
    return run


def fuzz(args):
    return check.fuzz_layer(args.builddir, min(600 * args.factor, 3600))


def mutants(args):
    return check.script_layer('mutants', [
        os.path.join('tests', 'mutations', 'run.py'),
        '--builddir', args.builddir + '-mutants'])


def hw(args):
    if not check.configured(args.builddir, 'QEMU'):
        counts = check.Counts('hw')
        counts.add('skipped', 'hw', 'configured with --disable-qemu')
        return counts
    build = args.builddir + '-hw-asan'
    problem = check.run([os.path.join('hw', 'build-qemu.sh'), '--sanitize',
                         '--builddir=' + os.path.join(build, 'qemu'),
                         '--qemu-src=' + os.path.join(args.builddir, 'qemu', 'src')],
                        check.LIMIT['hw'])
    if problem:
        counts = check.Counts('hw')
        counts.add('failed', 'build-qemu.sh', problem)
        return counts
    # A plain QEMU would pass as well.
    with open(os.path.join(build, 'qemu', 'qemu-system-x86_64'), 'rb') as stream:
        if b'__asan_init' not in stream.read():
            counts = check.Counts('hw')
            counts.add('failed', 'build-qemu.sh', 'made a QEMU without AddressSanitizer')
            return counts
    return check.pytest_layer('hw', build,
                              env={'ASAN_OPTIONS': 'detect_leaks=0:exitcode=99',
                                   'PVRDMA_BACKEND': os.path.abspath(
                                       os.path.join(args.builddir, 'backend'))})


def debian13(args):
    return check.script_layer('debian13', [
        os.path.join('tests', 'debian13.sh'), args.builddir + '-debian13'])


def debug(args):
    """What concerns the driver; first, that this kernel does look."""
    if not check.configured(args.builddir, 'IMAGES') or \
            not check.configured(args.builddir, 'QEMU'):
        counts = check.Counts('debug')
        counts.add('skipped', 'debug', 'configured without guests')
        return counts
    problem = check.run([os.path.join('images', 'build-debug-kernel.sh'), args.builddir],
                        check.LIMIT['debug'])
    if problem:
        counts = check.Counts('debug')
        counts.add('failed', 'build-debug-kernel.sh', problem)
        return counts
    return check.pytest_layer('debug', os.path.join(args.builddir, 'debug'),
                              [[os.path.join('tests', 'vm', 'test_%s.py' % what) for what in
                                ('debug', 'driver', 'datacheck', 'provider')]])


def vm(args):
    return check.pytest_layer('vm', args.builddir,
                              [['tests/vm', '--long', '-k',
                                'no_exit or no_lost or kernel_users or in_a_row '
                                'or test_migrate_hosts or test_restart or test_systemd or test_rdmacm '
                                'or with_stock or test_conformance or OwnHostsTest or RobustTest '
                                'or MixedDriver or OtherKernel or pulled_out or test_crash '
                                'or SmpDatacheck']])


def libvirt(args):
    return check.pytest_layer('libvirt', args.builddir)


PARTS = {'vguest': vguest, 'asan': sanitizer('asan'), 'tsan': sanitizer('tsan'),
         'fuzz': fuzz, 'mutants': mutants, 'hw': hw, 'debian13': debian13,
         'debug': debug, 'vm': vm, 'libvirt': libvirt}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--builddir', default=os.path.join(check.SOURCE, 'build'))
    parser.add_argument('--factor', type=int, default=10)
    parser.add_argument('part', nargs='*', choices=[*PARTS, []])
    args = parser.parse_args()
    args.builddir = os.path.abspath(args.builddir)
    check.LIMIT.update({part: 24 * 3600 for part in PARTS})
    chosen = [part for part in PARTS if part in args.part or not args.part]
    return check.run_layers((PARTS[part](args) for part in chosen),
                            os.path.join(args.builddir, 'soak-summary'))


if __name__ == '__main__':
    sys.exit(main())
