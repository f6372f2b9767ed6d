"""What is in a store and in what state it is, for an operator: plain values, no text but the sentences of `meaning`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratamq.findings import Findings
from stratamq.formats.checkpoint import Checkpoint
from stratamq.formats.consume_queue import UNIT_BYTES
from stratamq.formats.vector import byte_view
from stratamq.logstore import check_meta, listing, mappings
from stratamq.logstore.batch_files import batch_queues, units_between
from stratamq.logstore.check_index import IndexFile
from stratamq.logstore.listing import PlainFile
from stratamq.logstore.liveness import Liveness
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.logstore.types import Progress
from stratamq.logstore.words import format_ms
from stratamq.units import format_bytes

_UNITS_A_READ = 1_000_000


class LogFileView(NamedTuple):
    """One commit-log file: where it begins, how much of it is used, and when its first record was stored."""

    path: str
    base: int
    length: int
    used: int
    allocated_bytes: int
    first_stored_ms: int


class QueueView(NamedTuple):
    """One queue: its range, its messages, the bytes of their records, and when the newest was stored."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    size_bytes: int
    newest_ms: int
    unconfirmed: int


class IndexView(NamedTuple):
    """One index file: how full it is, and which times and offsets it covers."""

    path: str
    length: int
    slots: int
    used_slots: int
    entries: int
    entries_max: int
    begin_ms: int
    end_ms: int
    begin_physical_offset: int
    end_physical_offset: int


class TopicView(NamedTuple):
    """One topic as the configuration has it."""

    name: str
    read_queues: int
    write_queues: int
    perm: str


class GroupView(NamedTuple):
    """How far a consumer group is in one topic. ``lag`` is None where a queue is not in the store."""

    group: str
    topic: str
    queues: int
    offset: int
    lag: int | None


class StoreView(NamedTuple):
    """Everything `inspect_store` finds out."""

    path: str
    liveness: Liveness
    min_physical_offset: int
    max_physical_offset: int
    end_reason: str
    newest_ms: int
    checkpoint: Checkpoint | None
    log_files: list[LogFileView]
    queues: list[QueueView]
    index_files: list[IndexView]
    config_files: list[PlainFile]
    topics: list[TopicView]
    groups: list[GroupView]
    meaning: list[str]


def inspect_store(path: Path, progress: Progress | None = None) -> StoreView:
    """Look into the store directory ``path``. Changes nothing.

    Cost: walks the newest commit-log file and reads every consume-queue unit, 20 bytes a message.

    Raises:
        NotAStore, StrayFile, BadLength: It cannot be read as it is; ``store check`` says all that is wrong.
    """
    with StoreSnapshot.open(path) as snapshot:
        config = check_meta.check_config(snapshot, Findings())
        queues = sorted(_queues(snapshot, progress) + _batch_queues(snapshot))
        index_files = _index_files(snapshot)
        view = StoreView(
            path=str(path),
            liveness=snapshot.liveness,
            min_physical_offset=snapshot.min_physical_offset,
            max_physical_offset=snapshot.max_physical_offset,
            end_reason=snapshot.end.reason,
            newest_ms=snapshot.end.newest_ms,
            checkpoint=snapshot.checkpoint,
            log_files=_log_files(snapshot),
            queues=queues,
            index_files=index_files,
            config_files=listing.list_config_files(str(path)),
            topics=_topics(config),
            groups=_groups(config, queues),
            meaning=[],
        )
        view.meaning.extend(_meaning(snapshot, view))
        return view


def _log_files(snapshot: StoreSnapshot) -> list[LogFileView]:
    found = []
    for file in snapshot.files:
        used = max(0, min(file.length, snapshot.max_physical_offset - file.base))
        first = snapshot.store_timestamp_at(file.base) if used else 0
        found.append(LogFileView(file.path, file.base, file.length, used, file.allocated_bytes, first))
    return found


def _queues(snapshot: StoreSnapshot, progress: Progress | None) -> list[QueueView]:
    ranges = snapshot.queues()
    total = sum(queue.max_offset - queue.min_offset for queue in ranges) * UNIT_BYTES
    done = 0
    found = []
    for queue in ranges:
        size_bytes = newest_ms = 0
        for lo in range(queue.min_offset, queue.max_offset, _UNITS_A_READ):
            units = snapshot.raw_units(queue.topic, queue.queue_id, lo, min(queue.max_offset, lo + _UNITS_A_READ))
            size_bytes += int(units["size"].sum(dtype=np.int64))
            done += len(units) * UNIT_BYTES
            if len(units) and lo + len(units) == queue.max_offset:
                newest_ms = snapshot.store_timestamp_at(int(units["physical_offset"][-1]))
        if progress is not None:
            progress("reading consume queues", done, total)
        count = queue.max_offset - queue.min_offset
        found.append(QueueView(*queue[:4], count, size_bytes, newest_ms, queue.unconfirmed))
    return found


