# SPDX-License-Identifier: GPL-2.0-or-later
"""What pytest does besides for tests/hw, tests/l1 and tests/vm, which are unittest classes.

    pytest-3 tests/vm [--shard NAME] [--co] [-k 'NAME or NAME'] [--junitxml=FILE]

A line per test as it ends, with its seconds; of a failure what it says, then where.
Without --shard the core runs: what is in no shard (shards.py, `fixture.shard`), and the
short form of what is longer in one.  With it that shard alone, in which tests that look for
rare events run for minutes; with `--shard all` every test, in its short form.

No test hangs the run: after LIMIT seconds, or the test's or its class's own
`time_limit`, it gets the exception TimeLimit wherever it is, and again every RETRY
seconds should it hang in its cleaning up.  What setUpClass does counts for itself,
what tearDownClass does as well.

SIGTERM ends the run as Ctrl-C does: what tests started is ended, the results so far
are written, and the exit status is neither 0 nor 1.
"""

import contextlib
import signal

import pytest
import shards
from _pytest.unittest import TestCaseFunction

LIMIT = 600
LONG_LIMIT = 5400
RETRY = 60


class TimeLimit(pytest.fail.Exception):
    """No Exception: tests catch those for reasons of their own."""


def pytest_addoption(parser):
    names = [name for name, shard in shards.SHARDS.items() if shard.by == 'vm']
    parser.addoption('--shard', metavar='NAME', choices=[*names, 'all'],
                     help='the tests that `make check` leaves out, or runs shorter: one of '
                     '%s; or all tests, those of `make check`, too' % ', '.join(names))


def shard_of(item):
    """(kind, shard's name) of a test: kind is core, shard or longer.

    The mark of a class is for all that it has, but 'longer' leaves alone what has a mark of
    its own.  It is not inherited, so that no test leaves the core because of what is said
    elsewhere: who derives from a marked class has to say where it is itself."""
    cls, function = item.cls, item.function
    of_class = vars(cls).get('shard_mark') if cls else None
    if cls and not of_class:
        for base in cls.__mro__[1:]:
            if vars(base).get('shard_mark', ('core', None))[0] != 'core':
                raise ValueError('%s needs a mark, as its base %s has one: fixture.shard, '
                                 'longer or core' % (cls.__qualname__, base.__qualname__))
    own = getattr(function, 'shard_mark', None)
    if own and of_class and of_class[0] == 'shard':
        if own != of_class and item.name in vars(cls):
            raise ValueError('%s is in two shards: %s and %s' % (
                item.nodeid, own[1], of_class[1]))
        return of_class
    return own or of_class or ('core', None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves the tests of --shard.  A test whose mark makes no sense ends the run."""
    chosen = config.getoption('--shard')
    left, out, wrong = [], [], []
    for item in items:
        try:
            kind, name = shard_of(item)
        except ValueError as exc:
            wrong.append(str(exc))
            continue
        wanted = chosen == 'all' or (name == chosen if chosen else kind != 'shard')
        (left if wanted else out).append(item)
    if wrong:
        raise pytest.UsageError('\n'.join(dict.fromkeys(wrong)))
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = left


def on_sigterm(*_):
    """Once: another one would end the cleaning up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def pytest_configure():
    signal.signal(signal.SIGTERM, on_sigterm)


@contextlib.contextmanager
def limit(item):
    """Interrupts the main thread when the time of this part of @item is over."""
    seconds = getattr(item.obj, 'time_limit', 0) or getattr(item.cls, 'time_limit', 0) or \
        (LONG_LIMIT if item.config.getoption('--shard') else LIMIT)
    seconds *= getattr(item.config, 'patience', 1)

    def over(*_):
        raise TimeLimit('not done within %g s' % seconds)

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, RETRY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    item.failed = True  # until it has ended well
    with limit(item):
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    with limit(item):
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    with limit(item):
        yield


def add_sub_test(self, test, subtest, err):
    """Without this a subTest() that fails would end its test, and not say which it is."""
    if err is not None:
        err[1].subtest = str(subtest).replace(str(test) + ' ', '', 1)
        self.addError(test, err)


TestCaseFunction.addSubTest = add_sub_test
TestCaseFunction.failfast = False


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """An interruption leaves a test's cleanups undone."""
    outcome = yield
    if outcome.excinfo and getattr(item, '_testcase', None):
        item._testcase.doCleanups()


def named(excinfo, text):
    subtest = getattr(excinfo.value, 'subtest', '')
    return '%s: %s' % (subtest, text) if subtest else text


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """`failed` tells fixtures that end after the test.  What else went wrong in it, of
    which pytest would take only the first for its teardown's, belongs to its report."""
    report = (yield).get_result()
    if call.when != 'call':
        return
    item.failed = report.failed or bool(item._excinfo)
    if report.failed:
        crash = report.longrepr.reprcrash
        crash.message = named(call.excinfo, crash.message)
        for more in item._excinfo or ():
            report.longrepr.addsection('also: ' + named(more, more.exconly()),
                                       str(item.repr_failure(more)))
        item._excinfo = []


def pytest_report_teststatus(report):
    """Only counted, and printed below; what setUpClass says is no failure of another
    kind."""
    if report.failed:
        return 'failed', '', 'FAILED'
    if report.skipped or report.when == 'call':
        return report.outcome, '', ''
    return '', '', ''


def pytest_collectreport(report):
    if report.failed:
        print('FAILED   %s: it cannot be read\n%s' % (report.nodeid, report.longreprtext))


def pytest_runtest_logreport(report):
    if report.failed:
        where = '' if report.when == 'call' else ', in its ' + report.when
        crash = getattr(report.longrepr, 'reprcrash', None)
        trace = report.longreprtext.splitlines()
        while crash and trace and trace[-1].startswith('E '):
            trace.pop()  # once is enough
        print('FAILED   %s (%.1f s)%s: %s' % (report.nodeid, report.duration, where,
                                              crash.message if crash else ''))
        print('\n'.join(trace), flush=True)
    elif report.skipped:
        print('skipped  %s: %s' % (
            report.nodeid, getattr(report, 'wasxfail', '') or
            report.longrepr[2].replace('Skipped: ', '', 1)), flush=True)
    elif report.when == 'call':
        print('passed   %s (%.1f s)' % (report.nodeid, report.duration), flush=True)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_sessionfinish(session, exitstatus):
    # All of it was printed when it happened.
    session.config.option.tbstyle = 'no'
    outcome = yield
    # Daemons and guests get the same signal if it is sent to the group.
    if exitstatus == pytest.ExitCode.INTERRUPTED and outcome.excinfo:
        print('while cleaning up: %s' % outcome.excinfo[1], flush=True)
        outcome.force_result(None)
