"""What stands for the part of a member's log that is deleted: the file ``raft.snapshot``, and what a leader sends.

Messages are not in it: they are what was deleted. In it are the terms and members that control records down there
named, the tables, and where queues go on of which no record is left. Byte table: docs/formats/raft.md.

A member that lacks deleted bytes begins anew: the leader's snapshot is put into place as one that is to be installed,
durably, and only then, when the store is opened again, everything else goes. A crash in between only repeats that.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratamq.config import StoreConfig
from stratamq.errors import ChecksumMismatch
from stratamq.files.durable import read_file, replace_file
from stratamq.files.filesystem import LocalFileSystem
from stratamq.logstore import layout
from stratamq.logstore.lock import StoreLock
from stratamq.logstore.log_paths import prepare_paths
from stratamq.replication.control import Table
from stratamq.replication.log_store import MemberStore
from stratamq.replication.members import Config, Member

SNAPSHOT_FILE: Final = "raft.snapshot"
SNAPSHOT_BYTES_MAX: Final = 7 * 1024 * 1024
"""A snapshot goes into one frame."""
_GOES: Final = (
    layout.CONSUME_QUEUE,
    layout.BATCH_CONSUME_QUEUE,
    layout.CONSUME_QUEUE_EXT,
    layout.INDEX,
    layout.CHECKPOINT,
    layout.DELETED_TOPICS,
)


class Snapshot(NamedTuple):
    """State of a group at ``start``, where the log begins."""

    start: int
    epochs: list[tuple[int, int]]
    members: tuple[int, Config] | None
    """End of the record that named them, and the members; None when none did."""
    tables: dict[str, tuple[int, Table]]
    queues: list[tuple[str, int, int]]
    """(topic, queue, next offset) of queues without a record from ``start`` on."""
    is_install: bool = False
    """The store is still another one and has to go."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A line of JSON with the CRC-32 of the second line, which has everything else."""
    members = snapshot.members
    body = json.dumps(
        {
            "start": snapshot.start,
            "install": snapshot.is_install,
            "epochs": snapshot.epochs,
            "members": None if members is None else [members[0], members[1].voters, members[1].learners],
            "tables": {name: [end, table.value] for name, (end, table) in snapshot.tables.items()},
            "queues": snapshot.queues,
        },
        separators=(",", ":"),
    ).encode()
    return json.dumps({"version": 1, "crc32": zlib.crc32(body)}).encode() + b"\n" + body


def decode_snapshot(data: bytes, where: str) -> Snapshot:
    """The opposite. Raises ChecksumMismatch for what is no snapshot."""
    head, _, body = data.partition(b"\n")
    try:
        found = json.loads(head)
        if found["version"] != 1 or found["crc32"] != zlib.crc32(body):
            raise ValueError(found)
        return _from_json(json.loads(body))
    except (ValueError, KeyError, TypeError) as error:
        hint = "empty the data directory: the node then comes back as a new member"
        raise ChecksumMismatch(where, 0, "a snapshot", repr(head[:60]), hint=hint) from error


def _from_json(value: dict[str, Any]) -> Snapshot:
    members = value["members"]
    named = None
    if members is not None:
        voters, learners = (tuple(Member(str(node), int(number)) for node, number in row) for row in members[1:3])
        named = (int(members[0]), Config(voters, learners))
    start = int(value["start"])
    if start < 0:
        raise ValueError(start)
    return Snapshot(
        start,
        [(int(term), int(at)) for term, at in value["epochs"]],
        named,
        {str(name): (int(end), Table(str(name), table)) for name, (end, table) in value["tables"].items()},
        [(str(topic), int(queue), int(offset)) for topic, queue, offset in value["queues"]],
        bool(value["install"]),
    )


def path_of(directory: str) -> str:
    """Where a member's snapshot lies."""
    return str(Path(directory) / SNAPSHOT_FILE)


def load_snapshot(directory: str) -> Snapshot | None:
    """A member's snapshot; None when nothing of its log was ever deleted. Raises ChecksumMismatch, OSError."""
    data = read_file(path_of(directory))
    return None if data is None else decode_snapshot(data, path_of(directory))


def clear_for_install(directory: str, config: StoreConfig) -> None:
    """Before a store is opened: remove it when a snapshot is to be installed. Raises StoreLocked, StrataError, OSError.

    Afterwards the log is empty, and `begin` lets it begin where the snapshot says.
    """
    snapshot = load_snapshot(directory)
    if snapshot is None or not snapshot.is_install:
        return
    lock = StoreLock(directory)
    try:
        gone = [*prepare_paths(LocalFileSystem(), directory, config).every]
        for path in [*map(Path, gone), *(Path(directory) / name for name in _GOES)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        LocalFileSystem().sync_directory(directory)
        replace_file(path_of(directory), encode_snapshot(snapshot._replace(is_install=False)))
    finally:
        lock.release()


def begin(store: MemberStore, snapshot: Snapshot) -> None:
    """Right after opening: an empty log begins where the snapshot says, and queues without records go on there."""
    if store.min_physical_offset == store.max_physical_offset < snapshot.start:
        store.begin_at(snapshot.start)
    _, queues, _ = store.retained()
    for topic, number, offset in snapshot.queues:
        queue = queues.open(topic, number)
        if not queue.bases and queue.next_offset < offset:
            queue.begin_at(offset)


def queue_ends(store: MemberStore, start: int) -> list[tuple[str, int, int]]:
    """(topic, queue, next offset) of queues that have no record from ``start`` on."""
    _, queues, _ = store.retained()
    return [
        (*queue.key, queue.written_offset)
        for queue in queues.values()
        if not queue.is_batch and queue.max_physical_offset <= start and queue.written_offset
    ]
