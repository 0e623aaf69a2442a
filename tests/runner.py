# SPDX-License-Identifier: GPL-2.0-or-later
"""What runs tests for `make check` and `make soak`, and counts what came of them.

A layer or shard is a Counts and some Tasks that add to it.  A task is a generator: it
starts a Job, yields it, and goes on when that has ended.  run_tasks() runs them side by
side: each has a weight, in halves of a processor, and those that are begun weigh no more
than the machine has; tasks of one lane run one at a time.  There are no threads here but
the timers that end jobs.

Time: every test of every layer has a limit, kept by meson or by tests/conftest.py; a test
that hangs fails and the next one runs.  Should a runner itself hang, it is ended after its
job's limit with what it started, and fails.

Counting: a TAP program counts with each of its cases, any other program as one.  A program
that crashes, times out, exits with an error or runs fewer cases than it planned counts at
least one failure.  A skip is named with its reason and is never a
pass.  A layer that counts nothing fails.

What a job says goes to a file in BUILDDIR/check-logs; of one that failed it is printed.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree

import shards

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds for a job of a layer; of shards, SHARD_LIMIT.
LIMIT = {'style': 900, 'tests': 2400, 'asan': 3000, 'tsan': 3000, 'fuzz': 1800,
         'hw': 1200, 'vm': 3600}
SHARD_LIMIT = 3600
PROCESSORS = len(os.sched_getaffinity(0))
# Halves of a processor: what may be begun at a time, and what a usual task weighs.
CAPACITY = 2 * PROCESSORS
USUAL = 2
# Programs of meson's wait more than they compute.
AT_ONCE = 2 * PROCESSORS
VM_FOLDERS = ['vm', 'l1']  # tests with guests
# Of the vm layer: what takes longest, and what has a pair of guests in common.
VM_FIRST = ['driver', 'provider', 'migrate', 'rdmacm', 'conformance', 'hosts_wire']
VM_PAIR = ['boot', 'datacheck', 'lifecycle', 'perftest', 'pingpong']
# As the Makefile has it.
os.environ.setdefault('CCACHE_BASEDIR', SOURCE)
os.environ.setdefault('CCACHE_NOHASHDIR', '1')
SHOWN = 300  # lines of a failed job's output
TAP_LINE = re.compile(r'^(not )?ok\b\s*(\d+)?\s*(?:-\s*)?([^#]*)(?:#\s*(.*))?$')
TAP_OTHER = re.compile(r'\s*(#|$)|TAP version |Bail out!|pragma ')
TAP_PLAN = re.compile(r'^1\.\.(\d+)\s*(?:#\s*(.*))?$')


class Counts:
    """Passed, failed and skipped of one layer, with a line for each that did not pass, and
    the seconds that it took of the clock and of processors."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0
        self.notes = []
        self.cpu = 0.0
        self.began = self.ended = None

    def add(self, outcome, what, reason=''):
        if outcome == 'passed':
            self.passed += 1
        elif outcome == 'skipped':
            self.skipped += 1
            self.notes.append('skipped  %s: %s' % (what, reason or
                                                   'no reason given'))
        else:
            self.failed += 1
            self.notes.append('FAILED   %s%s' % (what, reason and
                                                 ': ' + reason))

    def line(self):
        return '%d passed, %d failed, %d skipped' % (
            self.passed, self.failed, self.skipped)

    @property
    def seconds(self):
        return self.ended - self.began if self.ended else 0.0


# ---------------------------------------------------------------------- counting

def count_tap(counts, name, text):
    """Count the cases in TAP output; returns (cases, failures, planned)."""
    cases = failures = 0
    planned = None
    for line in text.splitlines():
        plan = TAP_PLAN.match(line)
        if plan:
            planned = int(plan.group(1))
            if planned == 0:
                counts.add('skipped', name, plan.group(2))
            continue
        found = TAP_LINE.match(line)
        if not found:
            if not TAP_OTHER.match(line):
                counts.add('failed', name, 'this line is no TAP: %r' % line)
            continue
        cases += 1
        bad, _, title, directive = found.groups()
        what = '%s %s' % (name, title.strip())
        directive = directive or ''
        if directive.upper().startswith('SKIP'):
            counts.add('skipped', what, directive[4:].strip())
        elif bad:
            failures += 1
            counts.add('failed', what, directive)
        else:
            counts.add('passed', what)
    return cases, failures, planned


