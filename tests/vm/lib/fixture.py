# SPDX-License-Identifier: GPL-2.0-or-later
"""Two guests that tests share.

Booting costs seconds, so tests that leave guests as they found them use one
pair: `class MyTest(fixture.PairTest)`, then self.guests, self.daemon and
self.rdma (the Pair on the pvrdma adapters).  After a failed test the pair is
thrown away with its logs kept, and the next test boots a new one.
"""

import os
import unittest

import pytest

from lib import hosts
from lib.programs import Pair
from lib.pvrdma_vm import BUILD, Daemon, Session, VmError, end_well, start_guests
from shards import SHARDS

# `pytest-3 --shard NAME`: tests that look for rare events run for minutes.
LONG = False


def _mark(kind, name):
    if name not in SHARDS or SHARDS[name].by != 'vm':
        raise ValueError('no shard %r of pytest in tests/shards.py' % name)

    def mark(what):
        if 'shard_mark' in vars(what):
            raise ValueError('%s is marked twice' % what.__qualname__)
        what.shard_mark = kind, name
        return what
    return mark


def shard(name):
    """Before a test, or a class of them, that only shard @name of `make soak` runs."""
    return _mark('shard', name)


def longer(name):
    """Before a test, or a class of them, that `make check` runs in a short form, and shard
    @name again with LONG."""
    return _mark('longer', name)


def core(what):
    """Before a class that is run by `make check`, though one that it is made of is not."""
    what.shard_mark = 'core', None
    return what


def require_build():
    """Skip if the build was configured without guests; not if it failed."""
    config = os.path.join(BUILD, 'config.mak')
    if os.path.exists(config):
        with open(config) as stream:
            text = stream.read()
        for what in ('QEMU', 'IMAGES'):
            if 'WITH_%s = no' % what in text:
                raise unittest.SkipTest('configured with --disable-%s'
                                        % what.lower())


class SharedPair:
    """Boots on first use; discard() after trouble, close() at the end."""

    def __init__(self):
        self.session = None
        self.daemon = None
        self.guests = []
        self.rdma = None
        self._rxe = None

    def get(self, boot=False):
        """@boot: guests that have booted, not begun from a template."""
        if boot and self.guests and self.guests[0].restored:
            self.close()
        if self.session is None:
            self.session = Session('shared-pair')
            try:
                self.daemon = Daemon(self.session, ['vm1', 'vm2'])
                self.guests = start_guests(self.session, self.daemon,
                                           boot=boot)
                for guest in self.guests:
                    guest.load_pvrdma()
                self.rdma = Pair(self.guests, 'pvrdma', 'vmw_pvrdma0')
            except BaseException as exc:
                self.discard(exc)
                raise
        return self

    def rxe(self):
        """The Pair on soft-RoCE in the same guests."""
        if self._rxe is None:
            for guest in self.guests:
                guest.load_rxe()
            self._rxe = Pair(self.guests, 'virtio', 'rxe0')
        return self._rxe

    def check(self):
        """Raise unless daemon and guests are well."""
        self.daemon.check()
        for guest in self.guests:
            if not guest.alive:
                raise VmError('%s ended unexpectedly' % guest.name)
            if not guest.agent.ping():
                raise VmError('%s does not answer' % guest.name)

    def discard(self, problem):
        if self.session:
            self.session.keep_logs(problem)
        self._drop()

    def _drop(self):
        if self.session:
            self.session.close()
        self.__init__()

    def close(self):
        """Power the guests off; the daemon must outlive them and end well.

        Raises VmError otherwise; the pair is gone in any case.
        """
        if self.session is None:
            return
        try:
            end_well(self.guests, self.daemon)
        except VmError as exc:
            self.discard(exc)
            raise VmError('at the end of the shared pair: %s' % exc) from exc
        self._drop()


shared = SharedPair()


class SessionTest(unittest.TestCase):
    """Tests that share what their class's boot() starts in cls.session.

    What it puts into cls.guests and cls.daemons has to end well with the class, and the
    daemons live through each test."""

    on_hosts = False  # whether it makes hosts
    guests = daemons = ()

    @classmethod
    def setUpClass(cls):
        require_build()
        if cls.on_hosts and not hosts.may_be_made():
            raise unittest.SkipTest('network namespaces need root')
        cls.require()
        shared.close()
        cls.session = Session('%s.%s' % (cls.__module__, cls.__name__))
        try:
            cls.boot()
        except BaseException as exc:
            cls.session.keep_logs(exc)
            cls.session.close()
            raise

    @classmethod
    def require(cls):
        """Get what the tests need of the machine, or skip them."""

    @classmethod
    def tearDownClass(cls):
        try:
            if cls.daemons:
                end_well(cls.guests, *cls.daemons)
        except BaseException as exc:
            cls.session.keep_logs(exc)
            raise
        finally:
            cls.session.close()

    def tearDown(self):
        for daemon in self.daemons:
            daemon.check()

    @pytest.fixture(autouse=True)
    def _keep(self, request):
        yield
        if request.node.failed:
            self.session.keep_logs('see the tests')


class PairTest(unittest.TestCase):
    """A test on the shared pair."""

    booted = False  # whether its guests have to have booted

    def setUp(self):
        require_build()
        pair = shared.get(self.booted)
        self.daemon = pair.daemon
        self.guests = pair.guests
        self.rdma = pair.rdma

    @pytest.fixture(autouse=True)
    def _keep(self, request):
        yield
        if request.node.failed and shared.session is not None:
            shared.discard('see the test')

    def tearDown(self):
        shared.check()


class PrivateTest(unittest.TestCase):
    """A test with guests and daemon of its own: self.session."""

    session = None

    @pytest.fixture(autouse=True)
    def _keep(self, request):
        yield
        if self.session:
            if request.node.failed:
                self.session.keep_logs('see the test')
            self.session.close()

    def setUp(self):
        require_build()
        # One pair at a time: the machine is small and emulation is not.
        shared.close()
        self.session = Session(self.id())
