# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts with a libvirtd each, and guests that are its domains.

A LibvirtHost is a host of tests/vm/lib/hosts.py with a root of its own beside its network
(host.sh, root.sh): its libvirtd, QEMUs and files are there and nowhere else, and end
with the process that the session started.  The daemon stays outside, with its sockets
in a folder that is /run/pvrdma in there, as an operator's host has it; so the domain's
XML is the same on all hosts, and needs no change when it moves.

A DomainGuest is a Guest whose QEMU libvirtd runs.
"""

import json
import os
import shutil
import subprocess
import time

from lib import hosts
from lib.pvrdma_vm import BUILD, VmError, image, kill_process, kvm

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(BUILD, 'libvirt', 'root')
QEMU = os.path.realpath(os.path.join(BUILD, 'qemu'))
# Of libvirtd's commands; the machine may be busy with other things.
TIMEOUT = 180


def make_root():
    """The root file system with libvirt, which is made once."""
    done = subprocess.run([os.path.join(FOLDER, 'root.sh'), BUILD], check=False)
    if done.returncode:
        raise VmError('no root with libvirt, see %s/libvirt/root.log' % BUILD)


class LibvirtHost:
    """@host of hosts.Hosts, with libvirt; @names: addresses and names of all hosts."""

    def __init__(self, session, host, names):
        self.session = session
        self.host = host
        self.name = host.name
        # Short: UNIX sockets are in it.
        self.dir = session.path('h%d' % host.number)
        self.guests = os.path.join(self.dir, 'guests')
        os.makedirs(self.guests)
        os.chmod(self.guests, 0o1777)
        os.makedirs(os.path.join(self.dir, 'log'))
        words = [word for pair in names for word in pair]
        self.holder = session.popen(
            host.prefix + ['unshare', '--mount', '--pid', '--uts', '--ipc', '--fork',
                           '--kill-child=KILL', '--', os.path.join(FOLDER, 'host.sh'),
                           ROOT, self.dir, QEMU, self.name] + words,
            self.name + '-libvirtd.log')
        self._inside = []

    @property
    def inside(self):
        """What a command begins with that is to run in there."""
        if not self._inside:
            path = '/proc/%d/task/%d/children' % (self.holder.pid, self.holder.pid)
            with open(path) as stream:
                pid = stream.read().split()[0]
            self._inside = ['nsenter', '--target=' + pid, '--mount', '--pid', '--uts',
                            '--net', '--ipc', '--', 'env', '-i', 'LC_ALL=C.UTF-8',
                            'PATH=/usr/sbin:/usr/bin:/sbin:/bin']
        return self._inside

    def start(self, argv, log):
        """Start a command there, its output into the session's file @log."""
        with open(log, 'ab') as stream:
            return subprocess.Popen(self.inside + argv, stdin=subprocess.DEVNULL,
                                    stdout=stream, stderr=stream)

    def run(self, *argv, check=True):
        """Run a command there to its end: its output and status."""
        done = subprocess.run(self.inside + list(argv), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=TIMEOUT, universal_newlines=True, check=False)
        if check and done.returncode:
            raise VmError('%s: %s: status %d: %s' % (
                self.name, ' '.join(argv), done.returncode, done.stdout.strip()))
        return done.stdout if check else (done.stdout, done.returncode)

    def virsh(self, *argv, check=True):
        return self.run('virsh', *argv, check=check)

    def wait_up(self, timeout=60):
        """Wait until libvirtd answers."""
        end = time.monotonic() + timeout
        while True:
            if self.holder.poll() is not None:
                raise VmError('%s has ended with status %d' % (
                    self.name, self.holder.returncode))
            try:
                said, status = self.virsh('list', check=False)
            except (FileNotFoundError, IndexError):
                said, status = 'no process yet', 1
            if status == 0:
                return said
            if time.monotonic() > end:
                raise VmError('%s: libvirtd does not answer: %s' % (self.name, said))
            time.sleep(0.2)

    def keep(self, folder, name):
        """A file there is one of the session's logs."""
        path = os.path.join(self.dir, folder, name)
        open(path, 'a').close()
        os.symlink(path, self.session.path('%s-%s' % (self.name, name)))

    def log(self, name):
        """Of a guest's QEMU."""
        return os.path.join(self.dir, 'log', name + '.log')

    def path(self, name):
        """Outside, of what is /run/guests/NAME inside."""
        return os.path.join(self.guests, name)