def count_record(counts, record):
    """Count one program of testlog.json."""
    name = record['name'].split(' / ', 1)[-1]
    good = record['result'] in ('OK', 'EXPECTEDFAIL')
    text = record.get('stdout') or ''
    cases, failures, planned = (0, 0, None)
    if re.search(r'^1\.\.\d', text, re.MULTILINE):
        cases, failures, planned = count_tap(counts, name, text)
    if planned is None:
        if record['result'] == 'SKIP':
            counts.add('skipped', name, text.strip().splitlines()[-1]
                       if text.strip() else '')
        else:
            counts.add('passed' if good else 'failed', name,
                       '' if good else describe(record))
    elif record['result'] != 'SKIP' and not good and not failures:
        counts.add('failed', name, describe(record))
    elif cases < planned:
        counts.add('failed', name, 'planned %d cases, ran %d; %s'
                   % (planned, cases, describe(record)))


def count_meson(counts, path):
    """Count what `meson test` wrote to its testlog.json."""
    records = []
    with open(path) as stream:
        for line in stream:
            try:
                records.append(json.loads(line))
            except ValueError:
                counts.add('failed', counts.name, "meson's results are cut short")
    for record in records:
        count_record(counts, record)
    if not records:
        counts.add('failed', counts.name, 'meson ran no test')


def describe(record):
    """Why meson calls a test bad, and what it said last."""
    said = []
    for part in ('stdout', 'stderr'):
        said += [text.strip() for text in (record.get(part) or '').splitlines()
                 if text.strip() and not TAP_LINE.match(text)][-3:]
    return '%s, status %s, %.1f s; it said: %s' % (
        record['result'], record.get('returncode'),
        record.get('duration') or 0, ' | '.join(said) or 'nothing')


def count_pytest(counts, path, job):
    """Count what pytest wrote to @path."""
    failed = counts.failed
    if os.path.exists(path):
        try:
            for test in xml.etree.ElementTree.parse(path).iter('testcase'):
                count_case(counts, test)
        except xml.etree.ElementTree.ParseError as exc:
            counts.add('failed', counts.name, "pytest's results are cut short: %s" % exc)
    # 1: some failed.  It writes its log when it is interrupted, too.
    if not os.path.exists(path) or job.late or job.status not in (0, 1) or \
            (job.problem() and counts.failed == failed):
        counts.add('failed', counts.name, 'pytest did not come to its end: '
                   + (job.problem() or 'it left no results'))


def count_case(counts, test):
    """Count one test of JUnit's XML; what it says first is its reason."""
    if not test.get('name'):
        return  # begun when the run was interrupted
    name = '%s.%s' % (test.get('classname'), test.get('name'))
    for tag, outcome in (('failure', 'failed'), ('error', 'failed'), ('skipped', 'skipped')):
        found = test.find(tag)
        if found is not None:
            counts.add(outcome, name, (found.get('message') or '').strip().partition('\n')[0])
            return
    counts.add('passed', name)


# ------------------------------------------------------------------ jobs and tasks

class Job:
    """A program in a process group of its own, which ends with its limit; what it says is
    in the file @log, or of this program's output without."""

    GRACE = 20  # seconds to end by itself

    def __init__(self, argv, limit, log=None, env=None):
        print('+ %s' % ' '.join(argv), flush=True)
        self.argv = argv
        self.limit = limit
        self.log = log
        self.late = False
        self.status = None
        self.cpu = 0.0
        if log:
            os.makedirs(os.path.dirname(log), exist_ok=True)
        out = open(log, 'w') if log else None
        try:
            self.proc = subprocess.Popen(
                argv, cwd=SOURCE, env=env, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT if out else None)
        finally:
            if out:
                out.close()
        self.timer = threading.Timer(limit, self._late)
        self.timer.daemon = True
        self.timer.start()

    def _late(self):
        self.late = True
        self._signal()

    def _signal(self):
        # What handles SIGTERM removes its folders and guests.
        for sig in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + self.GRACE
            try:
                os.killpg(self.proc.pid, sig)
                while time.monotonic() < end:
                    time.sleep(0.05)
                    self.has_ended()
                    os.killpg(self.proc.pid, 0)
            except ProcessLookupError:
                return

    def has_ended(self):
        """Whether it has, without waiting."""
        if self.status is None:
            try:
                pid, status, usage = os.wait4(self.proc.pid, os.WNOHANG)
            except ChildProcessError:  # the timer's thread was here
                return self.status is not None
            if pid:
                self.cpu = usage.ru_utime + usage.ru_stime
                self.status = self.proc.returncode = os.waitstatus_to_exitcode(status)
                self._sweep()
        if self.status is None:
            return False
        self.timer.cancel()
        return True

    def _sweep(self):
        """What it left, if it died by itself, would run beside other jobs."""
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
            print('%s left processes, which are ended' % self.argv[0], flush=True)
        except ProcessLookupError:
            pass

    def interrupt(self):
        """As its limit does, without waiting; terminals do not interrupt other groups."""
        if not self.has_ended():
            threading.Thread(target=self._signal, daemon=True).start()

    def problem(self):
        """Why it failed, or nothing."""
        if self.late:
            return 'not done within %d s' % self.limit
        return 'ended with status %d' % self.status if self.status else ''

    def said(self):
        with open(self.log, errors='replace') as stream:
            return stream.read()


