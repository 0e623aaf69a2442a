# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests with other people's RDMA programs and suites, on our device and on soft-RoCE.

A Lab is a daemon and two guests that have mounted the disk of `debian-root.sh suites`.
In each are two RDMA devices at the same time: the adapter (beside vmxnet3) with our
driver and provider or the stock ones, and soft-RoCE on a virtio-net interface, whose
results are the measure of what a program can expect of a RoCE device.
"""

import collections
import contextlib
import json
import os
import subprocess

from lib import debiandisk, parts, pvrdma_vm
from lib.pvrdma_vm import BUILD, REPO, Daemon, Guest, VmError, start_guests
from lib.programs import Pair

HERE = os.path.join(REPO, 'tests', 'vm')
RESULTS = os.path.join(BUILD, 'conformance')
LISTS = os.path.join(HERE, 'conformance')
INTERFACES = {'pvrdma': 'vmx0', 'virtio': 'vio0'}
PYVERBS = '/opt/pyverbs-tests'
# New processes after tests that ended theirs.
RESTARTS = 12


def other_kernel(release):
    """Boot guests with the kernel of another Debian release from now on; the file of
    our driver for it."""
    done = subprocess.run([os.path.join(REPO, 'guest-driver', 'build-env.sh'), '--boot',
                           release, BUILD], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode:
        raise VmError('no kernel of %s:\n%s' % (release, done.stdout))
    folder = os.path.join(BUILD, 'guest-driver', release)
    pvrdma_vm.IMAGES = os.path.join(folder, 'images')
    return os.path.join(folder, 'pvrdma.ko')


class Keeper(Guest):
    """A guest with two disks more, STORES, that are empty at first and keep what is
    written when its QEMU is killed."""

    STORES = ('/dev/vdb', '/dev/vdc')
    SIZE = 96 << 20

    def __init__(self, session, number, *args, **options):
        super().__init__(session, number, *args, **options)
        for index in range(len(self.STORES)):
            path = session.path('%s-store%d.img' % (self.name, index))
            with open(path, 'wb') as stream:
                stream.truncate(self.SIZE)
            self.extra_args += [
                '-drive', 'file=%s,if=none,id=store%d,format=raw' % (path, index), '-device',
                'virtio-blk-pci,drive=store%d,bus=pcie.0,addr=0x%x.0' % (index, 9 + index)]


class Lab:
    """@own: our driver and provider, not the stock ones.  @force_mr: the kernel's
    targets register memory for each transfer, as they would for iWARP.  @release: the
    name of the Debian release, if it is another one than the guest image's, for its
    kernel and programs; with our parts.  @kind: of the guests."""

    def __init__(self, session, own=True, memory=1024, cpus=1, force_mr=False,
                 release=None, kind=Guest):
        self.name = 'ours' if own else 'stock'
        # Of files with results and of lists.
        self.title = self.name + ('-' + release if release else '')
        self.force_mr = force_mr
        disk = debiandisk.make('suites', release)
        files = debiandisk.files(release)
        if own:
            files.update(parts.guest_files())
        if release:
            files[parts.MODULE] = other_kernel(release)
        with open(os.path.join(HERE, 'pyverbs-run.py'), 'rb') as stream:
            files['opt/pyverbs-run.py'] = stream.read()
        self.daemon = Daemon(session, ['vm1', 'vm2'])
        self.guests = start_guests(session, self.daemon, memory=memory, cpus=cpus,
                                   files=files, extra_args=debiandisk.drive(disk),
                                   kind=kind, boot=bool(release))
        device = parts.OWN_DEVICE if own else parts.STOCK_DEVICE
        for guest in self.guests:
            self.set_up(guest, own)
            guest.load_rxe()
            # What base.py of pyverbs looks at, see debian-root.sh.
            guest.run('cp /opt/pyverbs-run.py /tmp/; '
                      'mkdir -p /tmp/rdma-net/%s/vmx0 /tmp/rdma-net/rxe0/vio0' % device)
        self.pairs = {self.name: Pair(self.guests, 'pvrdma', device),
                      'rxe': Pair(self.guests, 'virtio', 'rxe0')}

    def set_up(self, guest, own):
        """Of a guest that has booted; until its device has the GID of its address."""
        guest.run(debiandisk.MOUNT)
        if self.force_mr:
            guest.run('modprobe ib_core force_mr=1')
        if own:
            guest.run('mount --bind %s /debian%s' % (parts.LIBRARY, parts.STOCK_LIBRARY))
        self.load(guest, own)

    def load(self, guest, own):
        """The adapter's driver, and wait for the GID of its address."""
        if own:
            parts.load_own_driver(guest)
        else:
            guest.load_pvrdma()
        guest.gid_index(parts.OWN_DEVICE if own else parts.STOCK_DEVICE,
                        guest.ip('pvrdma'))

    def carried(self, name, datagrams=True):
        """Messages that the guests have sent on the device of that pair, of ours without
        @datagrams if they are not to count; of soft-RoCE its packets."""
        if name == 'rxe':
            return sum(int(guest.run('cat /sys/class/infiniband/rxe0/ports/1/hw_counters/'
                                     'sent_pkts').out) for guest in self.guests)
        return sum(vm['datapath']['tx_messages'] -
                   (0 if datagrams else vm['datagrams']['sent'])
                   for vm in self.daemon.ctl_json('counters')['vms'])

    @contextlib.contextmanager
    def alone(self, name):
        """While this lasts the guests have no RDMA device but that of pair @name; None:
        all."""
        away = [other for other in self.pairs if name and other != name]
        for guest in self.guests:
            for other in away:
                guest.run('rdma link delete rxe0' if other == 'rxe' else
                          'rmmod pvrdma' if other == 'ours' else 'modprobe -r vmw_pvrdma')
        try:
            yield
        finally:
            for guest in self.guests:
                if not guest.alive:
                    continue
                if 'rxe' in away:
                    guest.load_rxe()
                elif away:
                    self.load(guest, 'ours' in away)
            for other in away:
                self.pairs[other].find_gids()

    def restart(self, guest, own):
        """End @guest's QEMU as a crash does, and boot it anew."""
        guest.kill()
        guest.start().wait_boot()
        self.set_up(guest, own)


