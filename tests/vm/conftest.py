# SPDX-License-Identifier: GPL-2.0-or-later
"""The guests that tests share end with the last test."""

import pytest
from lib import fixture
from lib.pvrdma_vm import patience


def pytest_configure(config):
    fixture.LONG = config.getoption('--shard') not in (None, 'all')
    config.patience = patience()


@pytest.fixture(scope='session', autouse=True)
def shared_pair():
    yield
    fixture.shared.close()
