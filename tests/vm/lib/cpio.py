# SPDX-License-Identifier: GPL-2.0-or-later
"""Write archives in cpio's "newc" form, as the kernel takes for initramfs.

Used for the small archive that is put behind the guest image: a guest's own
configuration and test programs.  Directories of each path are added once.
"""

import os
import stat


class Cpio:
    """Collects files in memory; data() gives the archive."""

    def __init__(self):
        self._parts = []
        self._dirs = set()
        self._inode = 1

    def _entry(self, name, mode, body):
        raw = name.encode() + b'\0'
        fields = [self._inode, mode, 0, 0, 1, 0, len(body),
                  0, 0, 0, 0, len(raw), 0]
        self._inode += 1
        head = b'070701' + b''.join(b'%08X' % f for f in fields) + raw
        self._parts.append(head + b'\0' * (-len(head) % 4))
        self._parts.append(body + b'\0' * (-len(body) % 4))

    def add(self, path, body, mode=0o644):
        """Add a regular file with @body (bytes) as @path (no leading /)."""
        done = ''
        for part in path.split('/')[:-1]:
            done = os.path.join(done, part)
            if done not in self._dirs:
                self._dirs.add(done)
                self._entry(done, stat.S_IFDIR | 0o755, b'')
        self._entry(path, stat.S_IFREG | mode, body)

    def data(self):
        saved = list(self._parts), self._inode
        self._inode = 0
        self._entry('TRAILER!!!', 0, b'')
        body = b''.join(self._parts)
        self._parts, self._inode = saved
        return body + b'\0' * (-len(body) % 512)
