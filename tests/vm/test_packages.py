# SPDX-License-Identifier: GPL-2.0-or-later
"""Our Debian packages in a Debian guest: used, and removed again; and the provider's
package in other releases of Debian.

debian-root.sh made the disk, with both packages installed in it by dpkg.  Two
guests mount it (each with its own throw-away changes) and work in it by chroot:
the kernel is Debian's, the module is what DKMS built, the programs are Debian's.
"""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from lib import debiandisk, fixture, parts
from lib.programs import Pair
from lib.pvrdma_vm import BUILD, REPO, Daemon, VmError, built_program, \
    start_guests
from test_provider import other_suites

PROVIDER = parts.STOCK_LIBRARY
# What udev does when it finds the device: by its identity, minding blacklists and
# install rules.
COLDPLUG = ('deb modprobe -a rdma_ucm && deb modprobe -ab '
            '$(cat /sys/bus/pci/devices/0000:00:05.1/modalias)')


def make_disk():
    """The disk with our packages."""
    if not glob.glob(os.path.join(BUILD, 'deb', '*.deb')):
        raise VmError('no packages: run "make deb"')
    return debiandisk.make('packages')


class DkmsTest(unittest.TestCase):
    def test_kernels(self):
        """Which kernels DKMS builds the driver for."""
        for release, wanted in (
                ('5.10.0-30-amd64', False), ('6.0.12', False),
                ('6.1.0-56-amd64', True), ('6.12.3', True),
                ('6.10-rc1', True), ('6.18+deb14-amd64', True), ('7.2+deb14-amd64', True),
                ('7.3.4+deb13-amd64', True), ('7.4-rc1', False), ('7.30.1', False),
                ('8.1.0', False), ('10.0.1', False)):
            done = subprocess.run(
                ['bash', '-c', '. "$0"; [[ $1 =~ $BUILD_EXCLUSIVE_KERNEL ]]',
                 os.path.join(REPO, 'packaging', 'dkms.conf'), release],
                check=False)
            self.assertEqual(done.returncode == 0, wanted, release)


class AdaptersTest(unittest.TestCase):
    """Which driver an adapter gets: VMware's own is not our driver's."""

    OURS = 'pci:v000015ADd00000820sv00001AF4sd00001100bc02sc80i00'
    VMWARE = 'pci:v000015ADd00000820sv000015ADsd00000820bc02sc80i00'
    OTHER = 'pci:v000015ADd000007B0sv000015ADsd000007B0bc02sc00i00'

    def test_module(self):
        """The devices that the module says it drives."""
        said = subprocess.run(['modinfo', '-F', 'alias', parts.built_module()],
                              stdout=subprocess.PIPE, universal_newlines=True, check=True)
        self.assertEqual(said.stdout.split(),
                         [self.OURS[:self.OURS.index('bc')] + 'bc*sc*i*'])

    def loads(self, devices, good=True):
        """What modprobe is called for in place of vmw_pvrdma; @good: ours can be loaded."""
        with open(os.path.join(REPO, 'packaging', 'modprobe.conf')) as stream:
            line, = re.findall(r'^install vmw_pvrdma (.*)', stream.read(), re.M)
        with tempfile.TemporaryDirectory(prefix='pvrdma-modprobe-') as folder:
            for i, device in enumerate(devices):
                os.mkdir(os.path.join(folder, str(i)))
                with open(os.path.join(folder, str(i), 'modalias'), 'w') as stream:
                    stream.write(device + '\n')
            line = line.replace('/sys/bus/pci/devices', folder)
            line = line.replace('/sbin/modprobe', 'load')
            return subprocess.run(
                ['sh', '-c', 'load() { echo "$@"; [ "$*" != "-q pvrdma" ] || %s; }; %s'
                 % ('true' if good else 'false', line)], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, universal_newlines=True, check=True,
                env={'PATH': os.environ['PATH'], 'CMDLINE_OPTS': 'a=b'}).stdout.splitlines()

    def test_in_tree_driver(self):
        own, in_tree = '-q pvrdma', '--ignore-install vmw_pvrdma a=b'
        for devices in ((self.OTHER, self.OURS), (self.OURS, self.OURS), (self.OTHER,), ()):
            self.assertEqual(self.loads(devices), [own])
            self.assertEqual(self.loads(devices, good=False), [own, in_tree])
        for devices in ((self.VMWARE,), (self.OTHER, self.OURS, self.VMWARE)):
            self.assertEqual(self.loads(devices), [in_tree])


