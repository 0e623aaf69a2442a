# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest's kernel complains of.

The kernel of images/build-debug-kernel.sh has lockdep, KASAN and more, which report
in its log.  Most of them report once and then look no more, so that they still look
is checked, too (test_debug.py shows that each is seen).
"""

import re

BAD_LOG = re.compile(r'BUG: |WARNING: |Oops|hung task|blocked for more|'
                     r'(?<!RCU )lockdep|Call Trace|refcount|'
                     r'workqueue: .* is flushing|'
                     r'waiting for .* to become|command \d+ failed|'
                     r'DMA-API: (?!preallocated|debugging enabled)|'
                     r'^kernel check: ')

# Of a debugging kernel: what has stopped, or has no more room, to report.
STOPPED = r'''
debug=/sys/kernel/debug
mountpoint -q $debug || mount -t debugfs debug $debug
grep -q 'debug_locks: *1$' /proc/lockdep_stats || echo 'kernel check: lockdep is off'
[ "$(cat $debug/dma-api/disabled)" = N ] || echo 'kernel check: DMA-API is off'
[ "$(cat $debug/dma-api/error_count)" = 0 ] || echo 'kernel check: DMA-API has errors'
'''


def log_problems(guest):
    """Lines of the kernel log that no test may cause, and checks that are off."""
    lines = guest.run('dmesg; ' + (STOPPED if guest.debug else ''),
                      check=False).out.splitlines()
    return [line for line in lines if BAD_LOG.search(line)]