def group_id(name):
    """The number of a group in the root with libvirt."""
    with open(os.path.join(ROOT, 'etc', 'group')) as stream:
        for line in stream:
            words = line.split(':')
            if words[0] == name:
                return int(words[2])
    raise VmError('no group %s in %s' % (name, ROOT))


class LibvirtHosts(hosts.Hosts):
    """@count hosts, each with libvirtd."""

    def __init__(self, session, count=2):
        super().__init__(session, count)
        names = [(host.address, host.name) for host in self.hosts]
        self.libvirt = [LibvirtHost(session, host, names) for host in self.hosts]
        for host in self.libvirt:
            host.wait_up()
            # libvirt does not say which interface a domain's multicasts take.
            host.host.run('ip', 'route', 'add', '224.0.0.0/4', 'dev', host.host.device)

    def daemon_place(self, host):
        """Its sockets are where QEMU looks for them, and of QEMU's group."""
        return {'socket_dir': os.path.join(self.libvirt[host.number].dir, 'pvrdma'),
                'prefix': host.prefix + [
                    'setpriv', '--regid=%d' % group_id('kvm'), '--clear-groups', '--']}


XML = '''<domain type='{kind}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>{cpus}</vcpu>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <os>
    <type arch='x86_64' machine='pc-q35-10.0'>hvm</type>
    <kernel>/run/guests/vmlinuz</kernel>
    <initrd>/run/guests/{name}.initrd</initrd>
    <cmdline>{line}</cmdline>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <on_poweroff>destroy</on_poweroff>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/opt/qemu/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <controller type='virtio-serial' index='0'>
      <address type='pci' domain='0' bus='0' slot='0x07' function='0x0'/>
    </controller>
    <interface type='mcast'>
      <mac address='{mac}'/>
      <source address='{lan[0]}' port='{lan[1]}'/>
      <model type='vmxnet3'/>
      <rom enabled='no'/>
      <address type='pci' domain='0' bus='0' slot='0x1d' function='0x0' multifunction='on'/>
    </interface>
    <serial type='file'>
      <source path='/run/guests/{name}-console.log' append='on'/>
      <target port='0'/>
    </serial>
    <channel type='unix'>
      <source mode='bind' path='/run/guests/{name}.ctl'/>
      <target type='virtio' name='org.pvrdma.ctl'/>
    </channel>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-L'/>
    <qemu:arg value='/usr/share/qemu'/>
    <qemu:arg value='-L'/>
    <qemu:arg value='/usr/share/seabios'/>
    <qemu:arg value='-device'/>
    <qemu:arg value='pvrdma,id=rdma0,bus=pcie.0,addr=0x1d.1{options}'/>
  </qemu:commandline>
</domain>
'''