# -- pyverbs -----------------------------------------------------------------------

Verdict = collections.namedtuple('Verdict', 'kind reason')


def _read(results, text):
    """Take the lines of one process into @results; whether it came to its end, and
    the test that it was in."""
    running = None
    for line in text.splitlines():
        words = line.split('\t')
        if words[0] == 'begin':
            running = words[1]
        elif words[0] in ('passed', 'skipped', 'failed') and len(words) == 3:
            results[words[1]] = Verdict(words[0], words[2])
            running = None
        elif words == ['end']:
            return True, None
    return False, running


class PyverbsRun:
    """The suite on a device of one guest, one process that talks to itself.

    start(), then finish(), so that two guests can work at the same time.  @leave_out:
    names of tests that are not to run.
    """

    def __init__(self, pair, guest, leave_out=()):
        self.guest = pair.guests[guest]
        self.device = pair.device
        self.gid = pair.gids[guest]
        self.leave_out = list(leave_out)
        self.results = {}
        self.errors = ''
        self.job = None

    def start(self):
        done = '/tmp/done-' + self.device
        self.guest.run('cat > %s <<EOF\n%s\nEOF' % (
            done, '\n'.join(self.leave_out + list(self.results))))
        self.job = self.guest.spawn(
            'deb PYTHONHASHSEED=0 sh -c "cd %s && exec python3 /tmp/pyverbs-run.py '
            '%s %d %s"'
            % (PYVERBS, self.device, self.gid, done), 500)
        return self

    def finish(self):
        """{name: Verdict}; a test that ended the process has failed."""
        for _ in range(RESTARTS):
            job = self.job.wait()
            self.errors += job.err
            ended, running = _read(self.results, job.out)
            if ended:
                return self.results
            if not running:
                raise VmError('pyverbs ended outside of its tests: ' + job.describe())
            self.results[running] = Verdict('failed', 'ended the process: %s %s; %s' % (
                job.how, job.code, ' '.join(job.err.split()[-30:])))
            self.start()
        raise VmError('pyverbs ended %d times' % RESTARTS)


Skip = collections.namedtuple('Skip', 'group reason')


