#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does another program read what the iWARP encoders write?

tshark dissects the capture that FRAMES makes (frames.c): the right frames in the
right order, no bad sum, nothing malformed, and the fields that were put in.  Its
dissectors of what Sends may carry guess, and are switched off.

usage: test-tshark.py BUILDDIR FRAMES
"""

import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3))
import tap

BUILD, FRAMES = sys.argv[1:]
QUIET = ['--disable-heuristic', 'rpcrdma_iwarp', '--disable-heuristic', 'smb_direct_iwarp']
FULL = (0, 1, 3)  # streams that carry FPDUs
MARKED = 1
RESPONDER = 4791
FIRST_TO = 0x7f0000000000


def without_check():
    try:
        with open(os.path.join(BUILD, 'config.mak')) as file:
            return 'WITH_CHECK = no' in file.read()
    except FileNotFoundError:
        return False


# All that is asked for, so that one run answers; tshark takes a second to start.
FIELDS = """
_ws.malformed _ws.expert.severity tcp.seq tcp.len
iwarp_mpa.key.req iwarp_mpa.key.rep iwarp_mpa.rev iwarp_mpa.crc_flag
iwarp_mpa.marker_flag iwarp_mpa.rej_flag iwarp_mpa.pdlength iwarp_mpa.privatedata
iwarp_mpa.ulpdulength iwarp_mpa.marker_fpduptr
iwarp_ddp.stag iwarp_ddp.tagged_offset
iwarp_rdma.opcode iwarp_rdma.inval_stag
iwarp_rdma.sinkstag iwarp_rdma.sinkto iwarp_rdma.rdmardsz iwarp_rdma.srcstag
iwarp_rdma.srcto
iwarp_rdma.atomic.opcode iwarp_rdma.atomic.request_identifier
iwarp_rdma.atomic.remote_stag iwarp_rdma.atomic.remote_tagged_offset
iwarp_rdma.atomic.add_data iwarp_rdma.atomic.add_mask
iwarp_rdma.atomic.swap_data iwarp_rdma.atomic.swap_mask
iwarp_rdma.atomic.compare_data iwarp_rdma.atomic.compare_mask
iwarp_rdma.atomic.original_request_identifier
iwarp_rdma.atomic.original_remote_data_value
iwarp_rdma.term_layer iwarp_rdma.term_etype_rdma iwarp_rdma.term_etype_ddp
iwarp_rdma.term_etype_llp iwarp_rdma.term_errcode_rdma
iwarp_rdma.term_errcode_ddp_tagged iwarp_rdma.term_errcode_ddp_untagged
iwarp_rdma.term_errcode_llp iwarp_rdma.term_hdrct_m iwarp_rdma.hdrct_d
iwarp_rdma.hdrct_r iwarp_rdma.term_ddp_seg_len
""".split()
BYTES = ('iwarp_mpa.key.req', 'iwarp_mpa.key.rep', 'iwarp_mpa.privatedata',
         'iwarp_rdma.term_ddp_seg_len')
SEVERE = 0x600000  # a warning, in tshark's numbers


def value(name, text):
    if name == '_ws.malformed':
        return text
    return int(text.replace(':', ''), 16) if name in BYTES else int(text, 0)


class Capture:
    """What FRAMES says it wrote, and what tshark makes of it."""

    def __init__(self, folder):
        self.path = os.path.join(folder, 'frames.pcap')
        self.wrote = {}
        for line in run(FRAMES, self.path).splitlines():
            stream, port, length, opcode = map(int, line.split())
            self.wrote.setdefault((stream, port), []).append((length, opcode))
        self.text = run('tshark', '-r', self.path, *QUIET, '-V')
        # Of each packet its stream, its port and each field's values.
        self.packets = []
        args = []
        for name in ['tcp.stream', 'tcp.srcport'] + FIELDS:
            args += ['-e', name]
        for line in run('tshark', '-r', self.path, *QUIET, '-T', 'fields', '-E',
                        'occurrence=a', '-E', 'aggregator=;', *args).splitlines():
            stream, port, *texts = line.split('\t')
            self.packets.append((int(stream), int(port), {
                name: [value(name, part) for part in text.split(';') if part]
                for name, text in zip(FIELDS, texts)}))

    def all(self, name, stream):
        """The field's values in one stream, in order."""
        return [found for number, _, fields in self.packets if number == stream
                for found in fields[name]]


