"""A process to be killed: puts messages, uploads them to a folder, and lets local files go, as fast as it can.

Run as ``python tier_victim.py DIRECTORY``. Prints the number of messages that are durable, one line each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stratamq.clock import SystemClock
from stratamq.config import RetentionConfig, StoreConfig, TieredConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.tiered.local import LogQueues
from stratamq.tiered.owner import run_inline
from stratamq.tiered.service import TierService, open_tier
from stratamq.tiered.store import TieredStore

HOST = encode_host("127.0.0.1", 10911)
STORE = StoreConfig(commit_log_file_bytes=64 * 1024, consume_queue_file_bytes=2000, index_slots=16, index_entries=64)
POLICY = TieredConfig(
    seal_age_ms=0,
    seal_bytes=8192,
    reserved_hours=100_000,
    expire_interval_ms=1000,
    compact_format="flat",
    compact_bytes=64 * 1024,
    compact_bytes_max=128 * 1024,
    delete_grace_ms=200,
)
QUEUES = 3


def body_of(number: int) -> bytes:
    """What message ``number`` of a queue holds."""
    return b"%08d" % number * (20 + number % 50)


class Opened:
    """Store, tier and retention over one directory."""

    def __init__(self, directory: Path) -> None:
        self.clock = SystemClock()
        self.local = LogStore.open(directory / "data", STORE, clock=self.clock, store_host=HOST)
        policy = TieredConfig(**{**_fields(), "url": f"file://{directory}/cold"})
        opened = open_tier(policy, str(directory / "data" / "tier"), "b", self.clock)
        self.service = TierService(opened, LogQueues(self.local), policy, self.clock)
        self.store = TieredStore(self.local, self.service, policy, self._spawn)
        self.retention = RetentionService(
            self.local,
            RetentionConfig(file_reserved_hours=0),
            clock=self.clock,
            offsets=dict,
            keep_from=self.service.keep_from,
        )

    @staticmethod
    def _spawn(work, done) -> None:
        try:
            answer = work()
        except Exception as error:
            done(None, error)
        else:
            done(answer, None)

    def tier(self) -> None:
        """One look, and all that is due."""
        works = self.service.due()
        while works:
            for work in works:
                run_inline(work)
            works = self.service.due(look=False)

    def clean(self) -> None:
        """Let go what may go."""
        self.retention.request()
        for step in self.retention.round():
            if step.blocking is not None:
                step.blocking()


def _fields() -> dict:
    import dataclasses

    return {field.name: getattr(POLICY, field.name) for field in dataclasses.fields(POLICY)}


def main() -> None:
    """Go on until killed."""
    opened = Opened(Path(sys.argv[1]))
    store = opened.local
    counts = [store.max_offset("T", queue) for queue in range(QUEUES)]
    for number in range(10**9):
        queue = number % QUEUES
        for _ in range(5):
            made = Message(
                topic="T",
                queue_id=queue,
                body=body_of(counts[queue]),
                properties="",
                born_timestamp=1,
                born_host=HOST,
            )
            store.append((made,))
            counts[queue] += 1
        token = store.commit()
        assert token is not None
        store.sync(token)
        store.synced(token)
        sys.stdout.write(f"{queue} {counts[queue]}\n")
        sys.stdout.flush()
        if number % 3 == 0:
            opened.tier()
        if number % 20 == 19:
            opened.clean()


if __name__ == "__main__":
    main()
