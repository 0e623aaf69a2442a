# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest kernel's own users of RDMA, between two guests: NVMe, NFS and iSCSI (iSER).

Each is a class with the same methods, over RDMA or, to compare, over TCP: serve() in one
guest, attach() in the other, which gives the disk or file there, detach(), and
withdraw() in the first.  What is served lies in that guest's RAM and is lost with it, or
on a disk of its own that outlives it (suites.Keeper).  An NVMe disk and the files of NFS
come back under the same name, so that a host that waited goes on.

The programs are those of the disk of `debian-root.sh suites` (suites.Lab); all that is
done in a guest is done in that Debian, also paths are those there.
"""

import collections
import functools
import json
import statistics

from lib.agent import AgentError, CommandFailed
from lib.parts import wait_in_guest
from lib.pvrdma_vm import VmError

# Bytes of a disk or folder that is served.
SIZE_MB = 64
FIO = ('fio --name=x --filename=%s --ioengine=libaio --direct=1 --output-format=json '
       '--size=%dm ')


def script(guest, text, seconds=60, check=True):
    """Run @text by sh -e in the Debian; the finished Job."""
    return guest.run("deb sh -e <<'END'\n%s\nEND" % text, seconds, check)


class Nvme:
    """nvmet and `nvme connect`; @store: the target's disk, instead of one in its RAM."""

    title = 'NVMe'
    nqn = 'nqn.2026-11.org.pvrdma:ram'
    uuid = '7a1d6d0c-3b5e-4c53-9a55-77b9c9b0f001'

    def __init__(self, transport='rdma', store='/dev/ram0'):
        self.transport = transport
        self.store = store
        self.port = 4420 if transport == 'rdma' else 4421
        self.disk = None

    def serve(self, guest, address, options=''):
        """@options: of the target's module, such as use_srq=1; they count when it is
        loaded."""
        script(guest, '''
modprobe -a configfs nvmet
modprobe brd rd_nr=1 rd_size=%(kib)d
modprobe nvmet-%(transport)s %(options)s
config=/sys/kernel/config
mountpoint -q $config || mount -t configfs none $config
cd $config/nvmet
s=subsystems/%(nqn)s
if ! [ -d $s ]; then
    mkdir $s
    echo 1 > $s/attr_allow_any_host
    mkdir $s/namespaces/1
    echo %(store)s > $s/namespaces/1/device_path
    echo %(uuid)s > $s/namespaces/1/device_uuid
    echo 1 > $s/namespaces/1/enable
fi
p=ports/%(port)d
mkdir $p
echo %(transport)s > $p/addr_trtype
echo ipv4 > $p/addr_adrfam
echo %(address)s > $p/addr_traddr
echo %(port)d > $p/addr_trsvcid
ln -s $config/nvmet/$s $p/subsystems/''' % {
            'kib': SIZE_MB * 1024, 'transport': self.transport, 'options': options,
            'nqn': self.nqn, 'uuid': self.uuid, 'address': address, 'port': self.port,
            'store': self.store})

    def withdraw(self, guest, subsystem=False):
        """Also unloads the target's module, which then takes new options; and with
        @subsystem forgets the disk."""
        script(guest, 'cd /sys/kernel/config/nvmet/ports/%d\nrm subsystems/*\ncd ..\n'
               'rmdir %d\nmodprobe -r nvmet-%s' % (self.port, self.port, self.transport))
        if subsystem:
            script(guest, 'cd /sys/kernel/config/nvmet/subsystems/%s\necho 0 > '
                   'namespaces/1/enable\nrmdir namespaces/1\ncd ..\nrmdir %s\n'
                   'modprobe -r nvmet' % (self.nqn, self.nqn))

    def attach(self, guest, address, check=True, options=''):
        """The disk; or None without @check if the target refuses.  @options: more of
        `nvme connect`."""
        done = script(guest, 'modprobe nvme-%s\nnvme connect -t %s -a %s -s %d -n %s '
                      '--reconnect-delay=1 --keep-alive-tmo=5 %s' % (
                          self.transport, self.transport, address, self.port, self.nqn,
                          options), check=check)
        if not done.ok:
            return None
        wait_in_guest(guest, 'grep -q %s /sys/block/nvme[0-9]n1/uuid 2>/dev/null' % self.uuid,
                      'the NVMe disk')
        self.disk = guest.run('dirname $(grep -l %s /sys/block/nvme[0-9]n1/uuid)' %
                              self.uuid).out.strip().replace('/sys/block', '/dev')
        return self.disk

    def detach(self, guest):
        script(guest, 'nvme disconnect -n ' + self.nqn)


