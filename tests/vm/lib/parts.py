# SPDX-License-Identifier: GPL-2.0-or-later
"""Which driver and provider a guest uses: the project's own or the stock ones.

Both are in every guest that was started with guest_files().  Our provider takes
the place of the distribution's library by a bind mount, so programs need no
change; the test suites, which mix providers, do that per program instead (see
test_provider.py).
"""

import os

from lib.pvrdma_vm import BUILD, VmError

MODULE = '/opt/pvrdma/pvrdma.ko'
KLOOP = '/opt/pvrdma/pvrdma_kloop.ko'
LIBRARY = '/opt/pvrdma/provider.so'
# The guest image's private ABI of libibverbs.
ABI = 34
STOCK_LIBRARY = ('/usr/lib/x86_64-linux-gnu/libibverbs/'
                 'libvmw_pvrdma-rdmav%d.so' % ABI)
OWN_DEVICE = 'pvrdma0'
STOCK_DEVICE = 'vmw_pvrdma0'
# Pages that a kernel user can register at once.
FAST_REG_PAGES = {OWN_DEVICE: 512, STOCK_DEVICE: 128}


def built_module():
    """Path of our driver on the host, or None."""
    path = os.path.join(BUILD, 'guest', 'pvrdma.ko')
    return path if os.path.exists(path) else None


def built_library(abi=ABI, build=BUILD):
    """Path of our provider for a private ABI of libibverbs on the host, or
    None."""
    path = os.path.join(build, 'guest', 'libvmw_pvrdma-rdmav%d.so' % abi)
    return path if os.path.exists(path) else None


def guest_files():
    """Our parts, as Guest's @files."""
    module, library = built_module(), built_library()
    if not module or not library:
        raise VmError('our driver or provider is not built: run "make guest"')
    return {MODULE: module, LIBRARY: library}


def load_own_driver(guest):
    """Load pvrdma.ko and wait for an active port."""
    guest.run('modprobe rdma_ucm && insmod ' + MODULE)
    wait_port(guest, 'ACTIVE')


def wait_port(guest, state, seconds=20, device=OWN_DEVICE):
    wait_in_guest(guest, 'grep -q %s /sys/class/infiniband/%s/ports/1/state '
                  '2>/dev/null' % (state, device), 'port state ' + state,
                  seconds)


def wait_in_guest(guest, condition, what, seconds=20):
    """Wait until the shell @condition holds in @guest."""
    done = guest.run('for i in $(seq %d); do %s && exit 0; usleep 100000; '
                     'done; dmesg | tail -n 20; exit 1'
                     % (seconds * 10 * guest.patience, condition),
                     seconds * 3 + 20,
                     check=False)
    if not done.ok:
        raise VmError('%s: not within %d s: %s\n%s' % (guest.name, seconds,
                                                      what, done.out))


def put_in_guest(guest, path, data):
    """A file in @guest, of these bytes."""
    job = guest.spawn('cat > ' + path, stdin=True)
    job.stdin(data)
    job.stdin(b'')
    job.wait(check=True)


def use_own(guest):
    """Change from the stock parts, if these are in use, to ours."""
    guest.run('[ ! -e /sys/module/vmw_pvrdma ] || rmmod vmw_pvrdma')
    guest.run('mount --bind %s %s' % (LIBRARY, STOCK_LIBRARY))
    load_own_driver(guest)


def use_stock(guest):
    """Change from our parts to the stock ones."""
    guest.run('rmmod pvrdma && umount ' + STOCK_LIBRARY)
    guest.load_pvrdma()


def kloop_lines(guest):
    return guest.run('dmesg | grep pvrdma_kloop:').out


def check_kernel_verbs(guest, threads=1, device=OWN_DEVICE):
    """Kernel users: pvrdma_kloop.ko runs its test when it is loaded, with queue pairs'
    own receive queues and, where the driver has them, with shared ones and with
    unreliable connections."""
    kinds = ('', 'srq=1', 'uc=1') if device == OWN_DEVICE else ('',)
    for kind in kinds:
        guest.run('insmod %s threads=%d %s && rmmod pvrdma_kloop'
                  % (KLOOP, threads, kind), 240)
    out = kloop_lines(guest)
    for result, times in (('1600 messages, 0 errors', len(kinds)),
                          ('keys of %d pages: 0' % FAST_REG_PAGES[device], 1)):
        if out.count(' %s: %s\n' % (device, result)) != 2 * threads * times:
            raise VmError('%s: %s' % (guest.name, out))
