"""Memory and disk alarms: what to block is a pure decision, who is told is a list of callbacks.

While an alarm is raised, connections that publish are to be blocked; consumers go on. The words are RabbitMQ's, because
clients show them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from stratamq.config import QueueStoreConfig
from stratamq.units import MiB

BESIDE_FILES_BYTES: Final = MiB
"""What the manifest, definitions and delivery counts may take besides."""


class Alarm(enum.Enum):
    """What is short."""

    MEMORY = "memory"
    DISK = "disk"


class Measured(NamedTuple):
    """What the decision depends on, in bytes."""

    memory_used: int
    memory_total: int
    disk_free: int


AlarmListener = Callable[[frozenset[Alarm], str], None]
"""Told the alarms that are raised now, and the reason for ``connection.blocked`` (empty when there are none)."""


def decide_alarms(measured: Measured, config: QueueStoreConfig) -> frozenset[Alarm]:
    """Which alarms hold: memory above its watermark, free disk space below its limit."""
    raised = set()
    if measured.memory_used * 100 > measured.memory_total * config.vm_memory_high_watermark_percent:
        raised.add(Alarm.MEMORY)
    if measured.disk_free < config.disk_free_limit_bytes:
        raised.add(Alarm.DISK)
    return frozenset(raised)


def blocked_reason(alarms: Iterable[Alarm]) -> str:
    """The reason text of ``connection.blocked``; empty without alarms."""
    names = sorted((alarm.value for alarm in alarms), reverse=True)
    return f"low on {' & '.join(names)}" if names else ""


class Alarms:
    """The alarms of one broker. Not thread-safe."""

    def __init__(self, config: QueueStoreConfig) -> None:
        self.raised: frozenset[Alarm] = frozenset()
        self._config = config
        self._listeners: list[AlarmListener] = []

    @property
    def reason(self) -> str:
        """Why publishers are blocked; empty while they are not."""
        return blocked_reason(self.raised)

    def listen(self, listener: AlarmListener) -> None:
        """Call ``listener`` at every change from now on."""
        self._listeners.append(listener)

    def forget(self, listener: AlarmListener) -> None:
        """Do not call ``listener`` any more."""
        self._listeners.remove(listener)

    def update(self, measured: Measured) -> bool:
        """Decide anew; listeners are told when something changed. Returns whether it did."""
        raised = decide_alarms(measured, self._config)
        if raised == self.raised:
            return False
        self.raised = raised
        for listener in list(self._listeners):
            listener(raised, self.reason)
        return True


def next_disk_check_ms(free: int, limit: int) -> int:
    """When to measure the disk again: soon when it could be full soon, at 250 MB/s, 100 ms to 10 s."""
    return max(100, min(10_000, 2 * (free - limit) * 1000 // 250_000_000))


class DiskRoom:
    """How much may still be published before what is left on the disk is needed for acknowledgements.

    To give space back, acknowledgements have to reach the journal, the journal the segments, and living messages
    another file; so publishes never take the last of the disk. Pure but for ``free_bytes``, which measures it.

    Args:
        free_bytes: Free space of the disk now. Called when the room seems to be used up.
    """

    def __init__(self, config: QueueStoreConfig, free_bytes: Callable[[], int]) -> None:
        self.reserve = (
            config.journal_file_bytes + config.msg_store_file_size_limit + config.maintenance_bytes + BESIDE_FILES_BYTES
        )
        self.is_short = False
        """Whether a publish was refused, and there is still no room."""
        self._free_bytes = free_bytes
        self._left = 0

    def take(self, size: int, unwritten: int) -> bool:
        """Whether a publish of that size may be taken; ``unwritten`` bytes are on no disk yet, or may be."""
        if self.is_short:
            return False
        self._left -= size
        if self._left < 0:
            self._left = self._free_bytes() - self.reserve - unwritten - size
            self.is_short = self._left < 0
        return not self.is_short

    def look(self) -> None:
        """Measure again when it was short. A quarter of the reserve has to be free besides it, so that it stays so."""
        if self.is_short:
            self._left = self._free_bytes() - self.reserve
            self.is_short = self._left < self.reserve // 4
