#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does each entry of the lists of mutations still take something out?

usage: test-mutations.py SOURCE BUILDDIR

An entry whose line has changed checks nothing, which tests/mutations/run.py says only
when somebody lets it build for hours.  Here nothing is built: the line is in its file,
once, and the program of the test that must fail knows its name.  One that may judge times
is told to, or not to: told nothing it does not, and what is taken out seems to do no harm.

Prints TAP.
"""

import importlib.util
import os
import sys

sys.dont_write_bytecode = True
import tap

SOURCE, BUILD = sys.argv[1:]
EACH_DRIVER = ('stock', 'extended')  # cases that are named so at run time


def load(name, *path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(SOURCE, *path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load('mutations_run', 'tests', 'mutations', 'run.py')
judged = load('test_judged', 'tests', 'vguest', 'test-judged.py')
LIST = list(run.read_lists(os.path.join(SOURCE, 'tests', 'mutations')))


def read(*path):
    try:
        with open(os.path.join(*path), 'rb') as file:
            return file.read()
    except FileNotFoundError:
        return b''


def lines():
    if not LIST:
        yield 'there is no entry'
    for entry in LIST:
        text = read(SOURCE, entry.file).decode().split('\n')
        for old, new in entry.changes:
            found = len(run.places(text, old))
            if found != 1:
                yield '%s: the line is there %d times: %s' % (entry, found, old)
            if old == new:
                yield '%s: it changes nothing: %s' % (entry, old)


def tests():
    programs = {}
    for entry in LIST:
        if entry.program not in programs:
            programs[entry.program] = read(BUILD, 'tests', entry.program)
        program = programs[entry.program]
        parts = [part for part in (entry.case or '').split('/') if part not in EACH_DRIVER]
        if not program:
            yield '%s: no program %s' % (entry, entry.program)
        elif parts[-1].encode() not in program:
            yield '%s: no case %s' % (entry, entry.case)


def judges():
    judging = {'vguest/test-' + name for name in judged.asking()}
    for entry in LIST:
        told = [word for word in entry.env if word.startswith('VGUEST_JUDGE=')]
        if told not in ([['VGUEST_JUDGE=0'], ['VGUEST_JUDGE=1']] if entry.program in judging
                        else [[]]):
            yield '%s: %s %s VGUEST_JUDGE=0 or =1' % (
                entry, entry.test(), 'lacks' if entry.program in judging else 'needs no')


sys.exit(tap.run([('each line is in its file', lines), ('each test is there', tests),
                  ('who may judge is told to or not', judges)]))
