# SPDX-License-Identifier: GPL-2.0-or-later
"""ibv_rc_pingpong of rdma-core, whose server looks at the data it has received last (-c): at
the first byte of each page."""

from lib import fixture
from lib.programs import pingpong, srq_pingpong


class PingpongTest(fixture.PairTest):
    def check(self, program, server=0):
        program.template += ' -c'
        figure = program.run(self.rdma, server=server)
        self.assertGreater(figure, 0)

    def test_polling(self):
        self.check(pingpong(False, 4096, 500))

    def test_events(self):
        self.check(pingpong(True, 4096, 500))

    def test_second_guest_serves(self):
        self.check(pingpong(False, 4096, 200), server=1)
        self.check(pingpong(True, 4096, 200), server=1)

    def test_sizes(self):
        for size in (1, 8, 4095, 4097, 65536, 65537, 1 << 20):
            with self.subTest(size=size):
                self.check(pingpong(False, size, 20))

    def test_deep_queue(self):
        program = pingpong(True, 256, 1000)
        program.template += ' -r 500'
        self.check(program)

    def test_shared_receive_queue(self):
        """16 queue pairs on one SRQ, whose receives are fewer than the messages in
        flight."""
        program = srq_pingpong(False, 4096, 800)
        self.check(program)
        self.check(srq_pingpong(True, 65536, 400), server=1)

    def test_other_data_is_seen(self):
        """Of a client that does not send what -c looks for the server says so, and ends
        with 0: here that is a failure."""
        one, two = self.guests
        command = 'ibv_rc_pingpong -d %s -g %%d -p 18552 -s 16384 -n 20 ' % self.rdma.device
        server = one.spawn('%s -c' % command % self.rdma.gids[0])
        one.wait_listen(18552, server)
        two.run(command % self.rdma.gids[1] + one.ip(self.rdma.kind))
        server.wait()
        self.assertEqual((server.how, server.code, server.ok), ('exited', 0, False))
        self.assertEqual(server.in_vain, 'invalid data in page 0')

    def test_two_runs_at_once(self):
        one, two = self.guests
        servers, clients = [], []
        for port in (18550, 18551):
            command = 'ibv_rc_pingpong -c -d %s -g %%d -p %d -n 500' \
                % (self.rdma.device, port)
            servers.append(one.spawn(command % self.rdma.gids[0]))
            one.wait_listen(port, servers[-1])
            clients.append(two.spawn('%s %s' % (
                command % self.rdma.gids[1],
                one.ip(self.rdma.kind))))
        for job in servers + clients:
            job.wait(check=True)