def run(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, universal_newlines=True).stdout


def differs(what, found, expected):
    if found != expected:
        yield '%s: %s, expected %s' % (what, found, expected)


def frames(capture):
    read = {}
    for stream, port, fields in capture.packets:
        lengths = fields['iwarp_mpa.ulpdulength']
        opcodes = fields['iwarp_rdma.opcode']
        if len(lengths) != len(opcodes):
            yield 'stream %d: %d FPDUs, %d opcodes' % (stream, len(lengths), len(opcodes))
        if lengths:
            read.setdefault((stream, port), []).extend(zip(lengths, opcodes))
    if read.keys() != capture.wrote.keys():
        yield 'FPDUs of %s, expected of %s' % (sorted(read), sorted(capture.wrote))
    for key in read.keys() & capture.wrote.keys():
        yield from differs('FPDUs of %s' % (key,), read[key], capture.wrote[key])
    opcodes = {opcode for fpdus in capture.wrote.values() for _, opcode in fpdus}
    yield from differs('opcodes', sorted(opcodes), list(range(12)))


def sums(capture):
    total = sum(len(fpdus) for fpdus in capture.wrote.values())
    yield from differs('good sums', capture.text.count('(Good CRC32)'), total)
    yield from differs('bad sums', capture.text.count('Bad CRC32'), 0)
    for stream, _, fields in capture.packets:
        yield from differs('malformed', fields['_ws.malformed'], [])
        # To tshark before 4.6 revision 2 and its flag are wrong.
        if not fields['iwarp_mpa.key.req'] and not fields['iwarp_mpa.key.rep']:
            yield from differs('complaints', [number for number in
                                              fields['_ws.expert.severity']
                                              if number >= SEVERE], [])


def startup(capture):
    def values(name, stream):
        return capture.all('iwarp_mpa.' + name, stream)

    for stream in (0, 1, 2, 3):
        enhanced = stream != 3
        yield from differs('revisions', values('rev', stream), [1 + enhanced] * 2)
        yield from differs('sums wanted', values('crc_flag', stream), [1, 1])
        yield from differs('markers', values('marker_flag', stream),
                           [int(stream == MARKED)] * 2)
        yield from differs('refused', values('rej_flag', stream), [0, int(stream == 2)])
        yield from differs('private data', values('pdlength', stream),
                           [9, 4] if enhanced else [5, 0])
    # A, C, D and both depths 16; the Reply chose the Write.
    yield from differs('enhanced block', values('privatedata', 0),
                       [int('8010c010' + b'hello'.hex(), 16), 0x80108010])


def segments(capture):
    """Each segment of the long Write begins where the one before it ends."""
    for stream in FULL:
        offset = FIRST_TO
        found = 0
        for number, port, fields in capture.packets:
            if number != stream or port == RESPONDER:
                continue
            sizes = [length for length, opcode in zip(fields['iwarp_mpa.ulpdulength'],
                                                      fields['iwarp_rdma.opcode'])
                     if opcode == 0]
            for stag, at, size in zip(fields['iwarp_ddp.stag'],
                                      fields['iwarp_ddp.tagged_offset'], sizes):
                if stag == 0x100 and offset - FIRST_TO < 5001:
                    yield from differs('offset', at, offset)
                    offset += size - 14
                    found += 1
        yield from differs('bytes written', offset - FIRST_TO, 5001)
        if found < 4:
            yield 'stream %d: only %d segments' % (stream, found)


