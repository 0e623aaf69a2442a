# SPDX-License-Identifier: GPL-2.0-or-later
"""Run real QEMU guests and the daemon, for the demo and the VM tests.

    with Session('example') as s:
        daemon = Daemon(s, ['vm1', 'vm2'])
        guests = start_guests(s, daemon)
        print(guests[0].run('ibv_devices').out)

A Session owns a private folder and every process that is started through it.
Leaving the `with` block, by whatever way, ends those processes (by their own
process ids) and removes the folder; if the block raised, the logs are kept
first.  Children also get SIGKILL from the kernel should the runner die.

Only the thread that runs the Session starts processes: the kernel's
parent-death signal is tied to the thread that forked.

Environment: PVRDMA_BUILD (build folder), PVRDMA_QEMU (binary), PVRDMA_IMAGES
(folder of vmlinuz and initramfs), PVRDMA_ACCEL (kvm instead of tcg),
PVRDMA_KEEP=1 (keep logs of good runs too), PVRDMA_BOOT=1 (boot all guests) and
PVRDMA_TEMPLATES (folder of saved ones), see template.py.
"""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from lib import template
from lib.agent import Agent, AgentError, CommandFailed
from lib.cpio import Cpio
from lib.kernellog import log_problems

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
BUILD = os.path.abspath(os.environ.get('PVRDMA_BUILD') or
                        os.path.join(REPO, 'build'))
IMAGES = os.path.abspath(os.environ.get('PVRDMA_IMAGES') or
                         os.path.join(BUILD, 'images'))
LOGS = os.path.join(BUILD, 'vm-logs')
BOOT_TIMEOUT = 180


class VmError(Exception):
    """Something of the test's machinery does not work or is missing."""


def debug_kernel():
    """Whether the guests get the kernel of images/build-debug-kernel.sh."""
    try:
        with open(os.path.join(IMAGES, 'image.info')) as stream:
            return stream.readline().rstrip().endswith('-debug')
    except FileNotFoundError:
        return False


def patience():
    """How many times longer all may take than it usually does."""
    return 4 if debug_kernel() else 1


def kvm():
    """Whether the guests run on the processor and are not emulated."""
    return os.environ.get('PVRDMA_ACCEL') == 'kvm'


def say(text):
    """Print a progress line with the time since the program's start."""
    print('[%6.1f s] %s' % (time.monotonic() - say.start, text), flush=True)


say.start = time.monotonic()


def built_program(name):
    """Path of a program of ours; configure demands what it is built with."""
    path = os.path.join(BUILD, 'tests', 'vm', name)
    if not os.access(path, os.X_OK):
        raise VmError('%s is not built: run "make backend"' % path)
    return path


@functools.lru_cache(maxsize=None)
def tsc_khz():
    """The speed of a TCG guest's time stamp counter, which is the host's."""
    return int(subprocess.run([built_program('tsckhz')], stdout=subprocess.PIPE,
                              check=True).stdout)


def qemu_binary(need_pvrdma=True):
    """The project's QEMU, or with need_pvrdma=False any that there is."""
    own = os.environ.get('PVRDMA_QEMU') or \
        os.path.join(BUILD, 'qemu', 'qemu-system-x86_64')
    if os.access(own, os.X_OK):
        return own
    system = shutil.which('qemu-system-x86_64')
    if system and not need_pvrdma:
        return system
    raise VmError('no QEMU with the pvrdma device at %s: run "make all"' % own)


