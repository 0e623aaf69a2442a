# SPDX-License-Identifier: GPL-2.0-or-later
"""Another implementation of iWARP reads what our daemons send: siw, in a guest's kernel.

siwframes makes an initiator's bytes with the daemon's own encoders: all the frames that
daemons tell each other things with, and Writes of no bytes, then a Send.  rdma_server(1)
on siw must get that Send and answer it, which it does not if one of the frames before it
has ended the connection.

The other way round: what siw ends a connection with is a Terminate that the daemon's
parser reads, though siw has layer and type swapped, where the bytes can tell.
"""

import base64
import subprocess

from lib import fixture, parts
from lib.programs import LISTENS
from lib.pvrdma_vm import built_program, end_well, start_guests

PORT = 7471
# What is wrong with a frame (siwframes), and the layer, type and code that it ends with.
# RDMAP's 0/2/06 in siw's layout has the bytes of MPA's 2/0/06 in the RFC's.
WRONG = {'sum': "2/0/02, siw's", 'msn': "1/2/03, siw's", 'opcode': "2/0/06, the RFC's"}
# Frames may not come before the Reply has, and a slow machine's siw takes its time.  What
# ends the connection may not come before the other end knows of it: siw may then tell its
# kernel's connection manager of the end before the beginning, which is a BUG() there.
CALL = """
until_is() { n=0; until [ "$1" "$2" ] || [ $n = 600 ]; do usleep 100000; n=$((n + 1)); done; }
rm -f /opt/answer /opt/ended /opt/go
(cat /opt/request; until_is -s /opt/answer; head -c %(first)d /opt/frames
    until_is -e /opt/go; %(frames)s; until_is -e /opt/ended) |
    (nc %(to)s > /opt/answer; : > /opt/ended)
base64 /opt/answer
"""
FIRST = 20  # bytes of the first frame
# rdma_server has accepted, and waits for its receive.
ESTABLISHED = 'grep -q uverbs_event_read /proc/$(pidof rdma_server)/wchan'


@fixture.shard('users')
class SiwTest(fixture.PrivateTest):
    def setUp(self):
        super().setUp()
        self.siwframes = built_program('siwframes')
        self.request = self.session.path('request')
        self.frames = self.session.path('frames')
        subprocess.run([self.siwframes, 'make', self.request, self.frames], check=True)
        files = {'/opt/request': self.request, '/opt/frames': self.frames}
        for what in WRONG:
            path = self.session.path(what)
            subprocess.run([self.siwframes, 'wrong', what, path], check=True)
            files['/opt/' + what] = path
        self.guests = start_guests(self.session, files=files)
        self.siw, self.raw = self.guests
        self.siw.run('modprobe rdma_ucm && modprobe siw && '
                     'rdma link add siw0 type siw netdev vio0')

    def answer(self, frames):
        """What rdma_server's side sends to that, after the first frame, as a file; and its
        own job."""
        address = self.siw.ip('virtio')
        server = self.siw.spawn('rdma_server -s %s -p %d' % (address, PORT))
        parts.wait_in_guest(self.siw, LISTENS % PORT, 'listener')
        call = self.raw.spawn(CALL % {'first': FIRST, 'frames': frames,
                                      'to': '%s %d' % (address, PORT)}, 120)
        parts.wait_in_guest(self.siw, ESTABLISHED, 'connection')
        self.raw.run('touch /opt/go')
        out = call.wait(120, check=True).out
        path = self.session.path('answer')
        with open(path, 'wb') as stream:
            stream.write(base64.b64decode(out))
        return path, server

    def check(self, path):
        return subprocess.run([self.siwframes, 'check', path], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)

    def test_frames_of_our_own(self):
        path, server = self.answer('tail -c +%d /opt/frames' % (FIRST + 1))
        server.wait(60)
        done = self.check(path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn('rdma_server: end 0', server.out)
        # It is its parser that decides: a frame with some bits changed ends it all.
        path, server = self.answer("printf '\\0\\377'; tail -c +23 /opt/frames")
        self.assertNotEqual(self.check(path).returncode, 0)
        self.assertFalse(server.done, server.out)  # it waits for a Send still
        server.kill(9)
        for what, error in WRONG.items():
            path, server = self.answer('cat /opt/' + what)
            said = self.check(path).stdout
            self.assertIn('Terminate %s layout' % error, said, what)
            server.wait(60)  # its receive was flushed
        end_well(self.guests)
