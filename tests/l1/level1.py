# SPDX-License-Identifier: GPL-2.0-or-later
"""A host with an RDMA NIC that is a guest itself: in it run the daemon and native programs.

RDMA devices of this machine's kernel are not for tests, so the host (level 1) is a guest of
QEMU, emulated as ever, of two processors, whose NIC is soft-RoCE (rdma_rxe) or
soft-iWARP (siw) on an interface that leads nowhere: either connects to itself.  It boots
the guest image (images/), or that with another kernel of the distribution (image.sh), and
behind it come the build's own programs with the libraries that the image does not have.

    host = Host(session, '6.1').start().wait_boot()
    host.load('rxe')
    daemon = HostDaemon(host, {'nic rxe0': {...}})
    daemon.ctl_json('nic', 'list')

The kernels are named by series.  That of the guest image is this machine's distribution's;
one that cannot be had skips the test.
"""

import functools
import json
import os
import re
import subprocess
import unittest

from lib import parts
from lib.agent import AgentError
from lib.kernellog import BAD_LOG
from lib.pvrdma_vm import BUILD, IMAGES, Guest, VmError, image

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = 'usr/lib/x86_64-linux-gnu'
NETDEV = 'vio0'
# What the kernel calls its NICs, by type, and what loads them.
KINDS = {'rxe': 'crc32_generic rdma_rxe rdma_ucm', 'siw': 'siw rdma_ucm'}
# A daemon lives as long as its test needs it.
LIFETIME = 3600


@functools.lru_cache(maxsize=None)
def images(series):
    """The folder of kernel and initramfs with a kernel of this series, such as 6.1."""
    with open(image('image.info')) as stream:
        if stream.readline().split()[1].startswith(series + '.'):
            return IMAGES
    done = subprocess.run([os.path.join(HERE, 'image.sh'), BUILD, series],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, check=False)
    if done.returncode == 3:
        raise unittest.SkipTest(done.stdout.splitlines()[-1])
    if done.returncode:
        raise VmError('image.sh: status %d: %s' % (done.returncode, done.stdout))
    return os.path.join(BUILD, 'l1', series)


@functools.lru_cache(maxsize=None)
def there(folder):
    """The names of all files of a guest image."""
    with open(image('initramfs', folder), 'rb') as stream:
        return set(subprocess.run(['cpio', '-t', '--quiet'], stdin=stream,
                                  stdout=subprocess.PIPE, universal_newlines=True,
                                  check=True).stdout.splitlines())


def programs(*names):
    """Programs of the build by their paths in it, and the libraries that they need and
    the guest image does not have, as Guest's @files."""
    files = {}
    for name in names:
        path = os.path.join(BUILD, name)
        if not os.access(path, os.X_OK):
            raise VmError('%s is not built: run "make backend"' % path)
        files['usr/local/bin/' + os.path.basename(name)] = path
        said = subprocess.run(['ldd', path], stdout=subprocess.PIPE, check=True,
                              universal_newlines=True).stdout
        for library, source in re.findall(r'(?m)^\s*(\S+) => (/\S+) \(', said):
            target = os.path.join(LIBRARIES, library)
            if target not in there(IMAGES):
                files[target] = source
    return files


class Nowhere:
    """A cable (pvrdma_vm.Link) to nothing; yet the interface has a carrier."""

    @staticmethod
    def netdev(_guest, ident):
        return 'hubport,id=%s,hubid=0' % ident

    @staticmethod
    def wait_ready(_guest):
        pass


class Host(Guest):
    """The host.  @series: of its kernel; @more: further programs of the build; @memory: in
    MiB."""

    def __init__(self, session, series, more=(), memory=768, files=None, **options):
        self.images = images(series)
        files = dict(programs('backend/pvrdmad', 'backend/pvrdmactl', *more), **files or {})
        # Always booted: the kernel of level 1 is a part of what is tested.
        super().__init__(session, 1, {'virtio': Nowhere()}, name='host', memory=memory,
                         cpus=2, files=files, boot=True, **options)

    def load(self, kind):
        """A NIC of this kind: its device's name."""
        for module in KINDS[kind].split():
            self.run('modprobe ' + module)
        self.add(kind)
        return kind + '0'

    def add(self, kind):
        self.run('rdma link add %s0 type %s netdev %s' % (kind, kind, NETDEV))
        parts.wait_port(self, 'ACTIVE', device=kind + '0')

    def delete(self, kind):
        """Returns only when nobody has it open."""
        self.run('rdma link delete %s0' % kind)

    def link(self, state):
        """By the administrator.  To soft-RoCE of Linux 6.1 a message of the connection
        manager that is sent while it is down is the last: afterwards connections can be
        made only when the device was deleted and added."""
        self.run('ip link set %s %s' % (NETDEV, state))

    def cable(self, state):
        """By somebody at the rack: soft-RoCE is told, and soft-iWARP is not."""
        self.qmp('set_link', name='n1', up=state == 'up')

    def problems(self):
        """Lines of the kernel's log that no test may cause."""
        return [line for line in self.run('dmesg').out.splitlines() if BAD_LOG.search(line)]


class HostDaemon:
    """A pvrdmad in a Host.  @groups: of its key file besides [daemon], by their headings,
    with their settings.  @settings: of [daemon].  @name: of its files there, as a host may
    have several."""

    def __init__(self, host, groups=None, settings=None, name='pvrdmad', env=''):
        self.host, self.name = host, name
        self.sockets = '/run/' + name
        keys = {'daemon': dict({'socket-dir': self.sockets, 'log-level': 'info'},
                               **(settings or {})), **(groups or {})}
        text = '\n'.join('[%s]\n%s' % (group, ''.join(
            '%s=%s\n' % item for item in values.items())) for group, values in keys.items())
        parts.put_in_guest(host, '/etc/%s.conf' % name, text.encode())
        host.run('mkdir -p -m 700 ' + self.sockets)
        self.job = host.spawn('exec env %s pvrdmad --dumpable --config /etc/%s.conf' % (
            env, name), LIFETIME)
        try:
            parts.wait_in_guest(host, '[ -S %s/control ]' % self.sockets, name, 60)
        except VmError as exc:
            raise VmError('%s\n%s' % (exc, self.job.describe())) from exc

    def ctl(self, *args):
        self.check()
        return self.host.run('pvrdmactl --socket %s/control %s' % (
            self.sockets, ' '.join(args))).out

    def ctl_json(self, *args):
        return json.loads(self.ctl('--json', *args))

    def check(self):
        """Raise VmError unless it still runs."""
        if self.job.done:
            raise VmError('pvrdmad ended: ' + self.job.describe())

    def stop(self):
        """It ends well, as it is asked to."""
        self.check()
        self.job.kill()
        try:
            self.job.wait(60)
        except AgentError as exc:
            raise VmError('pvrdmad did not end within 60 s of SIGTERM') from exc
        if not self.job.ok:
            raise VmError(self.job.describe())

    def keep_log(self):
        """What it said, among the session's logs."""
        with open(self.host.session.path(self.name + '.log'), 'w') as stream:
            stream.write(self.job.out + self.job.err)
