# SPDX-License-Identifier: GPL-2.0-or-later
"""TAP for tests that are Python programs: what is wrong is text, nothing is good."""


class Skip(Exception):
    """Raised by a check that cannot be made here; says why."""


def run(checks):
    """Make each check, (name, function), whose function returns or yields what is wrong.
    Returns the exit status: without a check that passed or was skipped nothing passes."""
    print('1..%d' % len(checks))
    bad = 0
    for number, (name, function) in enumerate(checks, 1):
        try:
            found = list(function())
        except Skip as why:
            print('ok %d - %s # SKIP %s' % (number, name, why), flush=True)
            continue
        for text in found:
            print('\n'.join('# ' + line for line in text.splitlines()))
        bad += bool(found)
        print('%sok %d - %s' % ('not ' if found else '', number, name), flush=True)
    return 1 if bad or not checks else 0
