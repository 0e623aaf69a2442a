# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that go on from a saved state instead of booting.

Theory of operation
-------------------
Booting a guest takes seconds of emulation, and is the same for all guests that have the
same kernel, processors, memory and files.  So one such guest, the template, is booted, and
saved to a file when its agent runs; each guest of that shape begins by loading the file.

The template has no adapter, no network interface and no disk, and no name of its own.
Whoever loads its state has them, in QEMU as new as after a boot: what a stream does not
have, QEMU leaves as a reset left it, and the daemon hears of no state of a device.  In the
guest they are found by a scan of the PCI bus, and then init is run once more, for the
guest's own /etc/guest.conf: name, modules, interfaces and addresses.  So nothing that tells
guests apart is in the file, and any number of guests, on any links, daemons and hosts,
begins from the same one.  Of their PCI devices the kernel and not the firmware has placed
the BARs; that is what differs from a boot, besides the order of the kernel's log.

QEMU is told not to announce the guest's interfaces to the network, as it does for one that
has migrated: nobody may listen there yet (QEMU 10.0 crashes then).  First of all the random
number generator is reseeded from bytes of the host's, or all would draw the same numbers,
and the clock is set (guest-agent begin).

The name of a template is a hash of all that is in it: what QEMU is started with, QEMU
itself, the image, the guest's files, and this file.  The speed of the processor's counter,
which the kernel is told, is measured each time and a bit different: instead of it the name
covers the host's boot.

Templates are in BUILD/templates (PVRDMA_TEMPLATES).  One process at a time makes one, and
others wait for it; it gets its name when it is complete.  What has not been used for the
longest time goes when all of them take more than LIMIT.  One that QEMU says it cannot load is
made anew, once, and the logs are kept; all else that goes wrong at the start of a guest,
such as a crash of QEMU, is an error of the test.

What has to boot: a guest with boot=True; one whose class starts QEMU, or the kernel, in a
way of its own, or that has more than disks and the devices of ON_PCI; one with a shell on its
console; all under KVM or a debugging kernel, and all if PVRDMA_BOOT is set.  A guest that
resets boots as well, for QEMU has its kernel and initrd.
"""

import contextlib
import copy
import fcntl
import hashlib
import json
import os
import struct
import subprocess
import time

from lib import pvrdma_vm
from lib.agent import AgentError

LIMIT = 4 << 30
LOCK = 'lock'
# Seconds until one is saved, and until a QEMU that cannot load one has ended.
TIMEOUT = 60
ENDING = 5
# How often one is made because what is in it has changed.
ATTEMPTS = 5
# Arguments of QEMU that only add to a machine.
ADDING = {'-device', '-drive', '-blockdev', '-netdev', '-object', '-trace', '--trace'}
# Devices that are found by a scan of the PCI bus; what is plugged elsewhere is not.
ON_PCI = {'pvrdma', 'vmxnet3', 'virtio-net-pci', 'virtio-blk-pci', 'virtio-rng-pci'}
# What QEMU says of a state that it cannot load.
REFUSED = b'load of migration failed'

BEGIN = '''guest-agent begin && echo 1 > /sys/bus/pci/rescan &&
printf '%%s' '%s' > /etc/guest.conf && /init 2>&1'''
# Random bytes that `guest-agent begin` takes, and what it says then.
SEED = 64
READY = 'ready\n'


def folder():
    return os.path.abspath(os.environ.get('PVRDMA_TEMPLATES') or
                           os.path.join(pvrdma_vm.BUILD, 'templates'))


class Nowhere:
    """The session of a guest that is not started."""

    @staticmethod
    def path(name):
        return name


def template_of(guest, session=Nowhere()):
    """The guest that @guest could begin as; not started."""
    base = pvrdma_vm.Guest(session, 0, {}, name='template', cpus=guest.cpus,
                           files=guest.files, boot=True)
    base.memory = guest.memory
    return base


def machine(guest):
    """QEMU's command line of a guest, in so far as a template has it."""
    plain = copy.copy(guest)
    plain.session, plain.name, plain.generation = Nowhere(), 'template', 0
    plain.console, plain.console_log = 'console', 'log'
    plain.extra_args = []
    # Not in what a class may have to say of it: they stand in for its methods.
    plain._devices = list
    plain._write_initrd = lambda: 'initrd'
    argv = plain.command_line()
    qemu = pvrdma_vm.qemu_binary()
    return argv[argv.index(qemu):] if qemu in argv else argv


def only_adds(args):
    """Whether these arguments only add to a machine what a running guest finds there."""
    for option, value in zip(args, args[1:] + ['']):
        device = value.split(',')[0]
        if option.startswith('-') and option not in ADDING or \
                option == '-device' and device not in ON_PCI or \
                option == '-drive' and 'if=none' not in value.split(','):
            return False
    return True


def fits(guest):
    """Whether @guest can begin from a template."""
    return not (guest.boot or guest.shell or guest.debug or pvrdma_vm.kvm() or
                os.environ.get('PVRDMA_BOOT')) and \
        only_adds(guest._devices() + guest.extra_args) and \
        machine(guest) == machine(template_of(guest))


def identity(path):
    stat = os.stat(path)
    return [os.path.realpath(path), stat.st_size, stat.st_mtime_ns]


