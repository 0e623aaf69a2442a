# SPDX-License-Identifier: GPL-2.0-or-later
"""The guests that tests share end with the last test."""

import fixture
import pytest
from pvrdma_vm import DEBUG_PATIENCE, debug_kernel


def pytest_configure(config):
    fixture.LONG = config.getoption('--long')
    config.patience = DEBUG_PATIENCE if debug_kernel() else 1


@pytest.fixture(scope='session', autouse=True)
def shared_pair():
    yield
    fixture.shared.close()
