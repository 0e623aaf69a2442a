# SPDX-License-Identifier: GPL-2.0-or-later
"""Another implementation of iWARP reads what our daemons send: siw, in a guest's kernel.

siwframes makes an initiator's bytes with the daemon's own encoders: all the frames that
daemons tell each other things with, and Writes of no bytes, then a Send.  rdma_server(1)
on siw must get that Send and answer it, which it does not if one of the frames before it
has ended the connection.
"""

import base64
import subprocess

import fixture
import parts
from programs import LISTENS
from pvrdma_vm import built_program, end_well, start_guests

PORT = 7471
# Frames may not come before the Reply has, and a slow machine's siw takes its time.
CALL = """
until_is() { n=0; until [ "$1" "$2" ] || [ $n = 200 ]; do usleep 100000; n=$((n + 1)); done; }
rm -f /opt/answer /opt/ended
(cat /opt/request; until_is -s /opt/answer; %(frames)s; until_is -e /opt/ended) |
    (nc %(to)s > /opt/answer; : > /opt/ended)
base64 /opt/answer
"""


class SiwTest(fixture.PrivateTest):
    def setUp(self):
        super().setUp()
        self.siwframes = built_program('siwframes')
        self.request = self.session.path('request')
        self.frames = self.session.path('frames')
        subprocess.run([self.siwframes, 'make', self.request, self.frames], check=True)
        self.guests = start_guests(self.session, files={
            '/opt/request': self.request, '/opt/frames': self.frames})
        self.siw, self.raw = self.guests
        self.siw.run('modprobe rdma_ucm && modprobe siw && '
                     'rdma link add siw0 type siw netdev vio0')

    def answer(self, frames):
        """What rdma_server's side sends to that, as a file; and its own job."""
        address = self.siw.ip('virtio')
        server = self.siw.spawn('rdma_server -s %s -p %d' % (address, PORT))
        parts.wait_in_guest(self.siw, LISTENS % PORT, 'listener')
        out = self.raw.run(CALL % {'frames': frames, 'to': '%s %d' % (address, PORT)}).out
        path = self.session.path('answer')
        with open(path, 'wb') as stream:
            stream.write(base64.b64decode(out))
        return path, server

    def check(self, path):
        return subprocess.run([self.siwframes, 'check', path], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)

    def test_frames_of_our_own(self):
        path, server = self.answer('cat /opt/frames')
        server.wait(60)
        done = self.check(path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn('rdma_server: end 0', server.out)
        # It is its parser that decides: a frame with one bit changed ends it all.
        path, server = self.answer("(head -c 21 /opt/frames; printf '\\377'; "
                                   'tail -c +23 /opt/frames)')
        self.assertNotEqual(self.check(path).returncode, 0)
        self.assertFalse(server.done, server.out)  # it waits for a Send still
        server.kill(9)
        end_well(self.guests)