class Task:
    """Part of what @counts counts: @steps yields Jobs."""

    def __init__(self, counts, steps, weight=USUAL, lane=None):
        self.counts, self.steps = counts, steps
        self.weight = min(weight, CAPACITY)
        self.lane = lane
        self.job = None

    def advance(self):
        """Go on to the next job; False at the end."""
        counts, ended, said = self.counts, self.job, ''
        if counts.began is None:
            counts.began = time.monotonic()
        if ended:
            counts.cpu += ended.cpu
            said = ended.said() if ended.log else ''
        failed = counts.failed
        try:
            self.job = next(self.steps, None)
        except Exception as exc:  # one layer that cannot go on must not hide the others
            counts.add('failed', counts.name, 'its run broke off: %r' % exc)
            self.job = None
        if ended and ended.log and (ended.problem() or counts.failed > failed):
            print('--- %s: %s\n%s\n---' % (
                ' '.join(ended.argv), ended.problem() or 'failures',
                '\n'.join(said.splitlines()[-SHOWN:])), flush=True)
        counts.ended = time.monotonic()
        return self.job is not None


def run_tasks(tasks):
    """Run them side by side to their end, the first ones first."""
    waiting, running = list(tasks), []
    try:
        while waiting or running:
            idle = True
            for task in list(waiting):
                if task.weight + sum(other.weight for other in running) <= CAPACITY and \
                        (not task.lane or task.lane not in [other.lane for other in running]):
                    waiting.remove(task)
                    running.append(task)
                    idle = False
                    task.advance()
            for task in list(running):
                if not task.job:
                    running.remove(task)
                elif task.job.has_ended():
                    idle = False
                    if not task.advance():
                        running.remove(task)
                        if task.counts not in [other.counts for other in waiting + running]:
                            print('== %s: %s' % (task.counts.name, task.counts.line()),
                                  flush=True)
            if idle:
                time.sleep(0.1)
    except BaseException:
        # Nothing that was started outlives this, also if somebody is impatient.
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN)
        jobs = [task.job for task in running if task.job]
        for job in jobs:
            job.interrupt()
        while not all(job.has_ended() for job in jobs):
            time.sleep(0.05)
        raise


def end_with_jobs():
    """What was started ends with this program; to be called once, first."""
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # jobs are waited for


def keeps_ledger():
    """CI's tree is thrown away."""
    return os.environ.get('CI', '') in ('', '0', 'false')


class Summary:
    """Results of layers and shards; the closing line is kept in the file @path."""

    def __init__(self, path, start):
        self.path, self.start = path, start
        self.done = []
        if os.path.exists(path):
            os.unlink(path)

    def add(self, *counts):
        self.done += counts

    def end(self):
        """Print them all; returns the exit status."""
        print('\n%.0f s' % (time.monotonic() - self.start))
        notes = [(counts.name, note) for counts in self.done for note in counts.notes]
        # What failed stands last: an output that was cut short still has it.
        for failed in (False, True):
            for name, note in notes:
                if note.startswith('FAILED') == failed:
                    print('%-8s %s' % (name, note))
        print('%-20s %6s %6s' % ('', 'clock', 'cpu'))
        for counts in self.done:
            print('%-20s %5.0f s %5.0f s  %s' % (counts.name, counts.seconds, counts.cpu,
                                                 counts.line()))
        total = total_of(self.done)
        with open(self.path, 'w') as stream:
            stream.write(total.line() + '\n')
        print(total.line(), flush=True)
        return 1 if total.failed or not total.passed else 0


def each_counts(tasks):
    """What they have counted, once each."""
    return list({id(task.counts): task.counts for task in tasks}.values())


def total_of(done, name='total'):
    total = Counts(name)
    for counts in done:
        total.passed += counts.passed
        total.failed += counts.failed
        total.skipped += counts.skipped
        total.notes += counts.notes
        total.cpu += counts.cpu
    ran = [counts for counts in done if counts.ended]
    if ran:
        total.began = min(counts.began for counts in ran)
        total.ended = max(counts.ended for counts in ran)
    return total