class FailingBuildTest(unittest.TestCase):
    """A module that cannot be built fails neither apt nor the installation of a kernel.

    In the Debian of debian-root.sh, over which a file system is laid that is thrown away."""

    time_limit = 1800  # it may have to fetch and unpack what it runs

    SCRIPT = r'''
        set -u
        mount -t overlay overlay "$1/root" -o lowerdir="$2",upperdir="$1/up",workdir="$1/work"
        mount -t proc proc "$1/root/proc"
        cp "$3" "$1/root/tmp/our.deb"
        exec chroot "$1/root" sh -c '
            kernel=$(ls /lib/modules)
            # It is in the half of the headers that is not built for one processor.
            rm $(find /usr/src -path "*/include/rdma/ib_umem.h")
            dpkg -i /tmp/our.deb; echo "dpkg: $?"
            dpkg-query -W -f "status: \${db:Status-Abbrev}\n" pvrdma-dkms
            dkms status pvrdma
            for hooks in postinst.d header_postinst.d; do
                run-parts --exit-on-error --arg="$kernel" --arg="/boot/vmlinuz-$kernel" \
                    "/etc/kernel/$hooks"
                echo "$hooks: $?"
            done
            # One that dkms.conf excludes, and one of which there is nothing: not a word.
            mkdir -p /lib/modules/5.10.0-1-amd64/build/include
            for other in 5.10.0-1-amd64 6.9.9-amd64; do
                for hooks in postinst.d header_postinst.d; do
                    for hook in /etc/kernel/$hooks/*pvrdma*; do
                        echo "silent: $("$hook" "$other" "/boot/vmlinuz-$other" 2>&1) $?"
                    done
                done
            done
            rm -r /lib/modules/5.10.0-1-amd64
            mv /lib/modules /lib/none
            dpkg -i /tmp/our.deb; echo "no kernel: $?"
            mv /lib/none /lib/modules
            dpkg -r pvrdma-dkms; echo "removal: $?"
            find /etc/kernel /lib/modules /usr/src /var/lib/dkms -name "*pvrdma*" \
                ! -name "vmw_pvrdma*" | sed "s/^/left: /"
        '
    '''

    def test_failing_build(self):
        make_disk()
        deb, = glob.glob(os.path.join(BUILD, 'deb', 'pvrdma-dkms_*.deb'))
        with tempfile.TemporaryDirectory(prefix='pvrdma-dkms-') as folder:
            for name in ('root', 'up', 'work'):
                os.mkdir(os.path.join(folder, name))
            said = subprocess.run(
                ['unshare', '-m', '--', 'sh', '-c', self.SCRIPT, 'sh', folder,
                 os.path.join(debiandisk.DEBIAN, 'base'), deb],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C',
                     'DEBIAN_FRONTEND': 'noninteractive'}, timeout=600, check=False).stdout
        lines = said.splitlines()
        for line in ('dpkg: 0', 'status: ii ', 'postinst.d: 0', 'header_postinst.d: 0',
                     'no kernel: 0', 'removal: 0'):
            self.assertIn(line, lines, said)
        self.assertEqual([line for line in lines if line.startswith('silent: ')],
                         4 * ['silent:  0'], said)
        # Each time that it was tried, for that kernel; and of the package, that there is none.
        self.assertEqual(said.count('warning: no module for kernel'), 3, said)
        self.assertEqual(said.count('warning: no module was built'), 2, said)
        self.assertNotIn('left:', said)


