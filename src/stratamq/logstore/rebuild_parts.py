"""Consume queues and index made anew from the commit log, in parts that know nothing of each other.

The log is only read. Three kinds of tasks, in this order, with a spool directory between them:

1. `scan_part`: some whole files of the log, checked and taken apart as recovery does; what dispatch needs of the
   records goes into the spool;
2. `write_queues`: one share of the queues, from all of the spool, by the code that recovery dispatches with. A queue is
   in the share that its name falls into, so shares need no list of queues;
3. `write_index_file`: the n-th index file. How many keys a file takes is fixed, so each knows where it begins.

The same records go through the same code in the same order as in a broker, so the files are the same byte for byte,
apart from two things: an index file is named after the time of its first message, where a broker names it after the
time of its making; and where old files of the log have expired, queues begin with the log's first record.

A part that is done is a directory without ``.tmp`` in the spool and is not done again.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stratamq.config import StoreConfig
from stratamq.errors import CorruptionError
from stratamq.files.filesystem import LocalFileSystem
from stratamq.files.handles import HandleCache
from stratamq.formats.index import IndexHeader
from stratamq.formats.java import index_key_hashes
from stratamq.formats.message import SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK
from stratamq.logstore import layout, listing
from stratamq.logstore.block_scan import Block
from stratamq.logstore.commit_log import CommitLog
from stratamq.logstore.consume_queue import ConsumeQueue
from stratamq.logstore.deletions import Deletions
from stratamq.logstore.dispatch import index_keys
from stratamq.logstore.index_file import IndexFile
from stratamq.logstore.log_paths import LogPaths, recorded_paths
from stratamq.logstore.queue_table import QueueTable
from stratamq.logstore.queue_types import batch_topics
from stratamq.logstore.recovery import take_all
from stratamq.logstore.redispatch import Parts, Plan, RecoveryReport, Redispatcher
from stratamq.logstore.scan import Scanned, corruption

KEYS_DTYPE: Final = np.dtype([("key_hash", "<i8"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
KEYS_FILE: Final = "keys.npy"
HANDLES_MAX: Final = 256
_PUT_AT_ONCE: Final = 1 << 16
_EVERYTHING: Final = 2**63 - 1

Json = dict[str, Any]
Keys = npt.NDArray[Any]


class Source(NamedTuple):
    """The log that is read: where, how long its files are, where it ends, and the settings that shape what is made."""

    root: str
    spool: str
    file_bytes: int
    bases: tuple[int, ...]
    end: int
    config: StoreConfig
    delay_levels: tuple[int, ...]


class ScanTask(NamedTuple):
    """Files of the log that follow each other, from the one at ``bases[0]`` on."""

    source: Source
    bases: tuple[int, ...]


class QueuesTask(NamedTuple):
    """One share of the queues, to be written below ``out``."""

    source: Source
    parts: tuple[str, ...]
    out: str
    share: int
    shares: int


class IndexTask(NamedTuple):
    """One index file: keys ``[first, last)`` of all, ``counts`` being how many each part of the spool has."""

    source: Source
    parts: tuple[str, ...]
    counts: tuple[int, ...]
    path: str
    first: int
    last: int


# --- 1: the log ---------------------------------------------------------------------------------------------------


def part_name(task: ScanTask) -> str:
    """The spool's directory of a part."""
    return f"{task.bases[0]:020d}-{min(task.source.end, task.bases[-1] + task.source.file_bytes):020d}"


def scan_part(task: ScanTask) -> Json:
    """Put a part of the log into the spool. Returns its records and keys.

    Raises CorruptionError at a record that is not good: a rebuilt queue must not end there in silence.
    """
    target = os.path.join(task.source.spool, part_name(task))
    if not os.path.isdir(target):
        making = target + ".tmp"
        shutil.rmtree(making, ignore_errors=True)
        os.makedirs(making)
        recorder = _Recorder(making)
        _scan(task, recorder)
        recorder.close()
        try:
            os.rename(making, target)
        except OSError:  # a second run of this task was first
            shutil.rmtree(making, ignore_errors=True)
    with open(os.path.join(target, "about.json"), encoding="utf-8") as file:
        about: Json = json.load(file)
    return about


def _scan(task: ScanTask, recorder: _Recorder) -> None:
    source = task.source
    stop_at = min(source.end, task.bases[-1] + source.file_bytes)
    parts = _parts(source, bases=task.bases)
    walk = take_all(
        parts,
        recorder,
        task.bases[0],
        verify_from=task.bases[0],
        doubt_from=None,
        stop_at=stop_at,
        report=lambda at: None,
    )
    if walk.position < stop_at and walk.stop is not None:
        hint = "nothing was changed; `stratamq store check` lists all damage"
        raise corruption(parts.log, walk.stop, hint)


