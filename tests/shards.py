# SPDX-License-Identifier: GPL-2.0-or-later
"""The shards of `make soak`: what `make check` does not run each time.

Each test that is not in the core of `make check` is in exactly one of them: a test of
pytest by `@fixture.shard('NAME')`, a program of meson's by its suite `soak-NAME`.
"""

SHARDS = {
    'driver': 'guests: our driver on several processors, hot-plug, other kernels',
    'provider': 'guests: libraries and drivers of other pairs, lost wake-ups, no exits',
    'moves': 'guests that move between hosts in a row, saved guests, restarts',
    'users': 'connection manager, NVMe, NFS, iSER, siw, MPI and other programs',
    'demos': 'the demos, systemd, two adapters, network devices, statistics',
    'plain': 'virtual guests in the plain build by the real clock',
    'quiet': 'judged times, nothing beside them',
    'asan': 'the rest of unit and vguest with AddressSanitizer and UndefinedBehaviorSanitizer',
    'tsan': 'the rest of unit and vguest with ThreadSanitizer',
}