# ---------------------------------------------------------------------- layers

# What to build with, and what to run it with.
SANITIZERS = {
    'asan': ('address,undefined',
             {'ASAN_OPTIONS': 'detect_leaks=1:abort_on_error=1',
              'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1'}),
    'tsan': ('thread', {'TSAN_OPTIONS': 'halt_on_error=1'}),
}


def log_path(builddir, *parts):
    return os.path.join(builddir, 'check-logs', '-'.join(parts) + '.log')


def configured(builddir, what):
    """Whether config.mak says yes, or nothing, about WITH_<what>."""
    try:
        with open(os.path.join(builddir, 'config.mak')) as stream:
            return 'WITH_%s = no' % what not in stream.read()
    except FileNotFoundError:
        return True


def kind_of(builddir):
    """By which shards' suites there are in a build: plain, asan or tsan."""
    return next((kind for kind in SANITIZERS if builddir.endswith('-' + kind)), 'plain')


def meson_tests(builddir):
    """{name: its suites} of what `meson test` has in a build."""
    with open(os.path.join(builddir, 'meson-info', 'intro-tests.json')) as stream:
        return {test['name']: {suite.split(':')[-1] for suite in test['suite']}
                for test in json.load(stream)}


def foreign_suites(builddir):
    """Programs of meson's that are neither in the core nor in a shard that runs them."""
    known = set(shards.CORE_SUITES) | {
        'soak-' + name for name, shard in shards.SHARDS.items() if shard.by == kind_of(builddir)}
    for name, names in meson_tests(builddir).items():
        if len(names) != 1 or not names <= known:
            yield '%s: suites %s' % (name, ', '.join(sorted(names)) or 'none')