def _batch_queues(snapshot: StoreSnapshot) -> list[QueueView]:
    """Queues of batches: messages count as they do for consumers, records by their bytes."""
    found = []
    for there in batch_queues(snapshot):
        topic, queue_id, start, stop, unconfirmed = there
        units = units_between(snapshot, topic, queue_id, start, stop)
        size_bytes = sum(unit.size for unit in units)
        newest_ms = units[-1].store_timestamp if units else 0
        found.append(QueueView(topic, queue_id, start, stop, stop - start, size_bytes, newest_ms, unconfirmed))
    return found


def _index_files(snapshot: StoreSnapshot) -> list[IndexView]:
    found = []
    for listed in listing.list_index_files(str(snapshot.path)):
        if not listed.length:
            continue
        file = IndexFile(listed, byte_view(mappings.map_read_only(listed.path)))
        head = file.header
        found.append(
            IndexView(
                path=listed.path,
                length=listed.length,
                slots=file.slot_count,
                used_slots=head.used_slots,
                entries=max(0, head.index_count - 1),
                entries_max=max(0, file.entry_max - 1),
                begin_ms=head.begin_timestamp,
                end_ms=head.end_timestamp,
                begin_physical_offset=head.begin_physical_offset,
                end_physical_offset=head.end_physical_offset,
            )
        )
    return found


def _topics(config: dict[str, Any]) -> list[TopicView]:
    document = config.get(check_meta.TOPICS_FILE)
    table = document.get("topicConfigTable") if isinstance(document, dict) else None
    found = []
    for name, topic in sorted(table.items() if isinstance(table, dict) else ()):
        if isinstance(topic, dict):
            perm = topic.get("perm", 6)
            words = [word for bit, word in ((4, "read"), (2, "write"), (1, "inherit")) if _number(perm) & bit]
            found.append(
                TopicView(
                    str(name),
                    _number(topic.get("readQueueNums", 0)),
                    _number(topic.get("writeQueueNums", 0)),
                    "+".join(words) or "none",
                )
            )
    return found


def _groups(config: dict[str, Any], queues: Iterable[QueueView]) -> list[GroupView]:
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    sums: dict[tuple[str, str], list[int]] = {}
    for group, topic, queue_id, offset in check_meta.group_offsets(config):
        entry = sums.setdefault((group, topic), [0, 0, 0, 0])
        end = ends.get((topic, queue_id))
        entry[0] += 1
        entry[1] += offset
        # A queue that nothing was ever sent to has no directory, and nobody lags behind there.
        entry[2] += max(0, end - offset) if end is not None else 0
        entry[3] += end is None and offset > 0
    return [
        GroupView(group, topic, count, offset, None if unknown else lag)
        for (group, topic), (count, offset, lag, unknown) in sorted(sums.items())
    ]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _meaning(snapshot: StoreSnapshot, view: StoreView) -> list[str]:
    """What the state means, in sentences."""
    said = []
    live = view.liveness
    if live.is_live:
        who = f"process {live.owner_pid}" if live.owner_pid else "a process that cannot be named from here"
        said.append(f"The store is in use by {who}. What it holds changes; this is how it was a moment ago.")
    elif live.has_abort:
        pid = f" (process {live.abort_pid})" if live.abort_pid else ""
        said.append(f"The last broker{pid} did not stop in order: its abort file is still there, and nobody runs.")
        since = view.checkpoint.min_timestamp if view.checkpoint else 0
        what = f"everything stored since {format_ms(since)}" if since else "the whole log"
        said.append(f"The next start looks through {what}, cuts a torn end and completes queues and index.")
    else:
        said.append("The store was stopped in order; the next start is quick.")
    held = sum(file.used for file in view.log_files)
    messages = sum(queue.messages for queue in view.queues)
    said.append(
        f"{len(view.log_files)} commit-log files hold {format_bytes(held)}; {messages:,} messages of "
        f"{len({queue.topic for queue in view.queues})} topics can be read. The files take "
        f"{format_bytes(sum(file.allocated_bytes for file in view.log_files))} on disk."
    )
    spare = [file for file in view.log_files if not file.used]
    if spare:
        said.append(f"{len(spare)} commit-log files at the end are made ready and hold nothing yet.")
    bad = [queue for queue in view.queues if queue.unconfirmed]
    if bad:
        names = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in bad[:5])
        said.append(f"Queues with units that the log does not bear out: {names}. Run stratamq store check.")
    if not view.index_files and held:
        said.append("There are no index files: lookups by key read the whole log.")
    if snapshot.min_physical_offset:
        said.append(f"Messages below physical offset {snapshot.min_physical_offset:,} have been deleted.")
    if (snapshot.path / "consumequeue_r").is_dir():
        said.append("There are RocksDB queues (consumequeue_r), which are not read.")
    return said