class DomainGuest(hosts.HostGuest):
    """A guest that is a domain on @place, one of the LibvirtHosts @places, in their
    Lan."""

    UUID = '5c2f6b6e-3f0a-4f0e-9d0b-%012d'

    def __init__(self, *args, place=None, places=(), **options):
        super().__init__(*args, host=place.host, boot=True, **options)
        self.place, self.places = place, places
        self.console_log = place.path(self.name + '-console.log')
        self.ended = False

    # -- what Guest does with a QEMU of its own -----------------------------------

    def _sock(self, kind):
        return self.place.path('%s.%s' % (self.name, kind))

    @property
    def alive(self):
        return not self.ended

    def xml(self):
        return XML.format(
            kind='kvm' if kvm() else 'qemu', name=self.name,
            uuid=self.UUID % self.number, memory=self.memory, cpus=self.cpus,
            line=self.kernel_line(), mac=self.mac('pvrdma'), lan=hosts.LAN,
            options=self.device_options)

    def launch(self):
        self.generation += 1
        for place in self.places:
            place.keep('log', self.name + '.log')
            place.keep('guests', self.name + '-console.log')
        shutil.copy(image('vmlinuz'), self.place.path('vmlinuz'))
        shutil.move(self._write_initrd(), self.place.path(self.name + '.initrd'))
        with open(self.place.path(self.name + '.xml'), 'w') as stream:
            stream.write(self.xml())
        self.booted = time.monotonic()
        self.place.virsh('create', '/run/guests/%s.xml' % self.name)

    def qmp(self, command, **arguments):
        said = self.place.virsh('qemu-monitor-command', self.name, json.dumps(
            {'execute': command, 'arguments': arguments}))
        answer = json.loads(said)
        if 'error' in answer:
            raise VmError('%s: QMP %s: %s' % (self.name, command,
                                              answer['error']['desc']))
        return answer['return']

    def state(self):
        """What libvirt calls it, or None where it is not."""
        said, status = self.place.virsh('domstate', self.name, check=False)
        return None if status else said.strip()

    def powerdown(self, timeout=40):
        try:
            self.spawn('sync; poweroff -f', 20)
        finally:
            end = time.monotonic() + timeout * self.patience
            while self.state():
                if time.monotonic() > end:
                    raise VmError('%s did not power off' % self.name)
                time.sleep(0.2)
            self.ended = True
            self.agent_close()

    # -- its places ---------------------------------------------------------------

    def follow_agent(self, work, to):
        """Have the agent's bytes come from the QEMU that is started on the host @to
        while @work, a process that this returns the status of, goes on."""
        sock = to.path(self.name + '.ctl')
        try:
            self.agent.follow(sock, lambda: work.poll() in (None, 0), timeout=TIMEOUT)
            status = work.wait(TIMEOUT)
        except BaseException:
            kill_process(work)
            self.agent.hold(False)
            raise
        return status

    def prepare(self, to):
        """What must be on a host where the guest shall run, and what must not."""
        for name in ('vmlinuz', self.name + '.initrd'):
            if not os.path.exists(to.path(name)):
                shutil.copy(self.place.path(name), to.path(name))
        # Of an earlier stay there: nobody's.
        path = to.path(self.name + '.ctl')
        if os.path.exists(path):
            os.unlink(path)

    def move(self, to, *options):
        """`virsh migrate` to the LibvirtHost @to; returns when it runs there."""
        self.prepare(to)
        log = self.session.path('virsh.log')
        self.agent.hold()
        work = self.place.start(['virsh', 'migrate', self.name, '--live', *options,
                                 'qemu+tcp://%s/system' % to.name], log)
        status = self.follow_agent(work, to)
        if status:
            raise VmError('virsh migrate: status %d, see %s' % (status, log))
        self.agent.moved()
        self.place, self.host = to, to.host

    def try_move(self, to, *options):
        """`virsh migrate` that is to fail: what it says."""
        self.prepare(to)
        said, status = self.place.virsh(
            'migrate', self.name, '--live', *options,
            'qemu+tcp://%s/system' % to.name, check=False)
        if status == 0:
            raise VmError('virsh migrate should have failed, and said ' + said)
        return said

    def save(self, name):
        """`virsh save` into /run/guests/NAME; restore() must follow."""
        self.agent.hold()
        self.place.virsh('save', self.name, '/run/guests/' + name)

    def restore(self, name):
        """`virsh restore` of /run/guests/NAME, on the host where it is."""
        self.prepare(self.place)
        log = self.session.path('virsh.log')
        work = self.place.start(['virsh', 'restore', '/run/guests/' + name], log)
        status = self.follow_agent(work, self.place)
        if status:
            raise VmError('virsh restore: status %d, see %s' % (status, log))
        self.agent.moved()
