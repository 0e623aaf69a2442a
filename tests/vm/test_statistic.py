# SPDX-License-Identifier: GPL-2.0-or-later
"""What iproute2's `rdma` shows of our driver: counters of the port and of single QPs,
details of resources.
"""

import json

from lib import fixture
from lib.parts import wait_in_guest
from test_driver import DEVICE, DriverCase

LINK = DEVICE + '/1'
# Of both; the others of the port are not of QPs.
NAMES = ('tx_messages', 'tx_bytes', 'rx_messages', 'rx_bytes', 'errors',
         'rnr_waits', 'retries')


@fixture.shard('demos')
class StatisticTest(DriverCase):
    def rdma(self, guest, command):
        return json.loads(guest.run('rdma -j ' + command).out or '[]')

    def port(self, guest):
        return self.rdma(guest, 'statistic show link ' + LINK)[0]

    def counters(self, guest):
        """The QPs' counters, by number."""
        return {entry['cntn']: entry for entry in
                self.rdma(guest, 'statistic qp show link ' + LINK)
                if 'cntn' in entry}

    def qps(self, guest, options=''):
        """The program's connected QPs."""
        return [qp for qp in self.rdma(
            guest, 'resource show qp link %s %s' % (LINK, options))
            if qp.get('comm', '').startswith('ib_') and qp['type'] == 'RC']

    def agrees(self, guest):
        """Bound or not, each message is counted once: what the kernel shows for
        the port is what the daemon has counted, when nothing moves."""
        index = self.guests.index(guest)
        port = self.port(guest)
        for name in NAMES:
            self.assertEqual(port[name],
                             self.daemon.counters('datapath', name)[index], name)

    def commands(self, guest):
        """How many the device gets while the port's counters are read once; the fewest
        of some times, for they may take longer than what was read counts as new."""
        def given():
            return self.daemon.counters('device', 'commands')[self.guests.index(guest)]
        counts = []
        for _ in range(5):
            before = given()
            self.port(guest)
            counts.append(given() - before)
        return min(counts)

    def still(self):
        """End the traffic, once nothing moves."""
        self.end(self.jobs)
        for guest in self.guests:
            wait_in_guest(guest, '! rdma resource show qp link %s | '
                          'grep -q comm.ib_' % LINK, 'QPs gone')

    def test_bound(self):
        self.boot()
        server, client = self.guests
        self.jobs = self.traffic('ib_write_bw -d {dev} -p {port} -F -s 4096 -q 3 '
                                 '-n 100000000')
        numbers = [qp['lqpn'] for qp in self.qps(client)]
        self.assertEqual(len(numbers), 3)
        self.assertEqual(self.counters(client), {})

        client.run('rdma statistic qp bind link %s lqpn %d' % (LINK, numbers[0]))
        (number, first), = self.counters(client).items()
        self.assertEqual(first['lqpn'], [numbers[0]])
        self.assertEqual(sorted(set(first) & set(self.port(client))),
                         sorted(NAMES + ('ifname', 'port')))
        # Of this QP alone, and from now on.
        self.assertLess(first['tx_messages'], self.port(client)['tx_messages'] / 3)
        wait_in_guest(client, 'rdma statistic qp show link %s | grep -q '
                      '"tx_messages [1-9]"' % LINK, 'counted messages')
        client.run('rdma statistic qp bind link %s lqpn %d cntn %d'
                   % (LINK, numbers[1], number))
        second = self.counters(client)[number]
        self.assertEqual(sorted(second['lqpn']), sorted(numbers[:2]))
        self.assertGreater(second['tx_messages'], first['tx_messages'])
        # perftest writes 4096 bytes each time; a slice may be on its way.
        self.assertAlmostEqual(second['tx_bytes'] / second['tx_messages'], 4096,
                               delta=64)
        self.assertEqual(second['rx_messages'], 0)
        # One for the port and one for each of the two, whatever number of names.
        self.assertEqual(self.commands(client), 3)

        client.run('rdma statistic qp unbind link %s cntn %d lqpn %d'
                   % (LINK, number, numbers[0]))
        self.assertEqual(self.counters(client)[number]['lqpn'], [numbers[1]])
        # The server's side counts the same messages as received.
        server.run('rdma statistic qp bind link %s lqpn %d'
                   % (LINK, self.qps(server)[0]['lqpn']))
        wait_in_guest(server, 'rdma statistic qp show link %s | grep -q '
                      '"rx_messages [1-9]"' % LINK, 'received messages')

        details = self.qps(client, '-dd')[0]
        out = client.run('rdma resource show qp link %s -dd; rdma resource show cq '
                         '-dd; rdma resource show mr -dd' % LINK).out
        for name in ('handle', 'send_wrs', 'inline', 'rnr_naks', 'duplicates',
                     'dropped', 'vector', 'pages', 'access'):
            self.assertIn('drv_%s ' % name, out)
        self.assertEqual(details['drv_dropped'], 0)

        self.still()
        # They end with their QPs, and what they had is the port's.
        for guest in self.guests:
            self.assertEqual(self.counters(guest), {})
            self.agrees(guest)
        self.finish()

    def test_automatic(self):
        """Each process's QPs get a counter, each type's one of its own."""
        self.boot()
        client = self.guests[1]
        self.assertEqual(self.rdma(client, 'statistic qp mode')[0]['mode'],
                         'qp auto off')
        client.run('rdma statistic qp set link %s auto type,pid on' % LINK)
        self.jobs = self.traffic('ib_write_bw -d {dev} -p {port} -F -s 4096 -q 2 '
                                 '-n 100000000')
        entry, = self.counters(client).values()
        self.assertEqual(sorted(entry['lqpn']),
                         sorted(qp['lqpn'] for qp in self.qps(client)))
        wait_in_guest(client, 'rdma statistic qp show link %s | grep -q '
                      '"tx_messages [1-9]"' % LINK, 'counted messages')
        self.still()
        self.assertEqual(self.counters(client), {})
        self.agrees(client)
        client.run('rdma statistic qp set link %s auto off' % LINK)
        self.finish()