class Nfs:
    """Linux' NFS server on a tmpfs, or on a file system on the disk @store; @version: 3
    or 4.2.  @timeout: tenths of a second after which the client asks again."""

    PATH = '/mnt/nfs/file'

    def __init__(self, transport='rdma', version='4.2', store=None, timeout=600):
        self.transport = transport
        self.version = version
        self.store = store
        self.timeout = timeout
        self.title = 'NFS ' + version

    def serve(self, guest, address):
        """For all versions, over RDMA and TCP, at all addresses."""
        # rpc.mountd leaves this job's processes only after its parent ended, and the
        # agent ends those that are left then; the server answers nobody without it.
        # The disk also has what the server noted of its clients, whose files it opens
        # for them again; of one that is new nobody has anything to reclaim.
        script(guest, '''
modprobe -a nfsd rpcrdma
mkdir -p /run/rpcbind /srv/nfs /srv/store
store=%(store)s
mountpoint -q /srv/nfs && exit 0
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
if [ -n "$store" ]; then
    mount $store /srv/store || { mkfs.ext4 -q $store; mount $store /srv/store; }
    mkdir -p /srv/store/files /srv/store/clients
    mount --bind /srv/store/files /srv/nfs
    echo /srv/store/clients > /proc/fs/nfsd/nfsv4recoverydir
else
    mount -t tmpfs -o size=%(mb)dm none /srv/nfs
fi
echo '/srv/nfs *(rw,no_root_squash,no_subtree_check,fsid=1,insecure)' > /etc/exports
echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
rpcbind -w
exportfs -a
setsid rpc.mountd''' % {'store': self.store or '', 'mb': 2 * SIZE_MB})
        wait_in_guest(guest, 'deb rpcinfo -t 127.0.0.1 100005 3 >/dev/null 2>&1',
                      'rpc.mountd')
        self.start(guest)

    @staticmethod
    def start(guest):
        """Start the server, also after stop()."""
        script(guest, '''
rpc.nfsd 4
grep -q rdma /proc/fs/nfsd/portlist || echo rdma 20049 > /proc/fs/nfsd/portlist
[ -n "$(ls -A /srv/store/clients 2>/dev/null)" ] || echo Y > /proc/fs/nfsd/v4_end_grace''')

    @staticmethod
    def stop(guest):
        """The server loses all connections, and all it knows of open files."""
        script(guest, 'rpc.nfsd 0')

    @staticmethod
    def reclaimed(guest, seconds=60):
        """Wait until a client has opened its file again; nobody else is waited for."""
        wait_in_guest(guest, 'grep -qs open /debian/proc/fs/nfsd/clients/*/states',
                      'a client that comes back', seconds)
        script(guest, 'echo Y > /proc/fs/nfsd/v4_end_grace')

    def withdraw(self, guest):
        script(guest, 'rm -f /srv/nfs/*')

    def attach(self, guest, address):
        more = ',proto=rdma,port=20049' if self.transport == 'rdma' else ',proto=tcp'
        if self.version == '3':
            more += ',mountproto=tcp,nolock'
        script(guest, 'modprobe -a nfsv3 nfsv4 rpcrdma\nmkdir -p /mnt/nfs\n'
               'mount -t nfs -o vers=%s,timeo=%d%s %s:/srv/nfs /mnt/nfs' % (
                   self.version, self.timeout, more, address))
        return self.PATH

    def detach(self, guest):
        script(guest, 'umount /mnt/nfs')


