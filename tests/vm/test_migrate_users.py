# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest kernel's users of RDMA on a guest that moves between two hosts: NFS and iSCSI
(iSER); NVMe is in test_migrate.py.

One process each writes a file or disk there and compares what it reads back, over and
over, and none of it may fail.  The connections are those of the beginning: these users
would make others where one is lost, and nobody would see it.
"""

import test_migrate
from lib import debiandisk, fixture, kusers, ongoing, parts
from lib.kernellog import log_problems
from lib.pvrdma_vm import say

MOVES = 10 if fixture.LONG else 2
# The disk of the programs is not written to: the next QEMU would not have that.
MOUNT = debiandisk.MOUNT.replace('-o noatime', '-o ro') + '''
for d in etc run srv mnt var/lib/nfs; do
    mkdir -p /tmp/own/$d /debian/$d
    cp -a /debian/$d/. /tmp/own/$d/
    mount --bind /tmp/own/$d /debian/$d
done
'''


@fixture.shard('moves')
class UsersTest(test_migrate.TwoHosts):
    time_limit = 5400 if fixture.LONG else 1800  # the disk may have to be made
    own = True

    @classmethod
    def require(cls):
        cls.disk = debiandisk.make('suites')

    @classmethod
    def guest_options(cls):
        return {'files': dict(debiandisk.files(), **parts.guest_files()), 'memory': 1024,
                'extra_args': debiandisk.drive(cls.disk)}

    @classmethod
    def boot(cls):
        super().boot()
        for guest in cls.guests:
            guest.run(MOUNT)

    def connections(self):
        return {guest.name: set(ongoing.connected(guest.name, self.daemons))
                for guest in self.guests}

    def go_on(self, served):
        """@served: what the mover serves to the peer, and then what it uses of the
        peer's."""
        pair = [self.mover, self.peer]
        ends = list(zip(served, (pair, pair[::-1])))
        paths = []
        for user, (target, host) in ends:
            user.serve(target, target.ip('pvrdma'))
            paths.append(user.attach(host, target.ip('pvrdma')))
        connections = self.connections()
        kept = [kusers.keep(host, path) for (_, (_, host)), path in zip(ends, paths)]
        rounds = [kusers.Rounds(host, path, seconds=ongoing.LIMIT)
                  for (_, (_, host)), path in zip(ends, paths)]
        for number in range(MOVES):
            self.move()
            for each in rounds:
                each.more()
            say('move %d of %d' % (number + 1, MOVES))
        for each in rounds:
            each.finish()
        for (_, (_, host)), test in zip(ends, kept):
            kusers.script(host, test)
        self.assertEqual(self.connections(), connections)
        for user, (target, host) in ends:
            user.detach(host)
            user.withdraw(target)

    def test_in_a_row(self):
        self.go_on([kusers.Nfs(), kusers.Iscsi()])
        if fixture.LONG:
            self.go_on([kusers.Iscsi(), kusers.Nfs()])
        for guest in self.guests:
            self.assertEqual(log_problems(guest), [])
        if fixture.LONG:
            # Then the logs have warnings of the iSCSI target, with moves and without
            # ("failed to drain recv queue: -110").
            for guest in self.guests:
                kusers.Nfs.stop(guest)
                parts.use_stock(guest)
            self.go_on([kusers.Nfs(), kusers.Iscsi()])
            self.go_on([kusers.Iscsi(), kusers.Nfs()])