@fixture.shard('packages')
class PackagesTest(fixture.SessionTest):
    time_limit = 1800  # it may have to fetch and unpack what it runs

    @classmethod
    def require(cls):
        cls.disk = make_disk()

    @classmethod
    def boot(cls):
        with open(os.path.join(debiandisk.DEBIAN, 'stock.sha256')) as stream:
            cls.stock = stream.read().strip()
        files = debiandisk.files()
        files['usr/local/bin/excheck'] = built_program('excheck')
        cls.daemon = Daemon(cls.session, ['vm1', 'vm2'])
        cls.guests = start_guests(
            cls.session, cls.daemon, virtio=False, files=files,
            extra_args=debiandisk.drive(cls.disk), boot=True)
        for guest in cls.guests:
            guest.run(debiandisk.MOUNT)
            guest.run('cp /usr/local/bin/excheck /debian/usr/bin/')

    def both(self, command):
        """@command in both guests at the same time; what they said."""
        jobs = [guest.spawn(command, 240) for guest in self.guests]
        return [job.wait(check=True).out for job in jobs]

    def load(self, device):
        """Load what the device's identity asks for; it must become @device."""
        self.both(COLDPLUG + ''' || exit
            for i in $(seq 100); do
                [ -e /sys/class/infiniband/%s ] && exit 0
                usleep 50000
            done
            lsmod; dmesg | tail; exit 1''' % device)
        return Pair(self.guests, 'pvrdma', device)

    def traffic(self, pair):
        for program in ('ibv_rc_pingpong -c -d {dev} -g {gid} -p {port} -n 200',
                        'ibv_rc_pingpong -c -e -d {dev} -g {gid} -p {port} -n 200',
                        'ib_write_bw -d {dev} -p {port} -F -s 65536 -n 50'):
            with self.subTest(program=program):
                pair.run('deb ' + program)

    def excheck(self, pair, inline):
        return self.guests[0].run('deb excheck -d %s -g %d -i %d' % (
            pair.device, pair.gids[0], inline), 120, check=False)

    def without_module(self):
        """No module for this kernel: the in-tree driver serves."""
        self.both('rmmod pvrdma; cd /debian/lib/modules/$(uname -r) && '
                  'mv updates/dkms/pvrdma.ko /debian/root/ && deb depmod')
        self.load('vmw_pvrdma0')
        self.both('rmmod vmw_pvrdma; cd /debian/lib/modules/$(uname -r) && '
                  'mv /debian/root/pvrdma.ko updates/dkms/ && deb depmod')
        self.load('pvrdma0')
        # Asked for by name, it still gives way.
        for loaded in self.both('deb modprobe vmw_pvrdma && lsmod'):
            self.assertNotIn('vmw_pvrdma', loaded)

    def test_use_then_remove(self):
        """One test: what is removed must have been used before."""
        pair = self.load('pvrdma0')
        for loaded in self.both('lsmod'):
            self.assertNotIn('vmw_pvrdma', loaded)
        self.traffic(pair)
        done = self.excheck(pair, 128)
        self.assertTrue(done.ok, done.describe())
        self.without_module()

        for used in self.both('deb sha256sum ' + PROVIDER):
            self.assertNotIn(self.stock, used)
        self.both('deb dpkg -r pvrdma-dkms ibverbs-provider-pvrdma && rmmod pvrdma')
        for used in self.both('deb sha256sum ' + PROVIDER):
            self.assertIn(self.stock, used)
        for left in self.both('find /debian/lib/modules /debian/usr/src '
                              '/debian/usr/lib/modprobe.d /debian/usr/lib/udev -name "*pvrdma*" '
                              '! -name "vmw_pvrdma*"; '
                              'deb dpkg-divert --list "*pvrdma*"; '
                              'deb dpkg --verify ibverbs-providers'):
            self.assertEqual(left.strip(), '')

        pair = self.load('vmw_pvrdma0')
        self.traffic(pair)
        done = self.excheck(pair, 0)
        self.assertEqual(done.code, 3, done.describe())
        for guest in self.guests:
            guest.powerdown()
        self.daemon.check()