class Iscsi:
    """LIO with a RAM disk, and open-iscsi: iSER over RDMA."""

    title = 'iSCSI'
    iqn = 'iqn.2026-11.org.pvrdma:ram'

    def __init__(self, transport='rdma'):
        self.transport = transport
        self.port = 3261 if transport == 'rdma' else 3260
        self.disk = None

    def serve(self, guest, address):
        script(guest, '''
modprobe -a configfs target_core_mod iscsi_target_mod ib_isert
config=/sys/kernel/config
mountpoint -q $config || mount -t configfs none $config
cd $config/target
t=iscsi/%(iqn)s/tpgt_1
if ! [ -d $t ]; then
    mkdir -p core/rd_mcp_0/ram $t/lun/lun_0
    echo rd_pages=%(pages)d > core/rd_mcp_0/ram/control
    echo 1 > core/rd_mcp_0/ram/enable
    ln -s $PWD/core/rd_mcp_0/ram $t/lun/lun_0/disk
    echo 0 > $t/attrib/authentication
    echo 1 > $t/attrib/generate_node_acls
    echo 1 > $t/attrib/cache_dynamic_acls
    echo 0 > $t/attrib/demo_mode_write_protect
fi
mkdir $t/np/%(address)s:%(port)d
echo %(iser)d > $t/np/%(address)s:%(port)d/iser
echo 1 > $t/enable''' % {'iqn': self.iqn, 'pages': SIZE_MB * 256, 'address': address,
                         'port': self.port, 'iser': self.transport == 'rdma'})

    def withdraw(self, guest):
        script(guest, 'rmdir /sys/kernel/config/target/iscsi/%s/tpgt_1/np/*:%d' % (
            self.iqn, self.port))

    def attach(self, guest, address):
        script(guest, '''
mkdir -p /run/lock/iscsi
modprobe -a sd_mod %s
pidof iscsid >/dev/null || iscsid
iscsiadm -m discoverydb -t st -p %s:%d -I %s --discover
iscsiadm -m node --login''' % (
            'ib_iser' if self.transport == 'rdma' else 'iscsi_tcp', address, self.port,
            'iser' if self.transport == 'rdma' else 'default'))
        wait_in_guest(guest, 'grep -q LIO-ORG /sys/block/sd*/device/vendor 2>/dev/null',
                      'the iSCSI disk')
        self.disk = '/dev/' + guest.run('ls /sys/block | grep ^sd').out.split()[0]
        return self.disk

    def detach(self, guest):
        script(guest, 'iscsiadm -m node --logout\niscsiadm -m node -o delete')


# -- what is done with them ---------------------------------------------------------

def copies(guest, target, megabytes=8):
    """Write a file of random bytes, by way of a new file system if @target is a disk,
    forget all that is cached, and compare."""
    disk = target.startswith('/dev/')
    script(guest, '''
disk=%d target=%s
folder=$(dirname $target)
if [ $disk = 1 ]; then
    folder=/mnt/disk
    mkdir -p $folder
    mkfs.ext4 -q -F $target
    mount $target $folder
fi
head -c %d /dev/urandom > /tmp/copies
cp /tmp/copies $folder/copies
sync
if [ $disk = 1 ]; then
    umount $folder
    mount $target $folder
fi
echo 3 > /proc/sys/vm/drop_caches
cmp /tmp/copies $folder/copies
[ "$(sha256sum <$folder/copies)" = "$(sha256sum </tmp/copies)" ]
rm $folder/copies
[ $disk = 0 ] || umount $folder''' % (disk, target, megabytes << 20), 120)


