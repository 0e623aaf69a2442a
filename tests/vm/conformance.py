#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Other people's RDMA programs and suites on pvrdma, beside soft-RoCE.

usage: conformance.py [--stock | --release SUITE] [--record] [--only REGEX]
                      [--device NAME] [--rounds N] [--memory MB] [PART...]

Parts, all of them without names:
  pyverbs   rdma-core's own suite, in one guest on the adapter, in the other on
            soft-RoCE; compared with the list in tests/vm/conformance
  programs  ibverbs-utils, rdmacm-utils, perftest, UCX, libfabric, qperf, fio and MPI
            between the guests (foreign.py), on the adapter and on soft-RoCE
  kernel    the kernel's own users, NVMe, NFS and iSER (kusers.py), on both and over
            TCP on virtio-net: what works, and figures

Prints tables and writes them, with all results as JSON, to BUILD/conformance.
With --release the guests have the kernel and the programs of another release of Debian,
such as trixie, and our driver and provider; without the kernel's users.
What fails is named in them and the run goes on; the exit status tells only whether
the run itself came to its end, and whether pyverbs is as good as its list.
"""

import argparse
import re
import sys

from lib import foreign, kusers, script, suites
from lib.pvrdma_vm import Session, end_well, say


def run_pyverbs(lab, args):
    expected = suites.Expected(lab.title)
    say('pyverbs')
    found = suites.run_pyverbs(lab)
    ours, rxe = found[lab.name], found['rxe']
    lines = suites.pyverbs_table(found)
    lines += ['', 'Passed on soft-RoCE and not on pvrdma:', '']
    lines += ['* ' + line for line in suites.differences(ours, rxe)]
    lines += ['', 'Failed:', '']
    lines += ['* %s, %s: %s' % (name, test, verdict.reason)
              for name, results in found.items()
              for test, verdict in sorted(results.items()) if verdict.kind == 'failed']
    print('\n'.join(lines), flush=True)
    say('written: ' + suites.save('pyverbs-%s.md' % lab.title, lines))
    if args.record:
        expected.record(ours)
        say('recorded: ' + expected.path)
        print('\n'.join(suites.skips_table()))
        return []
    return expected.problems(ours)


def run_programs(lab, args):
    foreign.prepare(lab.guests, lab.pairs.values())
    runners = {name: foreign.Runner(lab, name) for name in lab.pairs
               if args.device in ('', name)}
    # Of a part of the table the rest is what the last run found.
    outcomes = foreign.load(suites.RESULTS, lab.title) if args.only or args.device else {}
    for name in lab.pairs:
        outcomes.setdefault(name, {})
    path = 'nothing'
    for row in foreign.offered(lab.guests[0]):
        if not re.search(args.only, '%s: %s' % (row.group, row.title)):
            continue
        for name, runner in runners.items():
            outcomes[name][row.group, row.title] = runner.run(row)
        lab.daemon.check()
        say('%s: %s' % (row.title, ' | '.join(
            foreign.describe(outcomes[name][row.group, row.title]) for name in runners)))
        # After each: a run may be broken off, and takes long.
        suites.save('programs-%s.json' % lab.title, foreign.plain(outcomes))
        lines = foreign.table(outcomes)
        path = suites.save('programs-%s.md' % lab.title, lines)
    say('written: ' + path)
    return []


def run_kernel(lab, args):
    ways = {lab.name: ('rdma', 'pvrdma'), 'rxe': ('rdma', 'virtio'),
            'tcp': ('tcp', 'virtio')}
    if args.device:
        ways = {name: way for name, way in ways.items() if name == args.device}
    path = 'nothing'
    table = kusers.Table(ways)
    for kind in kusers.USERS:
        if not re.search(args.only, 'kernel: ' + kind().title):
            continue
        for turn in range(args.rounds):
            for name, way in ways.items():
                user = kind(way[0])
                table.add(name, user.title, kusers.examine(
                    lab.guests, user, lab.guests[1].ip(way[1]), not turn))
                lab.daemon.check()
                say('%s, %s: %s' % (user.title, name, table.last))
        suites.save('kernel-%s.json' % lab.title, table.plain())
        path = suites.save('kernel-%s.md' % lab.title, table.lines())
    print('\n'.join(table.lines()), flush=True)
    say('written: ' + path)
    return []


PARTS = {'pyverbs': run_pyverbs, 'programs': run_programs, 'kernel': run_kernel}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--stock', action='store_true',
                        help='the stock driver and provider instead of ours')
    parser.add_argument('--release', metavar='SUITE', help='guests of this release of '
                        'Debian, with our driver and provider')
    parser.add_argument('--memory', type=int, metavar='MB',
                        help='of each guest [1024, with --release 2048 for fabtests]')
    parser.add_argument('--record', action='store_true',
                        help='write the list of passing tests anew')
    parser.add_argument('--only', default='', metavar='REGEX',
                        help='of the programs those whose "GROUP: TITLE" matches')
    parser.add_argument('--device', default='', choices=['ours', 'stock', 'rxe', 'tcp'],
                        help='run programs and kernel users on this device only')
    parser.add_argument('--rounds', type=int, default=1, metavar='N',
                        help='kernel users: figures are medians of N rounds')
    parser.add_argument('part', nargs='*', help=', '.join(PARTS) + '; default: all')
    args = parser.parse_args()
    for part in args.part:
        if part not in PARTS:
            parser.error('no part %s' % part)
    if args.release and (args.stock or 'kernel' in args.part):
        parser.error('--release: only our parts, and no kernel users')

    def run():
        problems = []
        with Session('conformance') as session:
            lab = suites.Lab(session, not args.stock,
                              memory=args.memory or (2048 if args.release else 1024),
                              release=args.release)
            for part in args.part or [name for name in PARTS
                                      if name != 'kernel' or not args.release]:
                problems += PARTS[part](lab, args)
            end_well(lab.guests, lab.daemon)
        for line in problems:
            print('worse than recorded: ' + line)
        return 1 if problems else 0

    return script.run('conformance', run)


if __name__ == '__main__':
    sys.exit(main())