class Session:
    """Owns the private folder and the processes of one test or demo."""

    def __init__(self, name):
        self.name = name
        # Short on purpose: a UNIX socket's path has at most 107 bytes.
        self.dir = tempfile.mkdtemp(prefix='pvrdma-')
        self._closers = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _trace):
        if kind not in (None, KeyboardInterrupt):
            self.keep_logs(value)
        elif os.environ.get('PVRDMA_KEEP'):
            self.keep_logs(None)
        self.close()

    def path(self, name):
        return os.path.join(self.dir, name)

    def add_closer(self, function):
        self._closers.append(function)

    def close(self):
        """End everything, last started first, and remove the folder."""
        while self._closers:
            closer = self._closers.pop()
            try:
                closer()
            except OSError as exc:
                say('cleaning up %s: %s' % (self.name, exc))
        shutil.rmtree(self.dir, ignore_errors=True)

    def keep_logs(self, problem):
        """Copy the logs to the build folder and show their ends."""
        target = os.path.join(LOGS, self.name)
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        for entry in sorted(os.listdir(self.dir)):
            if entry.endswith(('.log', '.conf')):
                shutil.copy(self.path(entry), target)
                if problem is not None and entry.endswith('.log'):
                    self._show_end(entry)
        say('logs are kept in %s' % target)

    def _show_end(self, entry):
        with open(self.path(entry), 'r', errors='replace') as stream:
            lines = stream.read().splitlines()[-25:]
        if lines:
            print('--- end of %s ---' % entry)
            print('\n'.join(lines), flush=True)

    def popen(self, argv, log, env=None):
        """Start a process with output to log file @log, killed with us."""
        stream = open(self.path(log), 'ab')
        try:
            proc = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', '--'] + argv,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                env=env, cwd=self.dir)
        except FileNotFoundError as exc:
            raise VmError('cannot run %s: %s' % (argv[0], exc)) from exc
        finally:
            stream.close()
        self.add_closer(lambda: kill_process(proc))
        return proc


def kill_process(proc):
    """SIGKILL one child and collect it."""
    if proc.poll() is None:
        proc.kill()
    proc.wait()