def verify(guest, target, megabytes=24, seed=1, seconds=120):
    """Writes of all sizes in any order, each block with a checksum that is looked at
    when all is read back."""
    job = guest.run('deb ' + FIO % (target, megabytes) + '--rw=randwrite --iodepth=16 '
                    '--bsrange=512-1m --verify=crc32c --verify_fatal=1 --do_verify=1 '
                    '--randseed=%d' % seed, seconds)
    read, write = (json.loads(job.out)['jobs'][0][name]['io_bytes']
                   for name in ('read', 'write'))
    if write != megabytes << 20 or read != write:
        raise VmError('fio wrote %d bytes and verified %d' % (write, read))


def verify_split(guest, disk, jobs, megabytes=8):
    """The same by one process on each of the first @jobs processors, at the same time
    and each with its own part of @disk."""
    job = guest.run('deb ' + FIO % (disk, megabytes) + '--rw=randwrite --iodepth=8 '
                    '--bsrange=512-256k --verify=crc32c --verify_fatal=1 --do_verify=1 '
                    '--numjobs=%d --offset_increment=%dm --cpus_allowed=0-%d '
                    '--cpus_allowed_policy=split' % (jobs, megabytes, jobs - 1), 120)
    # It notes before that several may write to one file.
    for found in json.loads(job.out[job.out.index('{'):])['jobs']:
        read, write = (found[name]['io_bytes'] for name in ('read', 'write'))
        if write != megabytes << 20 or read != write:
            raise VmError('fio wrote %d bytes and verified %d' % (write, read))


