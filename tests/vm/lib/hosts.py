# SPDX-License-Identifier: GPL-2.0-or-later
"""Several hosts on one machine: network namespaces on a common wire, with a daemon in
each and guests on any.

    hosts = Hosts(session, 2)
    daemons = hosts.start_daemons({'vm1': {...}, 'vm2': {...}})
    guests = hosts.start_guests(daemons, [0, 1])

A namespace lives as long as the process that was started to hold it, and its devices
go with it, so that nothing is left to be removed however the test ends.  The wire is
a bridge in a namespace of its own: hosts.wire and each host have a `prefix` with which
commands run there, for faults (tc, nft, ip link) and captures.

The guests' own network interfaces are on that wire too: QEMU's frames travel in a TCP
connection between the hosts' namespaces, or with more than two guests in multicast
datagrams.
"""

import os
import secrets
import subprocess
import time

from lib.pvrdma_vm import Daemon, Guest, Link, VmError, say

PORT = 14820
NETWORK = '10.99.0.%d'
# Of the TCP connections that are the guests' cables.
FIRST_CABLE = 17000
# Of the multicast datagrams where there are more than two guests.
LAN = '239.99.0.1', 16999


def may_be_made():
    """Whether this process may make namespaces and devices in them."""
    return os.geteuid() == 0


class Namespace:
    """A network namespace, of the process that holds it."""

    def __init__(self, session, name):
        self.name = name
        self.holder = session.popen(['unshare', '--net', 'sleep', 'infinity'],
                                    name + '.log')
        own = os.readlink('/proc/self/ns/net')
        end = time.monotonic() + 10
        while self._net() in (own, None):
            if self.holder.poll() is not None or time.monotonic() > end:
                raise VmError('no network namespace for ' + name)
            time.sleep(0.01)
        self.prefix = ['nsenter', '--net=/proc/%d/ns/net' % self.holder.pid, '--']
        self.run('ip', 'link', 'set', 'lo', 'up')

    def _net(self):
        try:
            return os.readlink('/proc/%d/ns/net' % self.holder.pid)
        except OSError:
            return None

    def run(self, *argv, check=True):
        """Run a command there; its output."""
        done = subprocess.run(self.prefix + list(argv), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30,
                              universal_newlines=True, check=False)
        if check and done.returncode:
            raise VmError('%s: %s: status %d: %s' % (
                self.name, ' '.join(argv), done.returncode, done.stdout.strip()))
        return done.stdout

    def listens(self, port):
        """Whether anybody there listens on TCP @port."""
        want = ':%04X' % port
        with open('/proc/%d/net/tcp' % self.holder.pid) as stream:
            rows = [line.split() for line in stream.readlines()[1:]]
        return any(row[1].endswith(want) and row[3] == '0A' for row in rows)


class Host(Namespace):
    """One of them, with an address on the wire."""

    def __init__(self, session, number, wire):
        super().__init__(session, 'host%d' % number)
        self.number = number
        self.address = NETWORK % (number + 1)
        self.device = 'veth%d' % number
        subprocess.run(['ip', 'link', 'add', self.device, 'netns',
                        str(self.holder.pid), 'type', 'veth', 'peer', 'name',
                        self.device, 'netns', str(wire.holder.pid)], check=True)
        wire.run('ip', 'link', 'set', self.device, 'master', 'wire', 'up')
        self.run('ip', 'addr', 'add', self.address + '/24', 'dev', self.device)
        self.run('ip', 'link', 'set', self.device, 'up')


class Cable(Link):
    """A cable between guests of different hosts."""

    count = 0

    def __init__(self, session, hosts):
        super().__init__(session, 'cable')
        self.hosts = hosts  # by the guests' names
        self.port = FIRST_CABLE + Cable.count
        Cable.count += 1

    def netdev(self, guest, ident):
        if guest.name not in self.ends:
            self.ends.append(guest.name)
        return 'stream,id=%s,server=%s,addr.type=inet,addr.host=%s,addr.port=%d' % (
            ident, 'on' if self.ends[0] == guest.name else 'off',
            self.hosts[self.ends[0]].address, self.port)

    def wait_ready(self, guest, timeout=20):
        end = time.monotonic() + timeout
        while self.ends and self.ends[0] != guest.name and \
                not self.hosts[self.ends[0]].listens(self.port):
            if time.monotonic() > end:
                raise VmError('the first guest does not listen for its cable')
            time.sleep(0.02)


