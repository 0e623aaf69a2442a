# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests, demos and benchmarks of tests/vm have in common."""
