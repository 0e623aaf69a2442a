# SPDX-License-Identifier: GPL-2.0-or-later
"""A Debian on a disk for guests, which debian-root.sh made.

The guest boots the guest image as ever and mounts the disk at /debian; `deb COMMAND`
runs a program in it.  Each guest has its own throw-away changes (snapshot=on), so that
all of them share one image.
"""

import os
import shutil
import subprocess
import unittest

from lib.pvrdma_vm import BUILD, REPO, VmError

DEBIAN = os.path.join(BUILD, 'debian')
# Of the disk's own kernel; an image with another one has them (build-env.sh).
MODULES = ('crc16', 'mbcache', 'jbd2', 'ext4')
# Run a command in the Debian of the disk.  By a path, else busybox's chroot would
# run its own applet of that name.
IN_DEBIAN = b'''#!/bin/sh
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
exec chroot /debian /usr/bin/env "$@"
'''
MOUNT = '''set -e
modprobe virtio_blk; modprobe crc32c_generic || :
modprobe ext4 2>/dev/null || for m in %s; do insmod /opt/modules/$m.ko; done
mkdir -p /debian
for i in $(seq 100); do [ -b /dev/vda ] && break; usleep 50000; done
mount -t ext4 -o noatime /dev/vda /debian
for d in dev dev/pts dev/shm proc sys tmp; do mount --bind /$d /debian/$d; done
ln -s /proc/self/fd /dev/fd
''' % ' '.join(MODULES)


def make(what, release=None):
    """The image of debian-root.sh, 'packages' or 'suites', made if that can be done
    here; of another @release of Debian the 'suites' only."""
    if os.getuid() or not shutil.which('debootstrap') or \
            not shutil.which('mke2fs'):
        raise unittest.SkipTest('debian-root.sh needs root, debootstrap and '
                                'e2fsprogs')
    done = subprocess.run([os.path.join(REPO, 'tests', 'vm',
                                        'debian-root.sh'), BUILD, what] +
                          [release] * bool(release),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, timeout=1500, check=False)
    if done.returncode:
        raise VmError('debian-root.sh failed:\n%s' % done.stdout)
    name = {'packages': 'root', 'suites': 'suites'}[what]
    return os.path.join(DEBIAN, name + ('-' + release if release else '') + '.img')


def files(release=None):
    """What a guest needs to mount it, as Guest's @files."""
    names = {'usr/local/bin/deb': IN_DEBIAN}
    for name in () if release else MODULES:
        names['opt/modules/%s.ko' % name] = os.path.join(DEBIAN, 'modules',
                                                         name + '.ko')
    return names


def drive(disk):
    """Guest's @extra_args for the image @disk."""
    return ['-drive', 'file=%s,if=none,id=disk,format=raw,snapshot=on' % disk,
            '-device', 'virtio-blk-pci,drive=disk,bus=pcie.0,addr=0x8.0']