class DpkgCase(unittest.TestCase):
    """The provider's package in a dpkg database of its own, without a guest."""

    FOLDER = os.path.dirname(PROVIDER).lstrip('/')
    PACKAGE = 'ibverbs-provider-pvrdma'

    def setUp(self):
        if os.getuid() or not shutil.which('dpkg-divert'):
            raise unittest.SkipTest('needs root and dpkg')
        self.library = parts.built_library()
        if not self.library:
            raise VmError('no provider: run "make guest"')
        folder = tempfile.TemporaryDirectory(prefix='pvrdma-dpkg-')
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, 'root')
        self.build = os.path.join(folder.name, 'build')
        database = os.path.join(self.root, 'var/lib/dpkg')
        for name in ('info', 'updates'):
            os.makedirs(os.path.join(database, name))
        for name in ('status', 'diversions'):
            open(os.path.join(database, name), 'w').close()
        os.makedirs(os.path.join(self.root, self.FOLDER))

    def dpkg(self, *args, good=True):
        done = subprocess.run(
            ['dpkg', '--root=' + self.root, '--force-script-chrootless'] +
            list(args), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True, check=False)
        self.assertEqual(not done.returncode, good, done.stdout)
        return done.stdout

    def path(self, number):
        return os.path.join(self.root, self.FOLDER,
                            'libvmw_pvrdma-rdmav%d.so' % number)

    def package(self, abis):
        """Path of our package, built of libraries for @abis, whose items are an
        ABI's number and the first and the last release that has it."""
        shutil.rmtree(self.build, ignore_errors=True)
        os.makedirs(os.path.join(self.build, 'guest'))
        with open(os.path.join(self.build, 'guest', 'provider.abis'),
                  'w') as stream:
            for abi in abis:
                stream.write('%d %d %d\n' % abi)
                shutil.copy(self.library, os.path.join(
                    self.build, 'guest', os.path.basename(self.path(abi[0]))))
        subprocess.run([os.path.join(REPO, 'packaging', 'build-deb.sh'),
                        self.build], stdout=subprocess.DEVNULL, check=True)
        found, = glob.glob(os.path.join(self.build, 'deb',
                                        self.PACKAGE + '_*.deb'))
        return found