class Expected:
    """The list of a kind of parts in the tree: `pass NAME`, `fail NAME REASON` and
    `skip NAME GROUP REASON`.

    REASON of a skip is what the suite says, and must stay that; GROUP is a line of
    pyverbs-skips.txt, which says why the parts do not have what it asks for.  What is
    not listed at all is new, and may pass.
    """

    HEAD = ('# pyverbs on pvrdma, parts: %s.  Made by `make conformance CONFORMANCE='
            '"--record pyverbs"`;\n# the reason of a `fail` and the group of a `skip` are '
            'written by hand and kept.\n')
    # Of a skip that nobody has looked at.
    NO_GROUP = '?'

    def __init__(self, name):
        self.name = name
        self.path = os.path.join(LISTS, 'pyverbs-%s.txt' % name)
        self.passing = set()
        self.failing = {}
        self.skipped = {}
        if not os.path.exists(self.path):
            return
        with open(self.path) as stream:
            for line in stream:
                words = line.rstrip('\n').split(' ', 2)
                if words[0] == 'pass':
                    self.passing.add(words[1])
                elif words[0] == 'fail':
                    self.failing[words[1]] = words[2]
                elif words[0] == 'skip':
                    self.skipped[words[1]] = Skip(*words[2].split(' ', 1))

    def problems(self, results):
        """What is worse than the list says, as lines."""
        lines = []
        for test in sorted(self.passing):
            found = results.get(test, Verdict('not run', 'no such test'))
            if found.kind != 'passed':
                lines.append('%s passed once, now: %s: %s' % (test, found.kind,
                                                             found.reason))
        for test, found in sorted(results.items()):
            if test in self.passing or test in self.failing:
                continue
            if found.kind == 'failed':
                lines.append('%s failed: %s' % (test, found.reason))
            elif found.kind == 'skipped' and test not in self.skipped:
                lines.append('%s is skipped, no reason is listed: %s' % (test,
                                                                        found.reason))
            elif found.kind == 'skipped' and found.reason != self.skipped[test].reason:
                lines.append('%s is skipped for a new reason: %s' % (test, found.reason))
        return lines

    def record(self, results):
        """Write the list anew."""
        lines = []
        for test, found in results.items():
            if found.kind == 'passed':
                lines.append('pass ' + test)
            elif found.kind == 'failed':
                lines.append('fail %s %s' % (test, self.failing.get(test, found.reason)))
            else:
                old = self.skipped.get(test)
                group = old.group if old and old.reason == found.reason else self.NO_GROUP
                lines.append('skip %s %s %s' % (test, group, found.reason))
        os.makedirs(LISTS, exist_ok=True)
        with open(self.path, 'w') as stream:
            stream.write(self.HEAD % self.name + '\n'.join(sorted(lines)) + '\n')


def skip_groups():
    """{group: why}, in the order of pyverbs-skips.txt."""
    groups = {}
    with open(os.path.join(LISTS, 'pyverbs-skips.txt')) as stream:
        for line in stream:
            if not line.startswith('#'):
                group, why = line.rstrip('\n').split(' ', 1)
                groups[group] = why
    return groups


def recorded():
    """{title: Expected} of all lists in the tree."""
    return {'ours': Expected('ours'), 'stock parts': Expected('stock'),
            'ours, Debian 13': Expected('ours-trixie')}


def skips_table():
    """Markdown of the recorded skips, by reason.  A cell counts the tests of each
    file."""
    columns = recorded()
    lines = ['| skipped because | ' + ' | '.join(columns) + ' |',
             '|---' * (len(columns) + 1) + '|']
    total = ['all']
    for group, why in skip_groups().items():
        row = [why]
        for expected in columns.values():
            files = collections.Counter(test.split('.')[0] for test, skip in
                                        expected.skipped.items() if skip.group == group)
            row.append(', '.join('%s %d' % (name.replace('test_', '', 1), number)
                                 for name, number in sorted(files.items())))
        lines.append('| ' + ' | '.join(row) + ' |')
    total += [str(len(expected.skipped)) for expected in columns.values()]
    lines.append('| ' + ' | '.join(total) + ' |')
    return lines


def pyverbs_table(columns):
    """Markdown: passed/skipped/failed per file of the suite; @columns: {title:
    results}.  Below it, what passes on soft-RoCE and not on the adapter."""
    files = sorted({test.split('.')[0] for results in columns.values()
                    for test in results})
    lines = ['| file | ' + ' | '.join(columns) + ' |', '|---' * (len(columns) + 1) + '|']
    for name in files + ['all']:
        row = [name]
        for results in columns.values():
            kinds = collections.Counter(
                found.kind for test, found in results.items()
                if name in ('all', test.split('.')[0]))
            row.append('%d/%d/%d' % (kinds['passed'], kinds['skipped'],
                                     kinds['failed']))
        lines.append('| ' + ' | '.join(row) + ' |')
    return lines


def differences(ours, other):
    """Names that pass in @other and not in @ours, and what they do there."""
    return ['%s: %s: %s' % ((test,) + tuple(ours.get(test, Verdict('not run', ''))))
            for test, found in sorted(other.items())
            if found.kind == 'passed' and ours.get(test, found).kind != 'passed']


def save(name, what):
    """Keep @what, as JSON or as lines, in the build folder; the file's path."""
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, name)
    with open(path, 'w') as stream:
        if name.endswith('.json'):
            json.dump(what, stream, indent=1, sort_keys=True)
        else:
            stream.write('\n'.join(what) + '\n')
    return path


def run_pyverbs(lab, leave_out=()):
    """On the adapter in one guest and on soft-RoCE in the other at the same time:
    {'ours' or 'stock': results, 'rxe': results}, also kept in the build folder."""
    runs = {name: PyverbsRun(pair, guest, leave_out if name != 'rxe' else ()).start()
            for guest, (name, pair) in enumerate(lab.pairs.items())}
    found = {name: run.finish() for name, run in runs.items()}
    for name, run in runs.items():
        save('pyverbs-%s.log' % name, [run.errors])
    save('pyverbs-%s.json' % lab.title,
         {name: {test: list(verdict) for test, verdict in results.items()}
          for name, results in found.items()})
    return found
