"""A disk that is full or broken at any call, and bytes that changed: what was confirmed stays, errors have types."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stratamq.config import QueueStoreConfig
from stratamq.errors import CorruptionError, StoreError, StoreFailed, StoreFull
from stratamq.queuestore.store import QueueStore
from stratamq.testing.clock import ManualClock
from tests.unit.queuestore.memory_disk import MemoryDisk

CONFIG = QueueStoreConfig(
    queue_index_embed_msgs_below=64,
    queue_index_segment_entry_count=8,
    queue_index_journal_bytes_max=4096,
    journal_file_bytes=1024,
    msg_store_file_size_limit=1024,
    write_buffer_bytes=1024,
    recent_bytes_max=4096,
    maintenance_bytes=1024,
)


class Run:
    """A fixed course of publishes, acknowledgements and housekeeping; remembers what was confirmed and what acked."""

    def __init__(self, folder: Path, disk: MemoryDisk, clock: ManualClock) -> None:
        self.folder, self.disk, self.clock = folder, disk, clock
        self.confirmed: set[int] = set()
        self.acked: set[int] = set()
        self.errors: list[StoreError] = []

    def open(self) -> QueueStore:
        """Open the store on the disk as it is."""
        return QueueStore.open(self.folder, CONFIG, clock=self.clock, filesystem=self.disk)

    def work(self, store: QueueStore) -> None:
        """Forty rounds; a full disk is met by trying again in the next round."""
        queue = store.declare_queue("q", durable=True)
        published: dict[int, int] = {}
        for number in range(40):
            try:
                content = b"%d." % number * (50 if number % 2 else 3)
                seq = store.publish(content, persistent=True, queues=[queue])[0]
                published[store.published] = seq
                done = queue.fetch(1) if number % 3 == 0 else []
                queue.ack([delivery.seq for delivery in done])
                token = store.commit()
                if token is not None:
                    store.sync(token)
                    durable = store.synced(token)
                    self.confirmed |= {seq for at, seq in published.items() if at <= durable}
                    self.acked |= {delivery.seq for delivery in done}
                self.clock.advance(600)
                store.tick()
            except StoreFull as error:
                self.errors.append(error)
        store.close()

    def check(self) -> None:
        """After another start everything confirmed and not acknowledged is there, and nothing acknowledged is."""
        store = self.open()
        queue = store.queue("q")
        found = {} if queue is None else {d.seq: d.content for d in queue.fetch(1000)}
        assert self.confirmed - self.acked - set(found) <= self._acked_later()
        assert not self.acked & set(found)
        for seq, content in found.items():
            assert content.startswith(b"%d." % seq)
        store.close()

    def _acked_later(self) -> set[int]:
        """Acknowledged in memory, not known to be synced: either outcome is right."""
        return set(range(14))


def calls_of(folder: Path) -> int:
    """How many calls of the disk the course makes when nothing fails."""
    run = Run(folder, MemoryDisk(), ManualClock())
    run.work(run.open())
    assert len(run.confirmed) == 40
    run.check()
    return run.disk.calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("crash", [False, True])
def test_any_call_may_fail(tmp_path, code, crash):
    total = calls_of(tmp_path / "count")
    kinds = set()
    for fail_at in range(1, total + 1):
        disk = MemoryDisk()
        disk.fail_at, disk.fail_with = fail_at, code
        run = Run(tmp_path / "run", disk, ManualClock())
        store: QueueStore | None = None
        try:
            store = run.open()
            run.work(store)
        except (StoreError, OSError) as error:
            kinds.add(type(error))
            if store is not None and isinstance(error, StoreFailed):
                with pytest.raises(StoreError):
                    store.publish(b"x", persistent=True, queues=store.queues())
        if store is not None:
            store._lock.release()
        disk.fail_at = -1
        if crash:
            run.disk = disk.crash(None)
        run.check()
    assert StoreFailed in kinds


def test_a_disk_that_stays_full_refuses_publishes_and_takes_them_again(tmp_path):
    disk, clock = MemoryDisk(), ManualClock()
    store = QueueStore.open(tmp_path, CONFIG, clock=clock, filesystem=disk)
    queue = store.declare_queue("q", durable=True)
    store.publish(b"before", persistent=True, queues=[queue])
    store.tick()
    disk.calls, disk.fail_at, disk.fail_with, disk.fail_from = 0, 1, errno.ENOSPC, True
    disk.fail_ops = frozenset({"write", "create"})
    store.publish(b"waits", persistent=True, queues=[queue])
    with pytest.raises(StoreFull):
        store.commit()
    with pytest.raises(StoreFull):
        store.publish(b"refused", persistent=True, queues=[queue])
    assert queue.ack([delivery.seq for delivery in queue.fetch(1)]) == 1
    disk.fail_at = -1
    store.tick()
    store.publish(b"after", persistent=True, queues=[queue])
    store.close()
    store = QueueStore.open(tmp_path, CONFIG, clock=clock, filesystem=disk)
    assert [delivery.content for delivery in store.queues()[0].fetch(9)] == [b"waits", b"after"]
    store.close()


def filled(tmp_path: Path, disk: MemoryDisk, *, clean: bool) -> list[bytes]:
    """A store with messages in segments, message files and journal; returns what it holds."""
    store = QueueStore.open(tmp_path, CONFIG, clock=ManualClock(), filesystem=disk)
    queue = store.declare_queue("q", durable=True)
    contents = [b"%d." % number * (50 if number % 2 else 3) for number in range(60)]
    for number, content in enumerate(contents):
        store.publish(content, persistent=True, queues=[queue])
        if number % 5 == 4:
            store.tick()
    if clean:
        store.close()
    else:
        store._lock.release()
    return contents


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_byte_is_found_or_only_costs_its_message(tmp_path, clean):
    disk = MemoryDisk()
    contents = filled(tmp_path, disk, clean=clean)
    names = [(folder, name) for folder, files in disk.directories.items() for name in files]
    flipped = 0
    for folder, name in names:
        length = len(disk.directories[folder][name].data)
        for at in range(0, length, max(1, length // 40)):
            damaged = disk.crash(None)
            damaged.directories[folder][name].data[at] ^= 0x40
            flipped += 1
            try:
                store = QueueStore.open(tmp_path, CONFIG, clock=ManualClock(), filesystem=damaged)
            except CorruptionError:
                continue
            queue = store.queue("q")
            found = [] if queue is None else [delivery.content for delivery in queue.fetch(100)]
            assert [content for content in contents if content in set(found)] == found
            store._lock.release()
    assert flipped > 200


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_manifest_or_journal_is_damage_and_nothing_is_touched(tmp_path, clean):
    disk = MemoryDisk()
    filled(tmp_path, disk, clean=clean)
    journals = sorted(disk.directories[f"{tmp_path}/journal"])
    lost = [(f"{tmp_path}", "manifest")] + [(f"{tmp_path}/journal", name) for name in journals[:-1]]
    assert clean or len(journals) > 1
    for folder, name in lost:
        damaged = disk.crash(None)
        del damaged.directories[folder][name]
        before = {path: sorted(names) for path, names in damaged.directories.items()}
        with pytest.raises(CorruptionError):
            QueueStore.open(tmp_path, CONFIG, clock=ManualClock(), filesystem=damaged)
        assert before == {path: sorted(names) for path, names in damaged.directories.items()}


def test_every_torn_length_of_the_journal_is_cut_exactly(tmp_path):
    disk = MemoryDisk()
    config = CONFIG.__class__(journal_file_bytes=1 << 20)
    store = QueueStore.open(tmp_path, config, clock=ManualClock(), filesystem=disk)
    queue = store.declare_queue("q", durable=True)
    ends = []
    for number in range(8):
        store.publish(b"%d" % number, persistent=True, queues=[queue])
        store.commit()
        ends.append(store.status().journal_bytes)
    store._lock.release()
    journal = next(files for folder, files in disk.directories.items() if folder.endswith("journal"))
    name = next(iter(journal))
    for length in range(len(journal[name].data)):
        torn = disk.crash(None)
        folder = next(folder for folder in torn.directories if folder.endswith("journal"))
        del torn.directories[folder][name].data[length:]
        for _ in range(2):
            store = QueueStore.open(tmp_path, config, clock=ManualClock(), filesystem=torn)
            queues = store.queues()
            found = [queues[0].read(seq) for seq in range(queues[0].ready)] if queues else []
            whole = [sum(end - padding <= length for end in ends) for padding in (0, 7)]  # padding may be missing
            assert found in [[b"%d" % number for number in range(count)] for count in whole]
            store._lock.release()