class DiversionTest(DpkgCase):
    """Upgrades to libraries of other names, good and failed ones, and removal."""

    def install(self, *numbers):
        self.dpkg('--force-depends', '-i',
                  self.package([(n, n, n) for n in numbers]))

    def check(self, ours):
        """@ours are our libraries, all else is stock and undiverted."""
        listed = subprocess.run(
            ['dpkg-divert', '--root=' + self.root, '--list'],
            stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
        self.assertEqual(listed.count('libvmw_pvrdma'), 2 * len(ours), listed)
        for number in ours.union(self.stock):
            with open(self.path(number), 'rb') as stream:
                self.assertEqual(stream.read(5) != b'stock', number in ours,
                                 number)
        for number in self.stock:
            self.assertEqual(os.path.exists(self.path(number) + '.stock'),
                             number in ours, number)

    def setUp(self):
        super().setUp()
        self.stock = (34, 99)
        for number in self.stock:
            with open(self.path(number), 'w') as stream:
                stream.write('stock')

    def test_upgrade_and_removal(self):
        for numbers in ((34,), (34,), (34, 65), (65, 99), (34, 65, 99)):
            self.install(*numbers)
            self.check(set(numbers))
        self.dpkg('-r', self.PACKAGE)
        self.check(set())
        self.assertFalse(os.path.exists(self.path(65)))

    def test_failed_upgrade(self):
        self.install(34)
        folder = os.path.join(self.build, 'broken')
        subprocess.run(['dpkg-deb', '-R', self.package([(34, 34, 34),
                                                        (99, 99, 99)]),
                        folder], check=True)
        with open(os.path.join(folder, 'DEBIAN', 'preinst'), 'a') as stream:
            stream.write('exit 1\n')
        subprocess.run(['dpkg-deb', '-b', folder, folder + '.deb'],
                       stdout=subprocess.DEVNULL, check=True)
        self.dpkg('--force-depends', '-i', folder + '.deb', good=False)
        self.check({34})
        self.dpkg('-r', self.PACKAGE)
        self.check(set())


class DependsTest(DpkgCase):
    """The package goes with the releases of libibverbs that it has a library for,
    and with no other: there the stock provider would serve in silence."""

    STATUS = '''Package: %s
Status: install ok installed
Maintainer: nobody
Architecture: amd64
Multi-Arch: same
Version: %s
Description: as if installed

'''

    def try_install(self, package, version, expected):
        """What apt says of the package beside that release of libibverbs."""
        status = os.path.join(self.root, 'var/lib/dpkg/status')
        with open(status, 'w') as stream:
            for name in ('libibverbs1', 'ibverbs-providers'):
                stream.write(self.STATUS % (name, version))
            stream.write(self.STATUS % ('libc6', '2.36-9'))
        options = {'Dir::State::status': status, 'Dir::Cache': self.root,
                   'Dir::State::lists': os.path.join(self.root, 'lists'),
                   'Dir::Etc::sourcelist': '/dev/null',
                   'Dir::Etc::sourceparts': '/dev/null',
                   'Dir::Etc::preferencesparts': '/dev/null'}
        done = subprocess.run(
            ['apt-get', '-s', 'install', package] +
            ['-o%s=%s' % option for option in options.items()],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            universal_newlines=True, check=False)
        self.assertEqual('Inst ' + self.PACKAGE in done.stdout, expected,
                         done.stdout)
        self.assertEqual('libibverbs1 (' in done.stdout, not expected,
                         done.stdout)

    def test_bounds(self):
        package = self.package([(34, 44, 56), (57, 57, 58), (65, 65, 66)])
        for version, expected in (
                ('43.0-1', False), ('44.0-2', True), ('56.1-1+deb13u1', True),
                ('57.0-1~bpo13+1', True), ('58.0-1', True), ('59.0-1', False),
                ('64.0-1', False), ('65.0-1.1', True), ('66.2-1', True),
                ('67.0-1', False)):
            with self.subTest(version=version):
                self.try_install(package, version, expected)

    def test_this_build(self):
        """What was built, in the releases of Debian that it is for."""
        with open(os.path.join(BUILD, 'guest', 'provider.abis')) as stream:
            abis = [tuple(map(int, line.split())) for line in stream]
        package = self.package(abis)
        for version, expected in (
                [('44.0-2', True), ('%d.0-1' % (abis[-1][2] + 1), False)] +
                [('%d.9-1' % last, True) for _, _, last in abis]):
            with self.subTest(version=version):
                self.try_install(package, version, expected)


class ReleasesTest(unittest.TestCase):
    """The package installed by dpkg in other releases of Debian, in a chroot: all
    that its library asks of that libibverbs is there, and removal leaves nothing.
    (test_provider.py has guests with these releases' libibverbs.)"""

    time_limit = 1800  # it may have to fetch and unpack what it runs

    FOLDER = os.path.dirname(PROVIDER)

    def in_root(self, *command, check=True):
        done = subprocess.run(
            ['unshare', '-m', '--', 'sh', '-c', 'mount -t proc proc "$0/proc" '
             '&& exec chroot "$0" "$@"', self.root] + list(command),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            universal_newlines=True, check=False, timeout=240,
            env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C',
                 'DEBIAN_FRONTEND': 'noninteractive'})
        if check:
            self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_install_and_remove(self):
        if os.getuid() or not shutil.which('debootstrap'):
            raise unittest.SkipTest('needs root and debootstrap')
        deb, = glob.glob(os.path.join(BUILD, 'deb',
                                      'ibverbs-provider-pvrdma_*.deb'))
        for suite, abi in other_suites().items():
            with self.subTest(suite=suite), \
                    tempfile.TemporaryDirectory(prefix='pvrdma-root-') as temp:
                self.assertTrue(abi, 'no provider for ' + suite)
                subprocess.run([os.path.join(REPO, 'tests', 'vm',
                                             'release-root.sh'), BUILD, suite],
                               stdout=subprocess.DEVNULL, timeout=900,
                               check=True)
                self.root = os.path.join(temp, 'root')
                subprocess.run(['cp', '-a', '--reflink=auto',
                                os.path.join(debiandisk.DEBIAN, suite), self.root],
                               check=True)
                shutil.copy(deb, os.path.join(self.root, 'tmp', 'our.deb'))
                self.use(os.path.join(
                    self.FOLDER, 'libvmw_pvrdma-rdmav%d.so' % abi))

    def use(self, library):
        files = os.path.join(self.FOLDER, 'libvmw_pvrdma*')
        listing = ('sh', '-c', 'sha256sum ' + files)
        before = self.in_root(*listing)
        self.in_root('dpkg', '-i', '/tmp/our.deb')
        self.assertNotIn(before.split()[0] + '  ' + library + '\n',
                         self.in_root(*listing))
        # Every symbol and version must be found, though no device is here (and
        # so the program fails).
        loaded = self.in_root('env', 'LD_BIND_NOW=1', 'LD_PRELOAD=' + library,
                              'LD_DEBUG=files', 'ibv_devices', check=False)
        self.assertIn('calling init: ' + library, loaded)
        self.assertNotIn('cannot be preloaded', loaded)
        self.assertNotIn('error:', loaded)
        # As the distribution's own updates do.
        self.assertIn('.stock', self.in_root('dpkg-divert', '--truename',
                                             library))
        self.in_root('dpkg', '-r', 'ibverbs-provider-pvrdma')
        self.assertEqual(self.in_root(*listing), before)
        self.assertEqual(self.in_root('dpkg', '--verify',
                                      'ibverbs-providers'), '')
