"""Any one damage to any file of a queue store: a typed error, or what is lost lay in that file, and no body is wrong.

Damage is a flipped bit, a file cut short, or a sector of zeros, wherever Hypothesis likes it.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.config import QueueStoreConfig
from stratamq.errors import CorruptionError
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
Key = tuple[str, int]
"""Queue and sequence number."""


class Filled(NamedTuple):
    """A store's disk, what was ever published, what is in the store, and in which file each message lies."""

    disk: MemoryDisk
    published: dict[Key, bytes]
    contents: dict[Key, bytes]
    places: dict[Key, set[str]]


def content_of(number: int) -> bytes:
    """Small or large, and telling which."""
    return b"%d." % number * (40 if number % 3 == 0 else 4)


def open_store(folder: str, disk: MemoryDisk) -> QueueStore:
    """Open it as it is."""
    return QueueStore.open(folder, CONFIG, clock=ManualClock(), filesystem=disk)


def messages_in(store: QueueStore) -> dict[Key, bytes | None]:
    """Every message, None for one whose bytes are damaged."""
    found: dict[Key, bytes | None] = {}
    for queue in store.queues():
        for seq in queue.numbers_between(0, queue.next_seq):
            try:
                found[queue.name, seq] = queue.read(seq)
            except CorruptionError:
                found[queue.name, seq] = None
    return found


def places_in(store: QueueStore) -> dict[Key, set[str]]:
    """Files that hold a message's entry and body. What is in no segment yet lies in the journal."""
    places: dict[Key, set[str]] = {}
    for queue in store.queues():
        for segment in queue.segments.values():
            for seq in queue.numbers_between(segment.first, segment.end):
                is_flushed = seq < segment.flushed
                files = {store._index.path_of(queue.id, segment) if is_flushed else store._journal.directory}
                entry = queue.entry(seq)
                if not entry.kind & 1:
                    file, _ = store._persistent._find(entry.locator)
                    files.add(store._persistent.path_of(file.number))
                places[queue.name, seq] = files
    return places


@functools.cache
def filled(folder: str, clean: bool) -> Filled:
    """Three queues with messages in segments, message files and, after a kill, the journal."""
    disk = MemoryDisk()
    store = open_store(folder, disk)
    queues = [store.declare_queue(name, durable=True) for name in "abc"]
    published: dict[Key, bytes] = {}
    for number in range(120):
        targets = queues if number % 4 == 0 else [queues[number % 3]]
        seqs = store.publish(content_of(number), persistent=True, queues=targets)
        published |= {(queue.name, seq): content_of(number) for queue, seq in zip(targets, seqs, strict=True)}
        if number % 10 == 9:
            for queue in queues:
                queue.ack([delivery.seq for delivery in queue.fetch(2)])
        if number % 5 == 4:
            store.tick()
    contents = {key: content for key, content in messages_in(store).items() if content is not None}
    if clean:
        store.close()
    else:
        store._lock.release()
        disk = disk.crash(None)
    again = open_store(folder, disk.crash(None))
    assert messages_in(again) == contents
    places = places_in(again)
    again._lock.release()
    kinds = {os.path.basename(os.path.dirname(path)) for files in places.values() for path in files}
    assert clean or len(kinds) >= 3
    return Filled(disk, published, contents, places)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Where the stores say that they lie; the files are in memory."""
    return str(tmp_path_factory.mktemp("store"))


DAMAGES = st.sampled_from(["flip", "cut", "zeros"])


def do_damage(disk, pick: int, damage: str, where: float, bit: int) -> tuple[str, int]:
    """Damage one file; its path, and where in it."""
    names = sorted((directory, name) for directory, files in disk.directories.items() for name in files)
    directory, name = names[pick % len(names)]
    data = disk.directories[directory][name].data
    at = int(where * len(data))
    if damage == "flip" and data:
        data[at] ^= 1 << bit
    elif damage == "cut":
        del data[at:]
    else:
        at -= at % 512
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    return os.path.join(directory, name), at


@settings(max_examples=400, deadline=None)
@given(
    clean=st.booleans(),
    pick=st.integers(0, 10_000),
    damage=DAMAGES,
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_one_damage_costs_nothing_beyond_its_file(folder, clean, pick, damage, where, bit):
    before = filled(folder, clean)
    disk = before.disk.crash(None)
    path, _ = do_damage(disk, pick, damage, where, bit)
    store = open_or_refuse(folder, disk)
    if store is None:  # what says which messages there are may not be guessed
        assert path.endswith((".jnl", "manifest")), f"{path} keeps the store from being opened"
        return
    try:
        compare(before, messages_in(store), path)
        for queue in store.queues():  # what is damaged holds nobody else up
            got = {(queue.name, delivery.seq): delivery.content for delivery in queue.fetch(1000)}
            assert all(before.published[key] == content for key, content in got.items())
    finally:
        store._lock.release()


def open_or_refuse(folder: str, disk: MemoryDisk) -> QueueStore | None:
    """The store; None where it is refused with a typed error."""
    try:
        return open_store(folder, disk)
    except CorruptionError:
        return None


def compare(before: Filled, found: dict[Key, bytes | None], path: str) -> None:
    """No message is wrong, those that are missing lay in the damaged file, and only a cut journal forgets an ack."""
    for key, content in found.items():
        assert content is None or content == before.published[key]
        assert key in before.contents or path.endswith(".jnl"), f"{path} is damaged, and message {key} is back"
    missing = [key for key in before.contents if found.get(key) is None]
    in_journal = os.path.dirname(path) if path.endswith(".jnl") else ""
    for key in missing:
        assert before.places[key] & {path, in_journal}, f"{path} is damaged, and message {key} is lost"
