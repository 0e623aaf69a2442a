# SPDX-License-Identifier: GPL-2.0-or-later
"""Traffic of virtual guests (tests/vguest/ongoing.c) at daemons that a test has started,
also beside guests of QEMU."""

import json
import os
import subprocess

from lib.pvrdma_vm import BUILD, VmError

# Seconds until it has ended after it was told so.
TIMEOUT = 90


class Traffic:
    """Between virtual guests, until end(): VMs vm0 and vm1 of the daemon whose sockets
    are in the folder @ends, or of each of two @ends the folder and the VM's number."""

    def __init__(self, session, *ends, name='ongoing'):
        self.log = session.path(name + '.log')
        with open(self.log, 'ab') as stream:
            self.proc = subprocess.Popen(
                [os.path.join(BUILD, 'tests', 'vguest', 'ongoing'), *map(str, ends)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream,
                universal_newlines=True)
        session.add_closer(self.close)
        if self.proc.stdout.readline() != 'running\n':
            self.fail()

    def fail(self):
        self.close()
        with open(self.log) as stream:
            raise VmError('traffic ended with status %d: %s' % (
                self.proc.returncode, stream.read()))

    def check(self):
        if self.proc.poll() is not None:
            self.fail()

    def end(self):
        """What it says of itself, after operations to the last of which all went well."""
        self.proc.stdin.close()
        said = self.proc.stdout.readline()
        if self.proc.wait(TIMEOUT) or not said:
            self.fail()
        return json.loads(said)

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()
        self.proc.stdin.close()
        self.proc.stdout.close()
