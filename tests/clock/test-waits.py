#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""No program of the tests waits by what clock.c does not know: it would wait by the
kernel's clock while all else goes by another.

usage: test-waits.py NM LIBRARY PROGRAM...

LIBRARY is that of clock.c; the PROGRAMs count with GLib, as they are linked.  Prints TAP.
"""

import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'unit'))
import tap

# What sleeps or is given a timeout by a monotonic clock, or looks at one.
WAITS = set('''
    aio_suspend alarm clock_gettime clock_nanosleep epoll_pwait epoll_pwait2 epoll_wait
    g_async_queue_timeout_pop g_cond_wait_until mq_timedreceive mq_timedsend nanosleep poll
    __poll_chk ppoll __ppoll_chk pselect pthread_clockjoin_np pthread_cond_clockwait
    pthread_cond_timedwait
    pthread_mutex_clocklock pthread_mutex_timedlock pthread_rwlock_clockrdlock
    pthread_rwlock_clockwrlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock
    pthread_timedjoin_np recvmmsg select semtimedop sem_clockwait sem_timedwait setitimer
    sigtimedwait sleep syscall timer_settime timerfd_settime ualarm usleep'''.split())

# By the kernel's clock, where a name begins so, and why it does no harm.
KNOWN = {
    ('test-', 'alarm'): "the programs' watchdogs are for what hangs",
    ('libglib', 'select'): 'g_spawn_sync() has no timeout',
    ('libglib', 'syscall'): 'futexes, with a timeout only for g_cond_wait_until()',
    # The daemon and what tests have of it.
    ('', 'epoll_wait'): 'each is given a timeout of 0',
    ('', 'pthread_timedjoin_np'): "log.c's, at the end, is for a reader that hangs",
    ('', 'syscall'): "scheduling attributes, eventfds by AIO, and reset.c's descriptors",
}


def symbols(nm, kind, path):
    """Of WAITS, those that a file uses or (@kind) has."""
    out = subprocess.run([nm, '-D', kind, path], check=True, stdout=subprocess.PIPE,
                         universal_newlines=True).stdout
    return {line.split()[-1].partition('@')[0] for line in out.splitlines()} & WAITS


def glib_of(program):
    out = subprocess.run(['ldd', program], check=True, stdout=subprocess.PIPE,
                         universal_newlines=True).stdout
    return re.search(r'libglib-\S+ => (\S+)', out).group(1)


class Waits:
    def __init__(self, nm, library, programs):
        self.has = symbols(nm, '--defined-only', library)
        self.uses = {os.path.basename(path): symbols(nm, '--undefined-only', path)
                     for path in [glib_of(programs[0]), *programs]}

    def foreign(self):
        """What the library does not have."""
        for program, uses in sorted(self.uses.items()):
            for name in sorted(uses - self.has):
                if not any(program.startswith(start) and name == what
                           for start, what in KNOWN):
                    yield '%s waits by %s()' % (program, name)

    def needless(self):
        """What only the library has, or KNOWN."""
        used = set().union(*self.uses.values())
        for name in sorted(self.has | {what for _, what in KNOWN}):
            if name not in used:
                yield 'nothing waits by %s()' % name


def main():
    waits = Waits(sys.argv[1], sys.argv[2], sys.argv[3:])
    return tap.run([('every wait is known', waits.foreign),
                    ('every known wait is used', waits.needless)])


if __name__ == '__main__':
    sys.exit(main())