def load(guest, target, seconds=1800):
    """Reads and writes that go on until they fail; a Job."""
    return guest.spawn('deb ' + FIO % (target, SIZE_MB // 2) + '--rw=randrw --iodepth=16 '
                       '--bsrange=512-1m --time_based --runtime=%d' % seconds,
                       seconds + 30)


class Rounds:
    """One process in @guest that writes to @target and compares what it reads back, over
    and over until finish(): what happens meanwhile must neither fail an operation, nor
    lose what was written, nor spoil a file that is open."""

    def __init__(self, guest, target, megabytes=2, seconds=900):
        self.guest = guest
        self.flag = '/tmp/rounds' + target.replace('/', '-')
        guest.run('rm -f ' + self.flag)
        self.job = guest.spawn(
            'exec 9<>/debian%s; n=0; while [ ! -e %s ]; do n=$((n + 1)); '
            'echo "round $n begins"; deb %s--rw=randwrite --iodepth=8 --bsrange=512-256k '
            '--verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$n >/dev/null || '
            'exit 1; done' % (target, self.flag, FIO % (target, megabytes)), seconds)
        self.more()

    def more(self, seconds=120):
        """Wait for a whole round that began after now."""
        self.job.wait_output('round %d begins' % (self.job.out.count('begins') + 2), seconds)

    def finish(self):
        """Let it end its last round."""
        self.guest.run('touch ' + self.flag)
        job = self.job.wait(120)
        if not job.ok:
            raise VmError(job.describe())


def keep(guest, target, megabytes=4):
    """Random bytes at the end of the disk @target, or in a file beside it; a shell
    command that fails unless they are still there."""
    if target.startswith('/dev/'):
        where, at = target, SIZE_MB - megabytes
    else:
        where, at = target + '.kept', 0
    words = 'bs=1M count=%d' % megabytes
    total = script(guest, '''
head -c %dM /dev/urandom > /tmp/kept
dd if=/tmp/kept of=%s seek=%d conv=notrunc,fsync %s 2>/dev/null
sha256sum < /tmp/kept''' % (megabytes, where, at, words)).out.strip()
    return '''echo 3 > /proc/sys/vm/drop_caches
[ "$(dd if=%s skip=%d %s 2>/dev/null | sha256sum)" = "%s" ]''' % (where, at, words, total)


# name, fio's words, unit.
FIGURES = (('4 KiB random read, depth 1', '--rw=randread --bs=4k --iodepth=1', 'IOPS'),
           ('4 KiB random read, depth 32', '--rw=randread --bs=4k --iodepth=32', 'IOPS'),
           ('128 KiB read, depth 8', '--rw=read --bs=128k --iodepth=8', 'MB/s'),
           ('128 KiB write, depth 8', '--rw=write --bs=128k --iodepth=8', 'MB/s'))


def figures(guest, target, seconds=3):
    """{name: figure} of FIGURES."""
    # What was never written may be read without the disk.
    guest.run('deb ' + FIO % (target, SIZE_MB // 2) + '--rw=write --bs=256k --iodepth=4')
    found = {}
    for name, words, unit in FIGURES:
        job = guest.run('deb ' + FIO % (target, SIZE_MB // 2) + words +
                        ' --time_based --ramp_time=1 --runtime=%d' % seconds,
                        seconds + 60)
        side = json.loads(job.out)['jobs'][0]['write' if '=write' in words else 'read']
        found[name] = side['iops'] if unit == 'IOPS' else side['bw_bytes'] / 1e6
    return found


# -- all of it, for make conformance ------------------------------------------------

USERS = (Nvme, functools.partial(Nfs, version='4.2'), functools.partial(Nfs, version='3'),
         Iscsi)


def taken_away(guest, user, target):
    """The host lets go in the middle of I/O, which must fail and not hang."""
    job = load(guest, target)
    guest.run('sleep 2')
    if job.done:
        raise VmError(job.describe())
    user.detach(guest)
    job.wait(30)
    # Of a SCSI disk that has gone the kernel says "No space left".
    if 'io_u error on file' not in job.err:
        raise VmError(job.describe())


def examine(guests, user, address, works=True):
    """Serve in the second of @guests, use in the first: {row: 'ok' or what failed, or
    the figure}.  Without @works only figures are taken."""
    host, server = guests
    rows = {}

    def step(name, function, *words):
        try:
            found = function(*words)
            rows[name] = 'ok'
            return found
        except (VmError, AgentError, CommandFailed) as exc:
            if not all(guest.alive for guest in guests):
                raise
            lines = [line for line in str(exc).splitlines() if line.strip()]
            rows[name] = 'fails: ' + lines[-1][:120]
            return None

    step('served', user.serve, server, address)
    target = step('attached', user.attach, host, address)
    if target:
        if works:
            step('files are as written', copies, host, target)
            step('`fio --verify`', verify, host, target, 32)
        rows.update(step('measured', figures, host, target) or {})
        if rows['measured'] == 'ok':
            del rows['measured']
        # An NFS mount that is in use cannot go.
        if works and target.startswith('/dev/'):
            step('let go in the middle of I/O', taken_away, host, user, target)
        else:
            step('detached', user.detach, host)
    step('withdrawn', user.withdraw, server)
    return rows


class Table:
    """What examine() found, in columns named @columns."""

    def __init__(self, columns):
        self.columns = list(columns)
        # {user: {row: {column: [of each round]}}}
        self.found = {}
        self.last = ''

    def add(self, column, user, rows):
        self.last = ', '.join('%s %s' % (row, what if isinstance(what, str) else
                                         '%.4g' % what) for row, what in rows.items())
        for row, what in rows.items():
            self.found.setdefault(user, {}).setdefault(
                row, collections.defaultdict(list))[column].append(what)

    def plain(self):
        """For JSON."""
        return self.found

    def cell(self, row, whats):
        figures_ = [what for what in whats if not isinstance(what, str)]
        if figures_:
            unit = {name: unit for name, _, unit in FIGURES}[row]
            return '%.0f %s' % (statistics.median(figures_), unit)
        bad = [what for what in whats if what != 'ok']
        return (bad or whats or [''])[0].replace('|', '/')

    def lines(self):
        """Markdown."""
        lines = []
        for user, rows in self.found.items():
            lines += ['', '| %s | %s |' % (user, ' | '.join(self.columns)),
                      '|---' * (len(self.columns) + 1) + '|']
            lines += ['| %s | %s |' % (row, ' | '.join(
                self.cell(row, whats.get(column, [])) for column in self.columns))
                for row, whats in rows.items()]
        return lines[1:]