class Daemon:
    """A pvrdmad of this session with its declared VMs.

    @vms: names, or a dict of name to settings of its group, such as
    {'vm1': {'addresses': 'any'}}.  @groups: the same of further groups, by their
    headings.  @name: of its files, @prefix: what its command begins with, where a
    session has several.  Raises VmError if it does not come up.
    """

    def __init__(self, session, vms, program=None, args=(), settings=None,
                 env=None, groups=None, name='pvrdmad', prefix=(), socket_dir=None):
        self.session = session
        self.program = program or os.path.join(BUILD, 'backend', 'pvrdmad')
        self.name = name
        self.prefix = list(prefix)
        self.groups = groups or {}
        self.socket_dir = socket_dir or \
            session.path('sockets' if name == 'pvrdmad' else name)
        self.config = session.path(name + '.conf')
        self.args = list(args)
        self.env = dict(os.environ, **env) if env else None
        self.vms = vms if isinstance(vms, dict) else {
            name: {'addresses': 'any'} for name in vms}
        self.settings = {'socket-dir': self.socket_dir, 'log-level': 'info'}
        self.settings.update(settings or {})
        self.proc = None
        os.makedirs(self.socket_dir, mode=0o700, exist_ok=True)
        self._write_config()
        self.start()

    def _write_config(self):
        with open(self.config, 'w') as stream:
            stream.write('[daemon]\n')
            for key, value in self.settings.items():
                stream.write('%s=%s\n' % (key, value))
            groups = {'vm ' + name: group for name, group in self.vms.items()}
            groups.update(self.groups)
            for name, group in groups.items():
                stream.write('\n[%s]\n' % name)
                for key, value in group.items():
                    stream.write('%s=%s\n' % (key, value))

    def socket(self, name):
        return self.vms[name].get('socket') or \
            os.path.join(self.socket_dir, name + '.sock')

    def start(self, timeout=20):
        """Start it and wait until each VM's socket is there."""
        if not os.access(self.program, os.X_OK):
            raise VmError('%s is not built: run "make all"' % self.program)
        for name in self.vms:
            if os.path.exists(self.socket(name)):
                os.unlink(self.socket(name))
        self.proc = self.session.popen(
            self.prefix + [self.program, '--dumpable', '--config', self.config,
                           '--socket-dir', self.socket_dir] + self.args,
            self.name + '.log', self.env)
        end = time.monotonic() + timeout
        while not all(os.path.exists(self.socket(n)) for n in self.vms):
            if self.proc.poll() is not None:
                raise VmError('pvrdmad ended with status %d at its start'
                              % self.proc.returncode)
            if time.monotonic() > end:
                raise VmError('pvrdmad made no sockets within %d s' % timeout)
            time.sleep(0.02)

    @property
    def alive(self):
        return self.proc.poll() is None

    def check(self):
        """Raise VmError unless the daemon still runs."""
        if not self.alive:
            raise VmError('pvrdmad ended unexpectedly, status %d'
                          % self.proc.returncode)

    def stop(self, timeout=15):
        """Ask it to end; returns its exit status, raises if it hangs."""
        if self.proc.poll() is None:
            self.proc.terminate()
        try:
            return self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise VmError('pvrdmad did not end within %d s of SIGTERM'
                          % timeout) from None

    def kill(self):
        kill_process(self.proc)

    def ctl(self, *args):
        """Run pvrdmactl against this daemon and return its stdout."""
        argv = [os.path.join(os.path.dirname(self.program), 'pvrdmactl'),
                '--socket', os.path.join(self.socket_dir, 'control')]
        try:
            done = subprocess.run(argv + list(args), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=20,
                                  universal_newlines=True, check=False)
        except subprocess.TimeoutExpired as exc:
            raise VmError('pvrdmactl %s: no answer within %d s' % (
                ' '.join(args), exc.timeout)) from exc
        if done.returncode:
            raise VmError('pvrdmactl %s: status %d: %s' % (
                ' '.join(args), done.returncode, done.stderr.strip()))
        return done.stdout

    def ctl_json(self, *args):
        return json.loads(self.ctl('--json', *args))

    def declare(self, name, settings):
        """Give a VM's group these settings, or with None take it away, and have the
        file read again."""
        self.vms.pop(name, None)
        if settings is not None:
            self.vms[name] = settings
        self._write_config()
        self.ctl('reload')

    def counters(self, group, name):
        """One counter of `pvrdmactl counters` for each attached VM, in order."""
        by_vm = {vm['name']: vm for vm in self.ctl_json('counters')['vms']}
        return [by_vm[vm][group][name] for vm in self.vms
                if by_vm[vm]['attached']]

    def doorbells(self):
        """QEMU's count of BAR2 writes per VM: each was an exit."""
        return self.counters('device', 'doorbell_writes')

    def posts(self):
        """Those of them that are no polls; of one answer, so that they fit."""
        return [vm['device']['doorbell_writes'] - vm['device']['doorbell_polls']
                for vm in self.ctl_json('counters')['vms'] if vm['attached']]

    def resources(self):
        """What the kernel says of the daemon: a dict of counts and kB."""
        pid = self.proc.pid
        with open('/proc/%d/status' % pid) as stream:
            status = dict(line.split(':', 1) for line in stream)
        with open('/proc/%d/maps' % pid) as stream:
            maps = stream.read().splitlines()
        return {'threads': int(status['Threads']),
                'rss_anon_kb': int(status['RssAnon'].split()[0]),
                'fds': len(os.listdir('/proc/%d/fd' % pid)),
                'maps': len(maps),
                'memfd_maps': sum('/memfd:' in line for line in maps)}


class Link:
    """A cable between two guests: a UNIX stream socket of QEMU's netdev.

    The first guest that asks listens; the second connects, so the first must
    be up by then.
    """

    def __init__(self, session, name):
        self.path = session.path(name + '.net')
        self.ends = []

    def netdev(self, guest, ident):
        """QEMU's -netdev argument for @guest's end, with id @ident."""
        if guest.name not in self.ends:
            if len(self.ends) == 2:
                raise VmError('a link has two ends')
            self.ends.append(guest.name)
        server = self.ends[0] == guest.name
        if server and os.path.exists(self.path):
            os.unlink(self.path)
        return 'stream,id=%s,server=%s,addr.type=unix,addr.path=%s' % (
            ident, 'on' if server else 'off', self.path)

    def wait_ready(self, guest, timeout=20):
        """Wait until the listening end is there, if @guest is the other."""
        end = time.monotonic() + timeout
        while self.ends and self.ends[0] != guest.name and \
                not os.path.exists(self.path):
            if time.monotonic() > end:
                raise VmError('no socket %s from the first guest' % self.path)
            time.sleep(0.02)