class _Recorder:
    """Takes what recovery would dispatch, and writes it down in pieces."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pieces = self._records = 0
        self._rows: list[Scanned] = []
        self._keys: list[Keys] = []

    def add(self, scanned: Scanned) -> None:
        """One record."""
        self._rows.append(scanned)

    def add_block(self, block: Block) -> None:
        """Many records that follow each other."""
        self.finish(0)
        columns = {name: value for name, value in block._asdict().items() if isinstance(value, np.ndarray)}
        others = {name: value for name, value in block._asdict().items() if name not in columns}
        self._write(columns, {"block": others})
        self._records += len(block.physical_offsets)
        rows = block.key_rows
        self._add_keys(block.key_hashes, block.physical_offsets[rows], block.store_timestamps[rows])

    def finish(self, position: int) -> None:
        """Write the records that came one by one."""
        if self._rows:
            self._write({}, {"rows": self._rows})
            self._records += len(self._rows)
            self._add_row_keys()
            self._rows = []

    def _add_row_keys(self) -> None:
        pairs = [
            (row.topic, key, row.physical_offset, row.store_timestamp)
            for row in self._rows
            if row.properties and row.sys_flag & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK
            for key in index_keys(row.properties)
        ]
        if pairs:
            hashes = np.array(index_key_hashes([(topic, key) for topic, key, _, _ in pairs]), dtype=np.int64)
            places = np.array([(place, time) for _, _, place, time in pairs], dtype=np.int64)
            self._add_keys(hashes, places[:, 0], places[:, 1])

    def _add_keys(self, hashes: Any, physical_offsets: Any, store_timestamps: Any) -> None:
        keys = np.empty(len(hashes), dtype=KEYS_DTYPE)
        keys["key_hash"], keys["physical_offset"] = hashes, physical_offsets
        keys["store_timestamp"] = store_timestamps
        self._keys.append(keys)

    def _write(self, columns: dict[str, Any], meta: Json) -> None:
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        np.savez(os.path.join(self._directory, f"{self._pieces:08d}.npz"), meta=text, **columns)
        self._pieces += 1

    def close(self) -> None:
        """Write the keys, and what the part holds."""
        self.finish(0)
        keys = np.concatenate([np.zeros(0, KEYS_DTYPE), *self._keys])
        np.save(os.path.join(self._directory, KEYS_FILE), keys)
        with open(os.path.join(self._directory, "about.json"), "w", encoding="utf-8") as file:
            json.dump({"records": self._records, "keys": len(keys), "pieces": self._pieces}, file)


def pieces_of(directory: str) -> Iterator[Block | list[Scanned]]:
    """What a part of the spool holds, in order."""
    for name in sorted(name for name in os.listdir(directory) if name.endswith(".npz")):
        with np.load(os.path.join(directory, name), allow_pickle=False) as data:
            meta = json.loads(data["meta"].tobytes())
            if "rows" in meta:
                yield [Scanned(*row) for row in meta["rows"]]
                continue
            fields: dict[str, Any] = {key: data[key] for key in data.files if key != "meta"}
            for key, value in meta["block"].items():
                fields[key] = [tuple(row) for row in value] if isinstance(value, list) else value
            yield Block(**fields)


# --- 2: queues ----------------------------------------------------------------------------------------------------


class _Share(set[ConsumeQueue]):
    """Says of any queue whether it is in a share."""

    def __init__(self, share: int, shares: int) -> None:
        super().__init__()
        self._share, self._shares = share, shares

    def __contains__(self, queue: object) -> bool:
        if not isinstance(queue, ConsumeQueue) or queue.is_batch:  # queues of batches stay as they are
            return False
        return share_of(queue.key, self._shares) == self._share


def share_of(key: tuple[str, int], shares: int) -> int:
    """Which of so many shares a queue is in."""
    return zlib.crc32(f"{key[0]}/{key[1]}".encode()) % shares


def write_queues(task: QueuesTask) -> Json:
    """Write one share of the queues below ``out``, synced. Returns their number and units; done again, the same.

    Raises CorruptionError, OSError.
    """
    source = task.source
    fs, handles = LocalFileSystem(), HandleCache(LocalFileSystem(), HANDLES_MAX)
    table = QueueTable(
        fs,
        os.path.join(task.out, layout.CONSUME_QUEUE),
        source.config.consume_queue_file_bytes_rounded,
        handles,
        batch_topics=batch_topics(source.root) | {key.topic for key, _ in listing.list_batch_queues(source.root)},
    )
    _remove_share(table.directory, task)
    try:
        parts = replace(_parts(source, bases=source.bases), queues=table)
        low = source.bases[0] if source.bases else 0
        plan = Plan(0, _EVERYTHING, low, low, from_first=True)
        dispatcher = Redispatcher(parts, plan, RecoveryReport(), _Share(task.share, task.shares))
        for name in task.parts:
            for piece in pieces_of(os.path.join(source.spool, name)):
                if isinstance(piece, Block):
                    dispatcher.add_block(piece)
                else:
                    for scanned in piece:
                        dispatcher.add(scanned)
                    dispatcher.finish(0)
        for queue in dispatcher.broken:
            raise CorruptionError(queue.directory, 0, "a queue that follows the commit log", "offsets that go back")
        work = table.take_sync_work(everything=True)
    finally:
        handles.close()
    for path in work.paths:
        _sync(path)
    for directory in work.directories:
        fs.sync_directory(directory)
    mine = [queue for queue in table.values() if queue.bases and not queue.is_batch]
    return {"queues": len(mine), "units": sum(queue.filed_offset - queue.bases[0] // 20 for queue in mine)}


def _remove_share(directory: str, task: QueuesTask) -> None:
    """Remove what a run of this task that was killed has left."""
    for key, path in listing.list_queues(os.path.dirname(directory)):
        if share_of(key, task.shares) == task.share:
            shutil.rmtree(path)
    os.makedirs(directory, exist_ok=True)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- 3: the index -------------------------------------------------------------------------------------------------


def index_tasks(source: Source, parts: Sequence[str], counts: Sequence[int], out: str, newest: int) -> list[IndexTask]:
    """A task for each index file. ``newest`` is the name that the last one is to have, where it fits; 0 for none."""
    capacity, total = source.config.index_entries - 1, sum(counts)
    starts = list(range(0, total, capacity))
    spooled = [_keys_file(source, name) for name in parts]
    names: list[int] = []
    for first in starts:
        stored = int(_slice_of(spooled, counts, first, first + 1)["store_timestamp"][0])
        made = datetime.fromtimestamp(max(0, stored) / 1000)  # noqa: DTZ006 - RocketMQ names files in local time
        name = int(made.strftime("%Y%m%d%H%M%S%f")[: listing.INDEX_NAME_DIGITS])
        names.append(max(name, names[-1] + 1) if names else name)
    if names and newest > (names[-2] if len(names) > 1 else 0):
        names[-1] = newest
    return [
        IndexTask(
            source,
            tuple(parts),
            tuple(counts),
            os.path.join(out, layout.INDEX, f"{name:0{listing.INDEX_NAME_DIGITS}d}"),
            first,
            min(total, first + capacity),
        )
        for first, name in zip(starts, names, strict=True)
    ]


def write_index_file(task: IndexTask) -> Json:
    """Write one index file, synced. Done again, the same."""
    config = task.source.config
    spooled = [_keys_file(task.source, name) for name in task.parts]
    os.makedirs(os.path.dirname(task.path), exist_ok=True)
    if os.path.exists(task.path):
        os.unlink(task.path)
    file = IndexFile(LocalFileSystem(), task.path, config.index_slots, config.index_entries, create=True)
    try:
        if task.first:
            last = _slice_of(spooled, task.counts, task.first - 1, task.first)[0]
            time, place = int(last["store_timestamp"]), int(last["physical_offset"])
            file.begin_after(IndexHeader(time, time, place, place, 0, 1))
        for at in range(task.first, task.last, _PUT_AT_ONCE):
            keys = _slice_of(spooled, task.counts, at, min(task.last, at + _PUT_AT_ONCE))
            file.reserve(len(keys))
            columns = (keys[name].astype(np.int64) for name in ("key_hash", "physical_offset", "store_timestamp"))
            file.put(*columns)
    finally:
        file.close()
    _sync(task.path)
    return {"entries": task.last - task.first}


def _keys_file(source: Source, part: str) -> Keys:
    found: Keys = np.load(os.path.join(source.spool, part, KEYS_FILE), mmap_mode="r", allow_pickle=False)
    return found


def _slice_of(spooled: Sequence[Keys], counts: Sequence[int], first: int, last: int) -> Keys:
    """Keys ``[first, last)`` of all parts together."""
    found: list[Keys] = [np.zeros(0, KEYS_DTYPE)]
    at = 0
    for keys, count in zip(spooled, counts, strict=True):
        if at < last and at + count > first:
            found.append(keys[max(0, first - at) : last - at])
        at += count
    return np.concatenate(found)


# --- what they share ----------------------------------------------------------------------------------------------


def _parts(source: Source, *, bases: Sequence[int]) -> Parts:
    """What recovery's code works on: a log of some files, no queues yet, no index."""
    fs = LocalFileSystem()
    paths = recorded_paths(source.root)
    places = {file.base: os.path.dirname(file.path) for file in listing.list_stream(paths.every).files}
    log = CommitLog(fs, LogPaths(paths.every), source.file_bytes, {base: places[base] for base in bases})
    queues = QueueTable(fs, "", source.config.consume_queue_file_bytes_rounded, HandleCache(fs, HANDLES_MAX))
    return Parts(
        fs=fs,
        directory=source.root,
        config=source.config,
        log=log,
        queues=queues,
        index=None,
        delay_levels=source.delay_levels,
        deletions=Deletions(fs, source.root),
    )
