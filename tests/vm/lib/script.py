# SPDX-License-Identifier: GPL-2.0-or-later
"""How the programs of this folder end: the demos, the benchmarks, the conformance run."""

import signal
import sys

from lib.agent import AgentError, CommandFailed
from lib.pvrdma_vm import VmError


def run(name, function, interrupted=130):
    """The exit status of program @name, which does @function: what that returns, or 0.

    @interrupted: that after the user's ^C.  What goes wrong on the way becomes a line and
    status 1, and SIGTERM ends it as any exception does, so that nothing is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if sys.version_info < (3, 9):
            raise VmError('Python 3.9 or newer is needed')
        return function() or 0
    except (VmError, AgentError, CommandFailed, OSError) as exc:
        print('%s: error: %s' % (name, exc), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nended', file=sys.stderr)
        return interrupted