class Guest:
    """One QEMU guest.

    @number (1..250) makes its MAC and IP addresses.  @links: {'pvrdma': Link,
    'virtio': Link}; either may be missing.  @socket: the daemon's socket for
    the pvrdma device, or None for a guest without that device.
    @files: {path in guest: path on host or bytes} for the appended archive.
    @boot: it does not begin from a template.
    """

    images = None  # a folder of others than IMAGES

    def __init__(self, session, number, links, socket=None, name=None,
                 memory=384, cpus=1, files=None, shell=False,
                 device_options='', extra_args=(), boot=False):
        self.session = session
        self.number = number
        self.name = name or 'vm%d' % number
        self.links = links
        self.socket = socket
        self.debug = debug_kernel()
        # KASAN's notes on each byte, and what it keeps back of freed memory.
        self.memory = memory * (2 if self.debug else 1)
        self.patience = patience()
        self.cpus = cpus
        self.files = dict(files or {})
        self.shell = shell
        self.device_options = device_options
        self.extra_args = list(extra_args)
        self.boot = boot
        self.restored = False  # its QEMU began from a template
        self.nameless = False  # ... and it is not yet the guest that it will be
        self.console_log = session.path(self.name + '-console.log')
        self.console = session.path(self.name + '.con')
        self.generation = 0
        self.proc = None
        self.agent = None
        self.booted = 0.0

    # -- addresses ----------------------------------------------------------

    def mac(self, kind):
        return '52:54:00:%s:00:%02x' % (
            {'pvrdma': '77', 'virtio': '78'}[kind], self.number)

    def ip(self, kind):
        return '10.%d.0.%d' % ({'pvrdma': 77, 'virtio': 78}[kind],
                               self.number)

    # -- starting -----------------------------------------------------------

    def config(self):
        """The text of its guest.conf."""
        nics, modules = [], []
        for kind, ifname, module in (('pvrdma', 'vmx0', 'vmxnet3'),
                                     ('virtio', 'vio0', 'virtio_net')):
            if kind in self.links:
                nics.append('%s,%s,%s/24,1500' % (self.mac(kind), ifname,
                                                  self.ip(kind)))
                modules.append(module)
        return ('GUEST_NAME=%s\nGUEST_MODULES="%s"\nGUEST_NICS="%s"\n'
                'GUEST_SHELL=%s\n' % (self.name, ' '.join(modules),
                                      ' '.join(nics),
                                      '1' if self.shell else ''))

    def archive(self):
        """What is put behind the image."""
        archive = Cpio()
        archive.add('etc/guest.conf', self.config().encode())
        files = guest_programs()
        files.update(self.files)
        for target, source in files.items():
            body = source
            if not isinstance(source, bytes):
                with open(source, 'rb') as stream:
                    body = stream.read()
            archive.add(target.lstrip('/'), body,
                        0o755 if '/bin/' in target else 0o644)
        return archive.data()

    def _write_initrd(self):
        path = self.session.path('%s-%d.initrd' % (self.name, self.generation))
        with open(image('initramfs', self.images), 'rb') as base, open(path, 'wb') as out:
            shutil.copyfileobj(base, out)
            out.write(self.archive())
        return path

    def _devices(self):
        args = []
        if 'pvrdma' in self.links:
            args += ['-netdev', self.links['pvrdma'].netdev(self, 'n0'),
                     '-device', 'vmxnet3,netdev=n0,mac=%s,bus=pcie.0,'
                     'addr=0x5.0,multifunction=on,romfile='
                     % self.mac('pvrdma')]
        if self.socket:
            args += ['-device', self.rdma_device()]
        if 'virtio' in self.links:
            args += ['-netdev', self.links['virtio'].netdev(self, 'n1'),
                     '-device', 'virtio-net-pci,netdev=n1,mac=%s,bus=pcie.0,'
                     'addr=0x6.0,romfile=' % self.mac('virtio')]
        return args

    def rdma_device(self):
        """QEMU's -device argument for the adapter."""
        return 'pvrdma,id=rdma0,socket=%s,bus=pcie.0,addr=0x5.1%s' \
            % (self.socket, self.device_options)

    def program(self):
        """The QEMU to run, and where it finds its firmware."""
        argv = [qemu_binary(self.socket is not None)]
        for base in (os.path.join(BUILD, 'qemu', 'firmware', 'usr', 'share'),
                     '/usr/share'):
            for folder in ('qemu', 'seabios'):
                if os.path.isdir(os.path.join(base, folder)):
                    argv += ['-L', os.path.join(base, folder)]
        return argv

    def kernel_line(self):
        """The command line of the guest's kernel."""
        # no_timer_check: on a loaded host the boot-time test of the timer
        # interrupt sees no tick in time, and the kernel panics.  There 21 s without
        # a turn of RCU's thread (its usual limit) say nothing of a driver, either.
        # A debugging kernel's reports are warnings; logs that are kept have them.
        return ('console=ttyS0 quiet loglevel=%d panic=-1 mitigations=off '
                'nokaslr no_timer_check rcupdate.rcu_cpu_stall_timeout=300'
                % (5 if self.debug else 4)) + \
            ('' if kvm() else ' tsc=reliable tsc_early_khz=%d' % tsc_khz())

    def command_line(self):
        """The QEMU command line, as a list; writes the guest's initrd."""
        accel, cpu = 'tcg,thread=multi', []
        if kvm():
            accel, cpu = 'kvm', ['-cpu', 'host']
        return self.program() + [
            '-name', self.name,
            '-M', 'q35,memory-backend=mem', '-accel', accel] + cpu + [
            '-m', str(self.memory), '-smp', str(self.cpus),
            '-object', 'memory-backend-memfd,id=mem,size=%dM,share=on'
            % self.memory,
            '-nodefaults', '-no-user-config', '-display', 'none',
            '-no-reboot', '-kernel', kernel(self.images),
            '-initrd', self._write_initrd(), '-append', self.kernel_line(),
            '-chardev', 'socket,id=ctl,path=%s,server=on,wait=off'
            % self._sock('ctl'),
            '-device', 'virtio-serial-pci,bus=pcie.0,addr=0x7.0',
            '-device', 'virtserialport,chardev=ctl,name=org.pvrdma.ctl',
            '-chardev', 'socket,id=con,path=%s,server=on,wait=off,'
            'logfile=%s,logappend=on' % (self.console, self.console_log),
            '-serial', 'chardev:con',
            '-qmp', 'unix:%s,server=on,wait=off' % self._sock('qmp'),
        ] + self._devices() + self.extra_args

    def _sock(self, kind):
        return self.session.path('%s-%d.%s' % (self.name, self.generation,
                                               kind))

    def start(self):
        """Start QEMU; wait_boot() must follow.  Also after kill()."""
        self.restored = self.nameless = template.fits(self)
        if self.restored:
            template.start(self)
        else:
            self.launch()
            self.connect()
        return self

    def connect(self):
        """Connect to its agent, which may not run yet."""
        self.agent = Agent(self.name, self._sock('ctl'), lambda: self.alive,
                           self.patience)
        self.session.add_closer(self.agent_close)
        self.agent.connect(20)

    def launch(self, *args):
        """Start QEMU, with further arguments, and nothing more."""
        self.generation += 1
        if os.path.exists(self.console):
            os.unlink(self.console)
        for link in self.links.values():
            link.wait_ready(self)
        self.booted = time.monotonic()
        argv = self.command_line() + list(args)
        with open(self.session.path(self.name + '-qemu.conf'), 'a') as conf:
            conf.write(' '.join(argv) + '\n')
        self.proc = self.session.popen(argv, self.name + '-qemu.log')

    def agent_close(self):
        if self.agent:
            self.agent.close()

    def wait_boot(self, timeout=BOOT_TIMEOUT):
        """Wait until the agent answers; checks the init's complaints."""
        if self.nameless:
            template.begin(self)
            self.nameless = False
        else:
            self.agent.wait_hello(timeout)
        with open(self.console_log, errors='replace') as stream:
            bad = [line for line in stream if line.startswith('init: ')]
        if bad:
            raise VmError('%s: %s' % (self.name, ''.join(bad).strip()))
        return self

    # -- running ------------------------------------------------------------

    @property
    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def run(self, command, timeout=60, check=True):
        return self.agent.run(command, timeout, check)

    def spawn(self, command, timeout=60, stdin=False):
        return self.agent.spawn(command, timeout, stdin)

    def load_pvrdma(self):
        """Load the stock driver; raises with the kernel log if it fails."""
        self.run('modprobe rdma_ucm && modprobe vmw_pvrdma')
        done = self.run('for i in $(seq 100); do '
                        '[ -e /sys/class/infiniband/vmw_pvrdma0 ] && exit 0; '
                        'usleep 50000; done; dmesg | tail -n 20; exit 1',
                        check=False)
        if not done.ok:
            raise VmError('%s: vmw_pvrdma found no device:\n%s'
                          % (self.name, done.out))

    def load_rxe(self):
        """Set up soft-RoCE on the virtio interface as device rxe0."""
        self.run('modprobe crc32_generic && modprobe rdma_rxe && '
                 'modprobe rdma_ucm && '
                 'rdma link add rxe0 type rxe netdev vio0')

    def gid_index(self, device, address, timeout=10):
        """Index of the GID made of IPv4 @address, RoCE v2 preferred."""
        hexa = ''.join('%02x' % int(part) for part in address.split('.'))
        want = '0000:0000:0000:0000:0000:ffff:%s:%s' % (hexa[:4], hexa[4:])
        command = ('cd /sys/class/infiniband/%s/ports/1 && grep -l %s gids/* '
                   '| while read f; do i=${f#gids/}; '
                   'echo $i $(cat gid_attrs/types/$i); done'
                   % (device, want))
        end = time.monotonic() + timeout * self.patience
        while True:
            found = [line.split(None, 1)
                     for line in self.run(command, check=False).out.splitlines()]
            for index, kind in found:
                if 'v2' in kind:
                    return int(index)
            if found:
                return int(found[0][0])
            if time.monotonic() > end:
                gids = self.run('grep -v 0000:0000:0000:0000:0000:0000:0000:'
                                '0000 /sys/class/infiniband/%s/ports/1/gids/*'
                                % device, check=False)
                raise VmError('%s: %s has no GID for %s, only:\n%s'
                              % (self.name, device, address, gids.out))
            time.sleep(0.1)

    def wait_listen(self, port, job, timeout=30):
        """Wait until a program listens on TCP @port; @job must be alive."""
        command = ('for i in $(seq %d); do grep -q ":%04X 0*:0000 0A" '
                   '/proc/net/tcp /proc/net/tcp6 && exit 0; usleep 20000; '
                   'done; exit 1' % (timeout * 50, port))
        watch = self.spawn(command, timeout)
        with self.agent.cond:
            self.agent.cond.wait_for(lambda: watch.done or job.done,
                                     (timeout + 10) * self.patience)
        if job.done:
            watch.kill()
            raise CommandFailed(job)
        watch.wait(check=True)

    # -- ending -------------------------------------------------------------

    def qmp(self, command, **arguments):
        """Run one QMP command and return its result."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(20)
            self._connect_monitor(sock)
            stream = sock.makefile('rw')
            stream.readline()
            for name, args in (('qmp_capabilities', {}),
                               (command, arguments)):
                stream.write(json.dumps({'execute': name,
                                         'arguments': args}) + '\n')
                stream.flush()
                while True:
                    line = stream.readline()
                    if not line:
                        raise VmError('%s: QMP connection lost' % self.name)
                    answer = json.loads(line)
                    if 'error' in answer:
                        raise VmError('%s: QMP %s: %s' % (
                            self.name, name, answer['error']['desc']))
                    if 'return' in answer:
                        break
            return answer['return']

    def _connect_monitor(self, sock):
        """QEMU, just started, may not listen yet."""
        end = time.monotonic() + 20 * self.patience
        while True:
            try:
                return sock.connect(self._sock('qmp'))
            except (FileNotFoundError, ConnectionRefusedError):
                if not self.alive or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def wait_status(self, status, timeout=60):
        """Wait until QMP reports this run state."""
        end = time.monotonic() + timeout * self.patience
        while self.qmp('query-status')['status'] != status:
            if time.monotonic() > end:
                raise VmError('%s is not %s' % (self.name, status))
            time.sleep(0.1)

    def powerdown(self, timeout=40):
        """Let the guest power off and wait for QEMU's end.

        A debugging kernel must have found nothing, whatever the test is about.
        """
        if self.alive:
            if self.debug:
                bad = log_problems(self)
                if bad:
                    raise VmError('%s: %s' % (self.name, '\n'.join(bad)))
            try:
                self.spawn('sync; poweroff -f', 20)
            except AgentError:
                pass
            try:
                self.proc.wait(timeout * self.patience)
            except subprocess.TimeoutExpired:
                self.kill()
                raise VmError('%s did not power off within %d s'
                              % (self.name, timeout)) from None
        self.agent_close()

    def kill(self, sig=signal.SIGKILL):
        """End QEMU at once."""
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        self.proc.wait()
        self.agent_close()


def image(name, folder=None):
    path = os.path.join(folder or IMAGES, name)
    if not os.path.exists(path):
        raise VmError('no guest image %s: run images/build-image.sh' % path)
    return path


def kernel(folder=None):
    """As it is unpacked, if there is that: most of an emulated guest's boot would be to
    do so."""
    path = os.path.join(folder or IMAGES, 'vmlinux')
    return path if os.path.exists(path) else image('vmlinuz', folder)


def guest_programs():
    """The project's own programs for guests, put into each guest's PATH."""
    names = ['countcheck', 'datacheck', 'udcheck']
    return {'usr/local/bin/' + name: path for name, path in (
        (name, os.path.join(BUILD, 'tests', 'vm', name)) for name in names)
            if os.access(path, os.X_OK)}


def start_guests(session, daemon=None, count=2, virtio=True, kind=Guest,
                 **options):
    """Start guests vm1, vm2, ... on common links and wait for their agents.

    With a @daemon each gets a pvrdma device on the socket of its name.
    """
    links = {}
    if daemon:
        links['pvrdma'] = Link(session, 'vmx')
    if virtio:
        links['virtio'] = Link(session, 'vio')
    guests = []
    for number in range(1, count + 1):
        path = daemon.socket('vm%d' % number) if daemon else None
        guests.append(kind(session, number, links, path, **options).start())
    for guest in guests:
        guest.wait_boot()
        say('%s is up after %.1f s' % (guest.name,
                                       time.monotonic() - guest.booted))
    return guests


def end_well(guests, *daemons):
    """Power the guests off; the daemons must outlive them and end well."""
    for guest in guests:
        guest.powerdown()
    for daemon in daemons:
        daemon.check()
        status = daemon.stop()
        if status:
            raise VmError('pvrdmad ended with status %d' % status)