def name_of(guest):
    """The name of its template."""
    base = template_of(guest)
    argv = machine(base)
    with open('/proc/sys/kernel/random/boot_id') as stream:
        boot = stream.read()
    line = argv.index('-append') + 1
    argv[line] = [word for word in argv[line].split() if not word.startswith('tsc_early_khz=')]
    # Besides programs and images, the folders of the firmware.
    things = [argv[0], pvrdma_vm.kernel(), pvrdma_vm.image('initramfs'), __file__] + \
        [path for option, path in zip(argv, argv[1:]) if option == '-L']
    state = hashlib.sha256(json.dumps([boot, argv, list(map(identity, things))]).encode())
    state.update(base.archive())
    return state.hexdigest()[:24]


def path_of(guest):
    """Where its template is, or will be."""
    return os.path.join(folder(), name_of(guest))


def mapped(guest, state):
    """Whether a page has a place of its own in the file: loading is half the work then."""
    guest.qmp('migrate-set-capabilities', capabilities=[
        {'capability': 'mapped-ram', 'state': state}])


def size_of(path):
    """The space that it takes: there are holes in it."""
    return os.stat(path).st_blocks * 512


def save(guest, path):
    """Its state into a file."""
    mapped(guest, True)
    guest.qmp('migrate', uri='file:' + path)
    end = time.monotonic() + TIMEOUT * guest.patience
    while True:
        info = guest.qmp('query-migrate')
        if info.get('status') == 'completed':
            return
        if info.get('status') in ('failed', 'cancelled') or time.monotonic() > end:
            raise pvrdma_vm.VmError('it is not saved: %s' % info)
        time.sleep(0.02)


def make(guest, path):
    """Boot a guest and save it to @path, if that is still its name then."""
    new = path + '.new'
    try:
        with pvrdma_vm.Session('template') as session:
            base = template_of(guest, session).start().wait_boot()
            save(base, new)
            base.kill()
        if path_of(guest) == path:
            os.rename(new, path)
            pvrdma_vm.say('template %s: booted for %d processors, %d MiB; saved %d MB' % (
                os.path.basename(path), base.cpus, base.memory, size_of(path) // 10**6))
    except (pvrdma_vm.VmError, AgentError, OSError) as exc:
        raise pvrdma_vm.VmError('no template %s: %s' % (os.path.basename(path), exc)) from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def tidy():
    """Remove what was not used for the longest time, and what was not completed."""
    files = []
    for entry in os.scandir(folder()):
        # Whoever empties the folder does not ask.
        with contextlib.suppress(FileNotFoundError):
            if entry.name.endswith('.new'):
                os.unlink(entry.path)
            elif entry.name != LOCK:
                files.append((entry.stat().st_mtime, size_of(entry.path), entry.path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > LIMIT:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


@contextlib.contextmanager
def alone():
    """One process at a time."""
    os.makedirs(folder(), exist_ok=True)
    with open(os.path.join(folder(), LOCK), 'w') as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ready(guest):
    """The guest's template, as a file that is open; it is made if there is none.

    What it is made of may be written anew meanwhile: then so is the template.
    """
    for _ in range(ATTEMPTS):
        path = path_of(guest)
        with contextlib.suppress(FileNotFoundError):
            own = open(path, 'rb')
            os.utime(own.fileno())
            return own
        with alone():
            if not os.path.exists(path) and path_of(guest) == path:
                tidy()
                make(guest, path)
    raise pvrdma_vm.VmError('%s: what is in its template changes all the time' % guest.name)


def load(guest, own):
    """Have a QEMU that waits for it go on from the template @own, even if it has lost its
    name."""
    guest.qmp('migrate-set-parameters', **{'announce-rounds': 0})
    mapped(guest, True)
    guest.qmp('migrate-incoming', uri='file:/proc/%d/fd/%d' % (os.getpid(), own.fileno()))
    guest.wait_status('running')
    mapped(guest, False)  # else it could not migrate
    guest.agent.is_up()


def is_there(own):
    """Whether the file @own, which is open, still has its name."""
    try:
        return os.path.samestat(os.fstat(own.fileno()), os.stat(own.name))
    except FileNotFoundError:
        return False


def refusals(guest):
    """How often a QEMU of the guest has said that it cannot load a state."""
    with contextlib.suppress(FileNotFoundError):
        with open(guest.session.path(guest.name + '-qemu.log'), 'rb') as stream:
            return stream.read().count(REFUSED)
    return 0


def is_to_blame(guest, before):
    """Whether it is the template's fault that the guest does not go on, and not one of
    QEMU, the guest or the adapter: QEMU has ended by itself and says so, one time more than
    @before."""
    try:
        return guest.proc.wait(ENDING * guest.patience) == 1 and refusals(guest) > before
    except subprocess.TimeoutExpired:
        return False


def start(guest):
    """Instead of a boot; begin() must follow."""
    for attempt in (1, 2):
        with ready(guest) as own:
            before = refusals(guest)
            guest.launch('-incoming', 'defer')
            guest.connect()
            try:
                return load(guest, own)
            except (pvrdma_vm.VmError, AgentError, OSError) as exc:
                if attempt == 2 or not is_to_blame(guest, before):
                    raise
                pvrdma_vm.say('%s: template %s cannot be loaded, another is made: %s' % (
                    guest.name, os.path.basename(own.name), exc))
                guest.session.keep_logs(exc)
            guest.kill()
            with alone():
                if is_there(own):
                    os.unlink(own.name)
    return None


def begin(guest):
    """Make it the guest that it is."""
    job = guest.spawn(BEGIN % guest.config(), stdin=True)
    job.stdin(os.urandom(SEED))
    job.wait_output(READY, 60)
    job.stdin(struct.pack('=q', time.time_ns()))
    job.stdin(b'')
    job.wait()
    if job.out != READY or not job.ok:
        raise pvrdma_vm.VmError(job.describe())