def markers(capture):
    """At every 512th byte, and each says where its FPDU, a TCP segment here, begins."""
    begin, seen = {}, 0
    for stream, port, fields in capture.packets:
        if stream != MARKED:
            yield from differs('markers', fields['iwarp_mpa.marker_fpduptr'], [])
        elif fields['iwarp_mpa.ulpdulength']:
            (seq,), (length,) = fields['tcp.seq'], fields['tcp.len']
            first = seq - begin.setdefault(port, seq)
            # A marker before the length field does not count.
            start = first + 4 if first % 512 == 0 else first
            expected = [max(at - start, 0) for at in range(first, first + length)
                        if at % 512 == 0]
            yield from differs('markers at %d' % first, fields['iwarp_mpa.marker_fpduptr'],
                               expected)
            seen += len(expected)
    if seen < 20:
        yield 'only %d markers' % seen


def operations(capture):
    expected = {
        'sinkstag': [0x301], 'sinkto': [0], 'rdmardsz': [2999], 'srcstag': [0x302],
        'srcto': [0x7f0000002000], 'inval_stag': [0x203, 0x203],
        'atomic.opcode': [0, 2], 'atomic.request_identifier': [1, 2],
        'atomic.remote_stag': [0x104] * 2,
        'atomic.remote_tagged_offset': [0x7f0000001000] * 2,
        'atomic.add_data': [0x1122334455667788], 'atomic.add_mask': [0],
        'atomic.swap_data': [0x1122334455667788], 'atomic.swap_mask': [2 ** 64 - 1],
        'atomic.compare_data': [0, 0x99aabbccddeeff00],
        'atomic.compare_mask': [2 ** 64 - 1] * 2,
        'atomic.original_request_identifier': [1, 2],
        'atomic.original_remote_data_value': [0x0102030405060708] * 2,
    }
    for stream in FULL:
        for name, values in expected.items():
            yield from differs(name, capture.all('iwarp_rdma.' + name, stream), values)


def control(capture):
    """Acknowledgement and the like are Writes of no bytes to reserved STags."""
    expected = [(1, 0), (0x10, 8), (0x11, 14 << 56 | 12), (0x12, 10 << 56 | 12), (0x13, 12),
                (0x15, 0xffffff), (0x16, 13), (0x14, 12)]
    for stream in FULL:
        found = [pair for pair in zip(capture.all('iwarp_ddp.stag', stream),
                                      capture.all('iwarp_ddp.tagged_offset', stream))
                 if pair[0] < 0x100]
        yield from differs('reserved STags', found, expected)


def terminates(capture):
    expected = {
        'term_layer': [0, 0, 1, 1, 0, 2],
        'term_etype_rdma': [1, 2, 0], 'term_etype_ddp': [2, 1], 'term_etype_llp': [0],
        'term_errcode_rdma': [1, 6], 'term_errcode_ddp_untagged': [2],
        'term_errcode_ddp_tagged': [0], 'term_errcode_llp': [2],
        'term_hdrct_m': [1, 1, 1, 1, 0, 0], 'hdrct_d': [1, 1, 1, 1, 0, 0],
        'hdrct_r': [1, 0, 0, 0, 0, 0], 'term_ddp_seg_len': [77] * 4,
    }
    for stream in FULL:
        for name, values in expected.items():
            yield from differs(name, capture.all('iwarp_rdma.' + name, stream), values)


def main():
    checks = [frames, sums, startup, segments, markers, operations, control, terminates]
    if not shutil.which('tshark'):
        def absent():
            if without_check():
                raise tap.Skip('configured with --disable-check')
            yield 'tshark is not installed'
        return tap.run([('tshark', absent)])
    with tempfile.TemporaryDirectory() as folder:
        capture = Capture(folder)
        return tap.run([(check.__name__, lambda check=check: check(capture))
                        for check in checks])


if __name__ == '__main__':
    sys.exit(main())
