"""How full a disk is, as RocketMQ counts it, behind a seam so that tests can fill disks that are not there.

Percent = used / (used + usable), where used = total - free and usable is what an ordinary process may still write:
blocks that are reserved for root count as neither. Whole percent, rounded up, so "above 85" means really above.

Source: apache/rocketmq common/.../UtilAll.java, getDiskPartitionSpaceUsedPercent.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol


class DiskUsage(NamedTuple):
    """The disk that a path lies on. ``total_bytes`` 0 says that it could not be asked; ``error`` says why."""

    path: str
    total_bytes: int
    used_bytes: int
    usable_bytes: int
    device: int = 0
    error: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the disk could be asked."""
        return self.total_bytes > 0 and self.used_bytes + self.usable_bytes > 0

    @property
    def percent(self) -> int:
        """Whole percent used, rounded up; -1 when unknown."""
        if not self.is_known:
            return -1
        return -(-100 * self.used_bytes // (self.used_bytes + self.usable_bytes))

    def less(self, freed_bytes: int) -> DiskUsage:
        """The same disk when so many bytes have come back."""
        freed = min(max(freed_bytes, 0), self.used_bytes)
        return self._replace(used_bytes=self.used_bytes - freed, usable_bytes=self.usable_bytes + freed)

    def bytes_at(self, percent: int) -> int:
        """How many bytes may be used so that `percent` is not above this."""
        return (self.used_bytes + self.usable_bytes) * percent // 100


class DiskProbe(Protocol):
    """Asks how full a disk is."""

    def usage(self, path: str) -> DiskUsage:
        """The disk of ``path``. Never raises: what cannot be asked is unknown. Blocks for one system call."""
        ...


class LocalDiskProbe:
    """Asks this machine."""

    __slots__ = ()

    def usage(self, path: str) -> DiskUsage:
        try:
            found = os.statvfs(path)
            device = os.stat(path).st_dev
        except OSError as error:
            return DiskUsage(path, 0, 0, 0, error=error.strerror or str(error))
        block = found.f_frsize
        used = (found.f_blocks - found.f_bfree) * block
        return DiskUsage(path, found.f_blocks * block, used, found.f_bavail * block, device)
