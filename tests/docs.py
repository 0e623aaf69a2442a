#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Do the documents' links lead anywhere?

In each *.md: a link to a file that exists, with an anchor to a heading of it (as GitHub
names them).  In every other text file: a document that is named, as "hosts.md" or
"docs/hosts.md", exists.  Each path in backquotes in architecture.md exists, from the top
or from a folder in the last heading's backquotes, and each source file of the daemon, the
QEMU device and the guest parts is among them.  Prints a line for each that does not; the
exit status says whether there was one.
"""
import itertools
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
NAMED = re.compile(r'(?<![\w./%-])(?:docs/(?:notes/)?)?([\w-]+\.md)\b')
HEADING = re.compile(r'^#+ ')
QUOTED = re.compile(r'`([^`\n]+)`')
A_PATH = re.compile(r'[\w.*-]+(?:/[\w.*-]+)*/?$')
A_FILE = re.compile(r'\.(?:bash|c|conf|h|in|json|md|mak|patch|py|sh)$')
PLACEHOLDER = re.compile(r'ROOM|FILE')
MAP = SRC / 'docs' / 'architecture.md'
MAPPED = ('backend', 'guest-driver', 'guest-provider', 'hw')
FOLDERS = ('backend', 'docs', 'guest-driver', 'guest-provider', 'hw', 'images', 'include',
           'packaging', 'scripts', 'tests')


def text_of(path):
    try:
        return path.read_text(encoding='utf-8')
    except UnicodeDecodeError:
        return ''  # no text: a corpus, a golden


def without_fenced(text):
    return re.sub(r'^```.*?^```', '', text, flags=re.M | re.S)


def anchors(path):
    found = {}
    for line in without_fenced(text_of(path)).splitlines():
        if re.match(r'#+ ', line):
            name = re.sub(r'[^\w\- ]', '', line.lstrip('#').strip().lower())
            name = name.replace(' ', '-')
            found[name] = found.get(name, -1) + 1
    return {'%s-%d' % (name, i) if i else name for name, n in found.items()
            for i in range(n + 1)}


def check_links(path):
    for target in LINK.findall(without_fenced(text_of(path))):
        if re.match(r'[a-z]+:', target):
            continue
        name, _, anchor = target.partition('#')
        there = (path.parent / name).resolve() if name else path
        if not there.exists():
            yield 'no file for the link %s' % target
        elif anchor and anchor not in anchors(there):
            yield 'no heading for the link %s' % target


def check_named(path, documents):
    for name in sorted(set(NAMED.findall(text_of(path)))):
        if name not in documents:
            yield 'there is no %s' % name


def paths_named(text):
    """(name, the paths that it may stand for) of all that looks like a path."""
    folders = [SRC]
    for line in text.splitlines():
        quoted = [q for q in QUOTED.findall(line)
                  if A_PATH.match(q) and ('/' in q or A_FILE.search(q))
                  and not PLACEHOLDER.search(q)]
        if HEADING.match(line):
            folders = [SRC] + [SRC / q for q in quoted]
        for name in quoted:
            yield name, [path for folder in folders for path in folder.glob(name)]


def check_map():
    named = set()
    for name, found in paths_named(without_fenced(text_of(MAP))):
        if not found:
            yield 'there is no %s' % name
        elif '*' not in name:
            named.update(found)
    if not named:
        yield 'names no path'
    for folder in MAPPED:
        for path in sorted((SRC / folder).rglob('*.c')):
            if path not in named and not path.name.endswith('.mod.c'):  # kbuild's
                yield 'does not name %s' % path.relative_to(SRC)


def main():
    files = [f for f in SRC.iterdir() if f.is_file()]
    for folder in FOLDERS:
        files += sorted(f for f in (SRC / folder).rglob('*')
                        if f.is_file() and 'corpus' not in f.parts)
    documents = {f.name for f in files if f.suffix == '.md'}
    wrong = links = 0
    for path in files:
        if path.suffix == '.md':
            links += 1
            said = check_links(path)
            if path == MAP:
                said = itertools.chain(said, check_map())
        else:
            said = check_named(path, documents)
        for line in said:
            print('%s: %s' % (path.relative_to(SRC), line))
            wrong += 1
    if not wrong:
        print('%d documents' % links)
    return 1 if wrong or not links else 0


if __name__ == '__main__':
    sys.exit(main())