def meson_steps(counts, builddir, args, limit, env=None):
    """Run `meson test` in @builddir and count."""
    for problem in foreign_suites(builddir):
        counts.add('failed', counts.name, 'neither in the core nor in a shard of this build: ' +
                   problem)
    names = {arg for arg in args if not arg.startswith('-')}
    for name in sorted(names - meson_tests(builddir).keys()):
        counts.add('failed', name, 'there is no such test')
    failed = counts.failed
    log = os.path.join(builddir, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.unlink(log)
    job = Job(['meson', 'test', '-C', builddir, '--print-errorlogs',
               '--num-processes=%d' % AT_ONCE] + args, limit,
              log_path(builddir, counts.name, 'meson'), env)
    yield job
    if not os.path.exists(log):
        counts.add('failed', counts.name, 'meson test left no log: ' +
                   (job.problem() or 'status 0'))
        return
    count_meson(counts, log)
    if job.problem() and (counts.failed == failed or job.late):
        counts.add('failed', counts.name, 'meson test ' + job.problem())


def suites(names):
    return ['--suite=' + name for name in names]


def meson_task(name, builddir, args, limit, env=None):
    """In the plain build."""
    counts = Counts(name)
    return Task(counts, meson_steps(counts, builddir, args, limit, env), lane='meson')


def sanitizer_steps(counts, kind, build, runs, limit):
    """Build with a sanitizer into a folder of its own and run its tests; meson builds what
    these need before it runs them.  Of each of @runs the first says which, the second how
    many times their rounds."""
    options, settings = SANITIZERS[kind]
    builddir = '%s-%s' % (build, kind)
    full = dict(os.environ, **settings)
    job = Job(['./configure', '--builddir=' + builddir, '--sanitize=' + options,
               '--disable-qemu', '--disable-images', '--disable-fuzz', '--disable-check'],
              600, log_path(builddir, counts.name, 'configure'), full)
    yield job
    if job.problem():
        counts.add('failed', counts.name, 'configure ' + job.problem())
        return
    for which, times in runs:
        yield from meson_steps(counts, builddir,
                               ['--timeout-multiplier=%d' % (6 * times), *which], limit,
                               dict(full, VGUEST_SOAK=str(times)))


def sanitizer_task(name, kind, build, runs, limit):
    counts = Counts(name)
    return Task(counts, sanitizer_steps(counts, kind, build, runs, limit), lane='meson')


def script_steps(counts, builddir, argv, limit, env=None):
    """Run a script that prints `ok`, `FAIL` or `SKIP`, a name, a colon and a text for each
    of its checks."""
    outcomes = {'ok': 'passed', 'FAIL': 'failed', 'SKIP': 'skipped'}
    failed, checks = counts.failed, 0
    job = Job(argv, limit, log_path(builddir, counts.name, os.path.basename(argv[0])),
              dict(os.environ, **(env or {})))
    yield job
    for line in job.said().splitlines():
        word, _, rest = line.partition(' ')
        what, _, text = rest.strip().partition(': ')
        if word in outcomes:
            counts.add(outcomes[word], what, text)
            checks += 1
    if not checks and not job.problem():
        counts.add('failed', counts.name, '%s made no check' % argv[0])
    if job.problem() and (job.late or counts.failed == failed):
        counts.add('failed', counts.name, '%s %s' % (argv[0], job.problem()))


def script_task(name, builddir, argv, limit, env=None, **options):
    counts = Counts(name)
    return Task(counts, script_steps(counts, builddir, argv, limit, env), **options)


def said(counts, outcome, why):
    """A task that does nothing but say so."""
    def steps():
        counts.add(outcome, counts.name, why)
        yield from ()
    return Task(counts, steps())


def fuzz_task(name, builddir, seconds, limit, **options):
    """Run each fuzz target for some seconds."""
    if not configured(builddir, 'FUZZ'):
        return said(Counts(name), 'skipped', 'configured with --disable-fuzz')
    return script_task(name, builddir, [os.path.join('tests', 'fuzz', 'run.sh'), str(seconds)],
                       limit, {'BUILDDIR': builddir + '-fuzz'}, **options)


def vm_runs(found):
    """The files that were @found, in the order in which to begin them; those that have
    guests in common together."""
    def path(name):
        return os.path.join('tests', 'vm', 'test_%s.py' % name)
    first = [[path(name)] for name in VM_FIRST] + [[path(name) for name in VM_PAIR]]
    first = [kept for kept in ([name for name in some if name in found] for some in first)
             if kept]
    known = sum(first, [])
    return first + [[name] for name in sorted(found) if name not in known]


def collect(counts, folders, args, env):
    """Which files in @folders have tests for @args."""
    done = subprocess.run(['timeout', '600', 'pytest-3', *folders, '--co', *args], cwd=SOURCE,
                          env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, universal_newlines=True, check=False)
    if done.returncode not in (0, 5):  # 5: there is none
        print(done.stdout, flush=True)
        counts.add('failed', counts.name, 'pytest cannot say which tests there are')
    # They are said from where pytest.ini is.
    return sorted({os.path.join('tests', found) for found in
                   re.findall(r'^(\S+\.py)(?:::|: \d)', done.stdout, re.MULTILINE)})


def pytest_steps(counts, builddir, number, args, limit, env):
    path = os.path.join(builddir, 'check-logs', '%s-%s.xml' % (counts.name, number))
    if os.path.exists(path):
        os.unlink(path)
    what = os.path.basename(args[0]).replace('.py', '')
    job = Job(['pytest-3', *args, '--junitxml=' + path], limit,
              log_path(builddir, counts.name, what), env)
    yield job
    count_pytest(counts, path, job)


def pytest_env(builddir, env=None):
    return dict(os.environ, PVRDMA_BUILD=builddir, PYTEST_ADDOPTS='', **(env or {}))


def pytest_tasks(name, builddir, limit, runs=None, env=None, counts=None):
    """Tests by Debian's pytest, whichever Python runs this, a task for each of @runs, lists
    of its arguments; without these the tests in tests/NAME."""
    counts = counts or Counts(name)
    if not shutil.which('pytest-3'):
        outcome = 'failed' if configured(builddir, 'CHECK') else 'skipped'
        return [said(counts, outcome, 'pytest-3 is not installed (python3-pytest)')]
    return [Task(counts, pytest_steps(counts, builddir, number, args, limit,
                                      pytest_env(builddir, env)))
            for number, args in enumerate(runs or [[os.path.join('tests', name)]])]


def vm_tasks(name, builddir, limit, args=()):
    """The tests with guests that @args choose, each file in a run of its own.  Not
    test_debug.py, which has tests for another kernel only."""
    counts = Counts(name)
    if not shutil.which('pytest-3'):
        return pytest_tasks(name, builddir, limit, counts=counts)
    folders = [os.path.join('tests', folder) for folder in VM_FOLDERS]
    files = [file for file in collect(counts, folders, args, pytest_env(builddir))
             if os.path.basename(file) != 'test_debug.py']
    if not files:
        return [said(counts, 'failed', 'there is no such test')]
    return pytest_tasks(name, builddir, limit, [[*some, *args] for some in vm_runs(files)],
                        counts=counts)
