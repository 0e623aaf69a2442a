#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The hardening flags of meson.build, read back from the built programs.

usage: test-hardening.py READELF OBJDUMP fortify|- cet|- PROGRAM...

Each program is looked at with binutils: position-independent, all relocations
done before main() and read-only after, no executable stack, stack protector,
checking functions of the C library (`fortify`: builds with optimisation and
without sanitizers) and landing pads for indirect branches (`cet`: compilers
that can).  Prints TAP.
"""

import functools
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import tap


def said(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout


class Program:
    def __init__(self, readelf, objdump, path):
        self.header = said(readelf, '--wide', '--file-header', path)
        self.segments = said(readelf, '--wide', '--program-headers', path)
        self.dynamic = said(readelf, '--wide', '--dynamic', path)
        self.symbols = said(readelf, '--wide', '--dyn-syms', path)
        self.main = said(objdump, '--disassemble=main', '--no-show-raw-insn', path)

    def undefined(self, name):
        return re.search(r'\bUND %s\b' % name, self.symbols)

    def pie(self):
        return 'DYN (' in self.header and re.search(r'FLAGS_1.*\bPIE\b', self.dynamic)

    def relro(self):
        return 'GNU_RELRO' in self.segments and re.search(r'FLAGS_1.*\bNOW\b', self.dynamic)

    def stack(self):
        found = re.search(r'GNU_STACK\s.*\s(\w+)\s+0x\w+$', self.segments, re.MULTILINE)
        return found and 'E' not in found.group(1)

    def protector(self):
        return self.undefined('__stack_chk_fail')

    def fortify(self):
        return self.undefined(r'__\w+_chk')

    def cet(self):
        """main() is called through a pointer: its first instruction is a landing pad."""
        first = re.search(r'<main>:\n\s*\w+:\s*(\S+)', self.main)
        return first and first.group(1) == 'endbr64'


def missing(program, name):
    return [] if getattr(program, name)() else ['it is not there']


def main():
    readelf, objdump, fortify, cet = sys.argv[1:5]
    wanted = ['pie', 'relro', 'stack', 'protector']
    wanted += [name for name in (fortify, cet) if name != '-']
    checks = []
    for path in sys.argv[5:]:
        program = Program(readelf, objdump, path)
        checks += [('%s %s' % (path.rsplit('/', 1)[-1], name),
                    functools.partial(missing, program, name)) for name in wanted]
    return tap.run(checks)


if __name__ == '__main__':
    sys.exit(main())
