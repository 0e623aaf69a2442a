#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does another program read all that daemons say to each other?

Captures what the programs below do on a loopback interface of their own, and has tshark
read it: each kind of RDMAP message is there, Terminate and the solicited kinds too, no sum
is bad and nothing malformed.  What the made-up host of hosts-hostile sends is well-formed
as well; it comes out of turn.

usage: test-wire.py BUILDDIR HOSTS-RC HOSTS-HOSTILE
"""

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir,
                                'unit'))
import tap

BUILD, HOSTS_RC, HOSTS_HOSTILE = sys.argv[1:]
RUNS = ((HOSTS_RC, '/hosts-rc/solicited'), (HOSTS_RC, '/hosts-rc/invalidate'),
        (HOSTS_HOSTILE, '/hosts-hostile/order'))
# As tests/vm/test_hosts_wire.py; ports are any here, maybe another protocol's.
CAREFUL = ['--disable-heuristic', 'rpcrdma_iwarp', '--disable-heuristic',
           'smb_direct_iwarp', '--disable-protocol', 'rpcap', '-o',
           'tcp.reassemble_out_of_order:TRUE', '-o', 'tcp.try_heuristic_first:TRUE']
# RFC 5040: Write, Read Request and Response, Send, with Invalidate, solicited, both,
# Terminate; RFC 7306: Immediate Data, solicited, Atomic Request and Response.
OPCODES = list(range(12))
ALONE = 'PVRDMA_TEST_WIRE_ALONE'


def without_check():
    try:
        with open(os.path.join(BUILD, 'config.mak')) as stream:
            return 'WITH_CHECK = no' in stream.read()
    except FileNotFoundError:
        return False


def capture(folder):
    """The file, and what dumpcap and the programs had to say if that was not good."""
    path = os.path.join(folder, 'lo.pcapng')
    log = os.path.join(folder, 'log')
    wrong = []
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    with open(log, 'w') as stream:
        dumpcap = subprocess.Popen(['dumpcap', '-q', '-i', 'lo', '-B', '64', '-f', 'tcp',
                                    '-w', path], stderr=stream)
    end = time.monotonic() + 60
    while not os.path.exists(path) and dumpcap.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    for program, case in RUNS:
        done = subprocess.run([program, '-p', case], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        if done.returncode or '\nok 1 ' not in done.stdout:
            wrong.append('%s: %s' % (case, done.stdout))
    dumpcap.send_signal(signal.SIGINT)
    dumpcap.wait(60)
    with open(log) as stream:
        said = stream.read()
    if not re.search(r'received/dropped.*: \d+/0 ', said):
        wrong.append(said)
    return path, wrong


def wire():
    with tempfile.TemporaryDirectory(prefix='test-wire-') as folder:
        path, wrong = capture(folder)
        yield from wrong
        text = subprocess.run(['tshark', '-r', path] + CAREFUL + ['-V'], check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              universal_newlines=True, errors='replace').stdout
    opcodes = collections.Counter()
    sums = collections.Counter()
    for line in text.splitlines():
        found = re.search(r'OpCode: .*\(0x(\w+)\)|(?:Good|Bad) CRC32|Malformed', line)
        if found and found.group(1):
            opcodes[int(found.group(1), 16)] += 1
        elif found:
            sums[found.group(0)] += 1
    print('# frames by opcode: %s; %s' % (dict(sorted(opcodes.items())), dict(sums)))
    if sorted(opcodes) != OPCODES:
        yield 'opcodes %s, expected %s' % (sorted(opcodes), OPCODES)
    if set(sums) != {'Good CRC32'} or sum(sums.values()) != sum(opcodes.values()):
        yield 'of %d frames: %s' % (sum(opcodes.values()), dict(sums))


def main():
    missing = [name for name in ('tshark', 'dumpcap', 'ip', 'unshare')
               if not shutil.which(name)]

    def absent():
        if without_check():
            raise tap.Skip('configured with --disable-check')
        yield 'not installed: ' + ', '.join(missing)

    def no_network():
        raise tap.Skip('a network of its own needs root')
        yield

    if missing:
        return tap.run([('wire', absent)])
    if os.environ.pop(ALONE, None):
        return tap.run([('wire', wire)])
    if os.geteuid() or subprocess.run(['unshare', '-n', 'true'],
                                      stderr=subprocess.DEVNULL).returncode:
        return tap.run([('wire', no_network)])
    os.environ[ALONE] = 'yes'
    os.execvp('unshare', ['unshare', '-n', sys.executable, *sys.argv])


if __name__ == '__main__':
    sys.exit(main())
