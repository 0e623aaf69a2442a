# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that begin from a saved one's state are what they would be had they booted, and
what they begin from is of today (template.py)."""

import os
import shutil
import signal
import threading
import time
import unittest
from unittest import mock

from lib import fixture, parts, pvrdma_vm, template
from lib.pvrdma_vm import Daemon, Guest, Link, start_guests

# What a guest is, in lines that do not change while it runs.
WHAT = r'''
hostname; cat /etc/hosts /etc/guest.conf; nproc; ulimit -l; awk '/MemTotal/' /proc/meminfo
sed 's/tsc_early_khz=[0-9]*//' /proc/cmdline
ip -o addr | sed 's/^[0-9]*: //; s/ *valid_lft.*//' | sort
cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/net/ipv6/conf/*/accept_dad
for dir in /sys/bus/pci/devices/*; do
    echo $dir $(cat $dir/vendor $dir/device $dir/class $dir/enable) \
        $(readlink $dir/driver) $(awk '{print $3}' $dir/resource)
done
mount; awk '{print $1}' /proc/modules | sort
ls /dev /etc /opt/pvrdma /usr/local/bin | grep -v ^vport'''
# Seconds that a guest stands still while it begins, and that its clock may differ.
PAUSE = 6
NEAR = 3
# What the second of two guests has otherwise than the first.
OWN = (('vm1', 'vm2'), ('52:54:00:77:00:01', '52:54:00:77:00:02'),
       ('52:54:00:78:00:01', '52:54:00:78:00:02'), ('10.77.0.1', '10.77.0.2'),
       ('10.78.0.1', '10.78.0.2'), ('fe77:1', 'fe77:2'), ('fe78:1', 'fe78:2'))


class NameTest(unittest.TestCase):
    """What is in a template is in its name, and what is not is not."""

    def setUp(self):
        fixture.require_build()
        self.files = {'opt/a': b'a'}

    def guest(self, number=1, kind=Guest, **options):
        options.setdefault('files', self.files)
        return kind(template.Nowhere(), number, {}, **options)

    def name(self, *args, **options):
        return template.name_of(self.guest(*args, **options))

    def test_same(self):
        one = self.name()
        khz = pvrdma_vm.tsc_khz
        self.addCleanup(setattr, pvrdma_vm, 'tsc_khz', khz)
        pvrdma_vm.tsc_khz = lambda: khz() + 1
        self.assertEqual(self.name(), one)
        self.assertEqual(self.name(2, name='other', socket='/tmp/b.sock',
                                   device_options=',vectors=4',
                                   extra_args=['-device', 'virtio-rng-pci']), one)

    def test_other(self):
        names = [self.name(), self.name(cpus=2), self.name(memory=512),
                 self.name(files={'opt/a': b'b'}), self.name(files={'opt/b': b'a'})]
        self.assertEqual(len(set(names)), len(names))

    def test_other_parts(self):
        """A file of the host, the image and QEMU: as soon as they are written again."""
        folder = pvrdma_vm.tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, 'file')
        for body in (b'1', b'2'):
            with open(path, 'wb') as stream:
                stream.write(body)
            os.utime(path, (1, 1))
            self.files['opt/host-%s' % body.decode()] = path
        one = self.name()
        self.assertEqual(self.name(), one)
        with open(path, 'wb') as stream:
            stream.write(b'3')
        os.utime(path, (1, 1))
        self.assertNotEqual(self.name(), one)
        images = pvrdma_vm.IMAGES
        self.addCleanup(setattr, pvrdma_vm, 'IMAGES', images)
        pvrdma_vm.IMAGES = folder
        for name in ('vmlinux', 'initramfs'):
            os.link(path, os.path.join(folder, name))
        other = self.name()
        os.utime(path, (2, 2))
        self.assertNotEqual(self.name(), other)

    def test_who_boots(self):
        class Args(Guest):
            def kernel_line(self):
                return super().kernel_line() + ' single'

        class Program(Guest):
            def program(self):
                return ['/bin/true']

        class Devices(Guest):
            def _devices(self):
                return super()._devices() + ['-device', 'intel-iommu']

        fits = not (pvrdma_vm.kvm() or pvrdma_vm.debug_kernel() or
                    os.environ.get('PVRDMA_BOOT'))
        self.assertEqual(template.fits(self.guest()), fits)
        for guest in (self.guest(boot=True), self.guest(shell=True), self.guest(kind=Args),
                      self.guest(kind=Program), self.guest(kind=Devices)):
            self.assertFalse(template.fits(guest))
        for args in (['-device', 'virtio-rng-pci,bus=pcie.0'], ['-trace', 'pvrdma_*'],
                     ['-drive', 'file=/dev/null,if=none,id=a', '-device',
                      'virtio-blk-pci,drive=a']):
            self.assertEqual(template.fits(self.guest(extra_args=args)), fits)
        for args in (['-m', '1G'], ['-drive', 'file=/dev/null'],
                     ['-device', '{"driver":"virtio-rng-pci"}'],
                     *(['-device', name + ',id=a'] for name in (
                         'intel-iommu', 'pc-dimm', 'nvdimm', 'qemu64-x86_64-cpu',
                         'pcie-root-port'))):
            self.assertFalse(template.fits(self.guest(extra_args=args)), args)


class FolderTest(fixture.PrivateTest):
    """A test that may keep templates in a folder of its own."""

    def own_folder(self):
        folder = os.path.join(pvrdma_vm.BUILD, 'templates-test-%d' % os.getpid())
        patch = mock.patch.dict(os.environ, PVRDMA_TEMPLATES=folder)
        patch.start()
        self.addCleanup(patch.stop)
        os.makedirs(folder)
        self.addCleanup(shutil.rmtree, folder)


class MakeTest(FolderTest):
    """How one is made and kept, with guests that do not run."""

    def setUp(self):
        super().setUp()
        self.own_folder()
        self.file = self.session.path('file')
        self.write('before')
        self.guest = Guest(self.session, 1, {}, files={'opt/file': self.file})
        for name in ('start', 'wait_boot', 'kill'):
            patch = mock.patch.object(Guest, name, lambda guest: guest)
            patch.start()
            self.addCleanup(patch.stop)

    def write(self, text):
        with open(self.file, 'w') as stream:
            stream.write(text)

    def names(self):
        return sorted(os.listdir(template.folder()))

    def test_changed(self):
        """What changes while it is made is not in it under the name of before."""
        saved = []

        def save(_guest, path):
            with open(path, 'w') as stream:
                stream.write('state')
            saved.append(path)
            if len(saved) == 1:
                self.write('after')
        with mock.patch.object(template, 'save', save), template.ready(self.guest) as own:
            self.assertEqual(own.name, template.path_of(self.guest))
        self.assertEqual(saved[1], own.name + '.new')
        self.assertNotEqual(saved[0], saved[1])
        self.assertEqual(self.names(), sorted([os.path.basename(own.name), template.LOCK]))

    def test_always_changes(self):
        saved = []

        def save(_guest, path):
            open(path, 'w').close()
            saved.append(path)
            self.write('%d' % len(saved))
        with mock.patch.object(template, 'save', save), \
                self.assertRaisesRegex(pvrdma_vm.VmError, 'changes all the time'):
            template.ready(self.guest)
        self.assertEqual(self.names(), [template.LOCK])

    def test_not_saved(self):
        """Whatever goes wrong is told at once, and nothing is left."""
        for state, timeout in (('failed', 60), ('cancelled', 60), ('active', 0)):
            def qmp(_guest, command, state=state, **arguments):
                if command == 'migrate':
                    open(arguments['uri'][len('file:'):], 'w').close()
                return {'status': state}
            with self.subTest(state), mock.patch.object(Guest, 'qmp', qmp), \
                    mock.patch.object(template, 'TIMEOUT', timeout), \
                    self.assertRaisesRegex(pvrdma_vm.VmError, 'not saved.*' + state):
                template.ready(self.guest)
            self.assertEqual(self.names(), [template.LOCK])
        with mock.patch.object(Guest, 'qmp', side_effect=ConnectionRefusedError), \
                self.assertRaises(pvrdma_vm.VmError):
            template.ready(self.guest)

    def test_room(self):
        """What was used last stays."""
        for age, name in enumerate(('new', 'middle', 'old', 'half.new')):
            path = os.path.join(template.folder(), name)
            with open(path, 'wb') as stream:
                stream.write(bytes(1 << 20))
            os.utime(path, (1000 - age, 1000 - age))
        # It has no size: as a file that another has removed since.
        os.symlink('nowhere', os.path.join(template.folder(), 'gone'))
        with mock.patch.object(template, 'LIMIT', 5 << 19), template.alone():
            template.tidy()
        self.assertEqual(self.names(), ['gone', template.LOCK, 'middle', 'new'])


class TemplateTest(FolderTest):
    """Guests that begin from one."""

    def setUp(self):
        super().setUp()
        if not template.fits(Guest(template.Nowhere(), 1, {})):
            self.skipTest('all guests boot')

    def end(self, guests, daemon):
        for guest in guests:
            guest.powerdown()
        self.assertEqual(daemon.stop(), 0)

    def test_as_booted(self):
        """Two guests of one template are as booted ones, each with what is its own."""
        what = []
        for boot in (False, True):
            daemon = Daemon(self.session, ['vm1', 'vm2'])
            guests = start_guests(self.session, daemon, 1 if boot else 2, boot=boot,
                                  files=parts.guest_files())
            for guest in guests:
                self.assertEqual(guest.restored, not boot)
                what.append(guest.run(WHAT).out.splitlines())
                self.assertAlmostEqual(int(guest.run('date +%s').out), time.time(), delta=30)
            random = [guest.run('cat /proc/sys/kernel/random/boot_id; '
                                'head -c 16 /dev/urandom | hexdump').out.split()
                      for guest in guests]
            self.assertNotEqual(random[0][0], random[-1][0] * (not boot))
            self.assertNotEqual(random[0][1:], random[-1][1:] * (not boot))
            self.end(guests, daemon)
        one, two, booted = what
        self.maxDiff = None
        self.assertEqual(one, booted)
        for mine, others in OWN:
            one = [line.replace(mine, others) for line in one]
        self.assertEqual(one, two)

    def test_at_once(self):
        """They draw other random numbers from the beginning, and their clock is right,
        although it takes them long to begin."""
        daemon = Daemon(self.session, ['vm1', 'vm2'])
        links = {'pvrdma': Link(self.session, 'vmx')}
        guests = [Guest(self.session, number, links, daemon.socket('vm%d' % number),
                        files=parts.guest_files()).start() for number in (1, 2)]
        for guest in guests:
            guest.qmp('stop')
            timer = threading.Timer(PAUSE, guest.qmp, ['cont'])
            timer.start()
            self.addCleanup(timer.join)
        drawn = []
        for guest in guests:
            drawn.append(guest.wait_boot().run(
                'head -c 16 /dev/urandom | hexdump | head -n 1; '
                'cat /proc/sys/kernel/random/boot_id').out)
            before = time.time()
            clock = int(guest.run('date +%s').out)
            self.assertGreater(clock + 1, before - NEAR)
            self.assertLess(clock, time.time() + NEAR)
        for one, two in zip(*map(str.splitlines, drawn)):
            self.assertNotEqual(one, two)
        self.end(guests, daemon)

    def test_broken(self):
        """A template that cannot be loaded is made anew; one that another process removes is
        loaded."""
        self.own_folder()
        daemon = Daemon(self.session, ['vm1'])
        guest = Guest(self.session, 1, {'pvrdma': Link(self.session, 'vmx')},
                      daemon.socket('vm1'))
        with template.ready(guest) as own:
            path = own.name
        os.truncate(path, os.stat(path).st_size // 2)
        broken = os.stat(path).st_mtime_ns
        guest.start().wait_boot().powerdown()
        self.assertTrue(guest.restored)
        whole = os.stat(path)
        self.assertNotEqual(whole.st_mtime_ns, broken)
        guest.start().wait_boot().powerdown()
        self.assertEqual(os.stat(path).st_ino, whole.st_ino)
        ready = template.ready

        def removed(guest):
            own = ready(guest)
            os.unlink(path)
            return own
        with mock.patch.object(template, 'ready', removed):
            guest.start().wait_boot()
        self.assertFalse(os.path.exists(path))
        self.end([guest], daemon)

    def start(self, *ways):
        """Start a guest whose template, an empty file, is loaded in these ways one after the
        other: how often it was, whether the first file is still there, and what is said."""
        path = self.session.path('template')
        guest = Guest(self.session, 1, {})
        left = list(ways)
        error = None
        with open(path, 'wb') as first, \
                mock.patch.object(template, 'ready', lambda _guest: open(path, 'ab+')), \
                mock.patch.object(template, 'load', lambda *args: left.pop(0)(*args)), \
                mock.patch.object(template, 'ENDING', 1):
            try:
                guest.start()
            except (pvrdma_vm.VmError, OSError) as exc:
                error = str(exc)
            guest.kill()
            return len(ways) - len(left), template.is_there(first), error

    def test_whose_fault(self):
        """Only of a template that cannot be loaded a test hears nothing, and once."""
        def crashes(guest, _own):
            guest.kill(signal.SIGSEGV)
            raise pvrdma_vm.VmError('it has crashed')

        def crashes_later(guest, own):
            try:
                load(guest, own)
            finally:
                guest.proc.wait()
                guest.proc.returncode = -signal.SIGSEGV

        def ends(guest, _own):
            guest.qmp('quit')
            raise pvrdma_vm.VmError('it has ended')

        def hangs(_guest, _own):
            raise pvrdma_vm.VmError('it hangs')

        def loads(_guest, _own):
            pass
        load = template.load
        for way, text in ((crashes, 'it has crashed'), (ends, 'it has ended'),
                          (hangs, 'it hangs')):
            self.assertEqual(self.start(way, loads), (1, True, text))
        self.assertEqual(self.start(crashes_later, loads)[:2], (1, True))
        self.assertEqual(self.start(load, loads), (2, False, None))
        self.assertEqual(self.start(load, hangs), (2, False, 'it hangs'))
        self.assertIsNotNone(self.start(load, load)[2])
