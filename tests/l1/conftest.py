# SPDX-License-Identifier: GPL-2.0-or-later
"""The modules of tests/vm are for these tests, too."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), 'vm'))
