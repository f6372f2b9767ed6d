"""What the log store's tests share: small stores, messages, reading a queue whole, a process that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratamq.clock import Clock
from stratamq.config import FlushMode, StoreConfig
from stratamq.files.filesystem import FileSystem, LocalFileSystem
from stratamq.formats.message import Record, decode_record, encode_host
from stratamq.formats.properties import encode_properties
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import GetStatus, Message, QueueKey
from stratamq.testing.clock import ManualClock

HOST = encode_host("10.0.0.1", 50000)
STORE_HOST = encode_host("10.0.0.2", 10911)
FOREVER = 2**62


def small_config(**changes: Any) -> StoreConfig:
    """Settings with which a few messages fill several files."""
    settings: dict[str, Any] = {
        "commit_log_file_bytes": 4096,
        "consume_queue_file_bytes": 200,
        "index_slots": 16,
        "index_entries": 64,
        "flush_mode": FlushMode.ASYNC,
    }
    return StoreConfig(**(settings | changes))


def open_store(
    directory: Path, config: StoreConfig | None = None, *, fs: FileSystem | None = None, clock: Clock | None = None
) -> LogStore:
    """Open a store with small files and a clock that stands still."""
    return LogStore.open(
        directory, config or small_config(), clock=clock or ManualClock(), store_host=STORE_HOST, filesystem=fs
    )


def message(body: bytes | str = b"x", *, topic: str = "T", queue_id: int = 0, **fields: Any) -> Message:
    """A message; upper-case fields are properties."""
    properties = {name: str(fields.pop(name)) for name in list(fields) if name.isupper()}
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=body.encode() if isinstance(body, str) else body,
        properties=encode_properties(properties),
        born_timestamp=1_600_000_000_000,
        born_host=HOST,
        **fields,
    )


def put(store: LogStore, *messages: Message, sync: bool = True) -> None:
    """Append each message on its own, commit, and bring it to the disk."""
    for one in messages:
        store.append((one,))
    token = store.commit()
    if token is not None and sync:
        store.sync(token)
        store.synced(token)


def records_of(view: memoryview) -> Iterator[Record]:
    """The records in a view of adjacent ones."""
    at = 0
    while at < len(view):
        record = decode_record(view, at)
        yield record
        at += record.size


def read_all(store: LogStore, topic: str = "T", queue_id: int = 0, *, batch: int = 7) -> list[Record]:
    """Everything in a queue; checks that offsets follow each other."""
    found: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, batch)
        assert result.status is GetStatus.FOUND, result
        records = [record for view in result.records for record in records_of(view)]
        assert len(records) == result.message_count
        assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
        assert result.next_offset == offset + len(records)
        found += records
        offset = result.next_offset
    return found


def bodies(store: LogStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """The bodies in a queue, in order."""
    return [record.body for record in read_all(store, topic, queue_id)]


def contents(store: LogStore) -> dict[QueueKey, list[bytes]]:
    """The bodies in all queues."""
    return {key: bodies(store, *key) for key in store.queues()}


def abandon(store: LogStore) -> None:
    """Drop a store as a killed process does: nothing is written, only the lock and the descriptors go."""
    store._fs = store._log._fs = store._handles._fs = store._checkpoint._fs = LocalFileSystem()
    if store._index is not None:
        for file in store._index.files:
            file._fs = LocalFileSystem()
    store._closed = True
    store._close_files()
    store._handles.close()
    store._lock.release()
