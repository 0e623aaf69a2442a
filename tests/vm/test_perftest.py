# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs of perftest between the two guests."""

from lib import fixture
from lib.programs import PERFTEST, bandwidth, latency

LATENCY = ('ib_send_lat', 'ib_write_lat', 'ib_read_lat', 'ib_atomic_lat')
BANDWIDTH = ('ib_send_bw', 'ib_write_bw', 'ib_read_bw', 'ib_atomic_bw')


class PerftestTest(fixture.PairTest):
    def check(self, program, extra='', server=0):
        program.template += extra
        self.assertGreater(program.run(self.rdma, server=server), 0)

    def all_sizes(self, name):
        """One run over every power of two up to 8 MiB."""
        _, client = self.rdma.run('%s %s -a -n 10' % (name, PERFTEST))
        rows = [line.split() for line in client.out.splitlines()
                if line.strip()[:1].isdigit()]
        sizes = [int(row[0]) for row in rows if row[0].isdigit()]
        self.assertEqual(sizes, [2 << i for i in range(23)], client.out)

    def test_second_guest_serves(self):
        self.check(latency('ib_write_lat', 8, 100), server=1)
        self.check(bandwidth('ib_read_bw', 65536, 50), server=1)

    def test_events(self):
        self.check(latency('ib_send_lat', 64, 200), ' -e')
        self.check(bandwidth('ib_send_bw', 4096, 500), ' -e')

    def test_both_directions(self):
        for name in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw'):
            with self.subTest(name):
                self.check(bandwidth(name, 65536, 200), ' -b')

    def test_16_qps(self):
        for name in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw'):
            with self.subTest(name):
                self.check(bandwidth(name, 16384, 200), ' -q 16')

    def test_shared_receive_queue(self):
        self.check(latency('ib_send_lat', 64, 200), ' --use-srq')
        self.check(bandwidth('ib_send_bw', 4096, 1000), ' --use-srq')
        self.check(bandwidth('ib_send_bw', 16384, 200), ' --use-srq -q 8')
        self.check(bandwidth('ib_send_bw', 4096, 500), ' --use-srq -e', server=1)

    def test_compare_and_swap(self):
        self.check(latency('ib_atomic_lat', 8, 200), ' -A CMP_AND_SWAP')
        self.check(bandwidth('ib_atomic_bw', 8, 500), ' -A CMP_AND_SWAP')

    def test_fetch_and_add(self):
        self.check(latency('ib_atomic_lat', 8, 200), ' -A FETCH_AND_ADD')
        self.check(bandwidth('ib_atomic_bw', 8, 500), ' -A FETCH_AND_ADD')

    def test_rarely_signalled(self):
        self.check(bandwidth('ib_write_bw', 4096, 2000), ' -Q 50')

    def test_large_messages(self):
        self.check(bandwidth('ib_write_bw', 16 << 20, 10))
        self.check(bandwidth('ib_read_bw', 16 << 20, 10))

    def test_server_gone_is_an_error_for_the_client(self):
        """
        Its writes are outstanding all the time, so it must be told.  4,000,000
        of 64 KiB outlast the sleep on any processor; of 4 KiB they did not.
        """
        one, two = self.guests
        command = 'ib_write_bw -d %s -p 18560 -F -s 65536 -n 4000000' % self.rdma.device
        server = one.spawn(command, timeout=90)
        one.wait_listen(18560, server)
        client = two.spawn('%s %s' % (command, one.ip(self.rdma.kind)), timeout=60)
        two.run('sleep 3')
        self.assertFalse(client.done, client.describe())
        server.kill(9)
        client.wait()
        self.assertEqual(client.how, 'exited', client.describe())
        self.assertNotEqual(client.code, 0, client.describe())
        self.assertIn('Failed status', client.out + client.err)
        server.wait()


def _add(kind, name):
    def test(self):
        self.check(kind(name))
    setattr(PerftestTest, 'test_' + name, test)


def _add_sizes(name):
    def test(self):
        self.all_sizes(name)
    setattr(PerftestTest, 'test_all_sizes_' + name, test)


for _name in LATENCY:
    _add(latency, _name)
for _name in BANDWIDTH:
    _add(bandwidth, _name)
for _name in ('ib_send_bw', 'ib_write_bw', 'ib_read_bw'):
    _add_sizes(_name)
