#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does the guest's driver, and its library, say why wherever it refuses something?

Looks at each function of guest-driver/ and guest-provider/ for an error of its own
making (EINVAL and the like) without a message, and reports those as TAP, but for the
functions named below, whose callers say it.  Also tests itself: a silent refusal, made
for the purpose, must be found.

usage: test-refusals.py SOURCE-DIR
"""

import os
import re
import sys

sys.dont_write_bytecode = True
import tap

# Errors by which a request is refused; not those of memory, or of a broken device.
REFUSALS = r'E(?:INVAL|OPNOTSUPP|PERM|BUSY|ACCES|RANGE|EXIST)\b'
FUNCTION = re.compile(r'^(?=[a-z])[^\n;]*?\b(\w+)\([^;{]*\)\n\{\n(.*?)^\}', re.M | re.S)

# The kernel's `return pvrdma_refuse(...)` is an expression, so it stands in the
# statement; what the library says stands before, in the same block.
LIBRARY = re.compile(r'(?:return|errno =) ' + REFUSALS)
SAID = re.compile(r'\bpv_(?:err|debug|err_datapath)\(')

# Who says it instead.
ELSEWHERE = {
    'guest-driver': {
        'send_one': 'pvrdma_post_send()',
        'put_reg': 'pvrdma_post_send()',
        'put_rdma': 'pvrdma_post_send()',
        'put_ud': 'pvrdma_post_send()',
        'recv_one': 'pvrdma_post_recv()',
        'srq_post_one': 'pvrdma_post_srq_recv()',
        'cmd_answer': 'itself, one statement earlier',
        'pvrdma_cmd': 'nobody: a mistake of the driver',
        'pvrdma_caps_check': 'device_start()',
        'dma_check': 'itself, one statement earlier',
        'pvrdma_table_add': 'not refused: the device is broken',
        'pvrdma_cmd_destroy_idle': 'its callers',
    },
    'guest-provider': {
        'pv_wqe_send': 'pv_post_send(), pv_wr_complete()',
        'pv_wqe_sges': 'the same',
        'pv_wqe_inline': 'the same',
        'pv_wqe_recv': 'pv_post_recv(), pv_post_srq_recv()',
    },
}


def functions(text):
    """Each function's name and its body without comments."""
    text = re.sub(r'/\*.*?\*/', '', text, flags=re.S)
    for found in FUNCTION.finditer(text):
        yield found.group(1), found.group(2)


def silent_driver(body):
    """Statements of the driver that refuse and say nothing."""
    for statement in re.split(r'[;{}]', body):
        if re.search('-' + REFUSALS, statement) and 'return' in statement and \
                'pvrdma_refuse(' not in statement:
            yield ' '.join(statement.split())


def silent_library(body):
    """Refusals of the library before which nothing is said in their block."""
    for found in LIBRARY.finditer(body):
        block = body[:found.start()]
        block = block[max(block.rfind('\n\n'), block.rfind('{'),
                          block.rfind('return ')) + 1:]
        if not SAID.search(block):
            yield found.group(0)


KINDS = {'guest-driver': silent_driver, 'guest-provider': silent_library}


def silent(source, folder):
    used = set()
    for name in sorted(os.listdir(os.path.join(source, folder))):
        if not name.endswith(('.c', '.h')):
            continue
        with open(os.path.join(source, folder, name)) as file:
            text = file.read()
        for function, body in functions(text):
            for what in KINDS[folder](body):
                if function in ELSEWHERE[folder]:
                    used.add(function)
                else:
                    yield '%s/%s: %s(): %s' % (folder, name, function, what)
    for function in sorted(set(ELSEWHERE[folder]) - used):
        yield '%s(): refuses nothing any more' % function


def itself():
    bad = 'int f(int a)\n{\n\tif (a)\n\t\treturn %sEINVAL;\n\treturn 0;\n}\n'
    good = {
        'guest-driver': 'int f(int a)\n{\n\tif (a)\n\t\treturn pvrdma_refuse(d, '
                        '-EINVAL, "a");\n\treturn 0;\n}\n',
        'guest-provider': 'int f(int a)\n{\n\tif (a) {\n\t\tpv_err(ctx, "a");\n'
                          '\t\treturn EINVAL;\n\t}\n\treturn 0;\n}\n',
    }
    for folder, kind in KINDS.items():
        sign = '-' if folder == 'guest-driver' else ''
        for text, want in ((bad % sign, 1), (good[folder], 0)):
            found = [what for _, body in functions(text) for what in kind(body)]
            if len(found) != want:
                yield '%s: %d found, not %d: %s' % (folder, len(found), want, text)


def main():
    source = sys.argv[1]
    return tap.run([(folder, lambda folder=folder: silent(source, folder))
                    for folder in KINDS] + [('itself', itself)])


if __name__ == '__main__':
    sys.exit(main())