class Lan(Link):
    """A network of any number of guests of different hosts: multicast datagrams."""

    def __init__(self, session, _hosts):
        super().__init__(session, 'lan')

    def netdev(self, guest, ident):
        return 'socket,id=%s,mcast=%s:%d,localaddr=%s' % (
            ident, *LAN, guest.host.address)

    def wait_ready(self, guest, timeout=20):
        pass


class HostGuest(Guest):
    """A guest on @host."""

    def __init__(self, *args, host=None, **options):
        super().__init__(*args, **options)
        self.host = host

    def program(self):
        return self.host.prefix + super().program()


class Hosts:
    """@count of them, from number 0."""

    def __init__(self, session, count=2):
        if not may_be_made():
            raise VmError('network namespaces need root')
        self.session = session
        self.wire = Namespace(session, 'wire')
        self.wire.run('ip', 'link', 'add', 'wire', 'type', 'bridge')
        self.wire.run('ip', 'link', 'set', 'wire', 'up')
        self.hosts = [Host(session, i, self.wire) for i in range(count)]
        self.secret = session.path('secret')
        with open(os.open(self.secret, os.O_CREAT | os.O_WRONLY, 0o600), 'w') as stream:
            stream.write(secrets.token_hex(16))

    def __getitem__(self, i):
        return self.hosts[i]

    def daemon_place(self, host):
        """Where the daemon of @host runs: arguments of Daemon."""
        return {'prefix': host.prefix}

    def start_daemons(self, vms, settings=None):
        """A daemon on each, all with @vms declared (as of Daemon) and all others as
        peers; returns when all links are up."""
        daemons = []
        for host in self.hosts:
            own = {'listen': host.address, 'host-name': host.name}
            own.update(settings or {})
            peers = {'peer ' + other.name: {'address': other.address,
                                            'secret-file': self.secret}
                     for other in self.hosts if other is not host}
            daemons.append(Daemon(self.session, vms, settings=own, groups=peers,
                                  name='pvrdmad-' + host.name,
                                  **self.daemon_place(host)))
        wait_links(daemons)
        return daemons

    def start_guests(self, daemons, places, first=1, virtio=False, wire=None, **options):
        """Guests vm1, vm2, ... on the hosts of these numbers; they have booted when this
        returns.  @wire: what is between them, or two have a cable, of which the first
        stays where it is, and more a network."""
        names = ['vm%d' % number for number in range(first, first + len(places))]
        at = {name: self.hosts[place] for name, place in zip(names, places)}
        wire = wire or (Cable if len(places) == 2 else Lan)
        links = {kind: wire(self.session, at)
                 for kind in (('pvrdma', 'virtio') if virtio else ('pvrdma',))}
        guests = []
        for number, (name, place) in enumerate(zip(names, places), first):
            guests.append(HostGuest(self.session, number, links,
                                    daemons[place].socket(name), host=at[name],
                                    **options).start())
        for guest in guests:
            guest.wait_boot()
            say('%s is up on %s after %.1f s' % (guest.name, guest.host.name,
                                                 time.monotonic() - guest.booted))
        return guests


def wait_links(daemons, timeout=20):
    """Wait until each of @daemons has links to all its peers."""
    end = time.monotonic() + timeout
    for daemon in daemons:
        while True:
            peers = daemon.ctl_json('peer', 'list')['peers']
            if all(peer['state'] == 'up' for peer in peers):
                break
            daemon.check()
            if time.monotonic() > end:
                raise VmError('%s: links are not up: %s' % (daemon.name, peers))
            time.sleep(0.05)
