"""Checks of what is neither log nor queue nor index: checkpoint, abort file, configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratamq.findings import Findings
from stratamq.formats.checkpoint import (
    CHECKPOINT_BYTES,
    PROGRESS_AT,
    PROGRESS_END,
    PROGRESS_MAGIC,
    Progress,
    decode_checkpoint,
    decode_progress,
)
from stratamq.formats.config_json import decode_config_json
from stratamq.logstore import layout, listing
from stratamq.logstore.snapshot import QueueRange, StoreSnapshot

OFFSETS_FILE = "consumerOffset.json"
TOPICS_FILE = "topics.json"
DELAY_FILE = "delayOffset.json"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_NOT_JSON = {"transactionMetrics", "timermetrics"}
_ADVICE_OLDER = "recovery starts too late with such a checkpoint: remove the file, then a start scans the whole log"


def check_checkpoint(snapshot: StoreSnapshot, findings: Findings, newest_ms: int) -> None:
    """Compare the checkpoint with the newest record that the log really holds."""
    path = snapshot.path / layout.CHECKPOINT
    try:
        data = path.read_bytes()
    except OSError as error:
        if snapshot.files:
            advice = "the next start scans the whole log and writes a new one"
            findings.warn("checkpoint", str(path), 0, "a checkpoint", error.strerror or "none", advice)
        return
    if len(data) != CHECKPOINT_BYTES:
        advice = "remove the file: the next start scans the whole log and writes a new one"
        findings.error("checkpoint", str(path), 0, f"{CHECKPOINT_BYTES} bytes", f"{len(data)} bytes", advice)
    if len(data) < 40:
        return
    checkpoint = decode_checkpoint(data)
    if not snapshot.is_live:
        times = (
            (0, "physic_msg_timestamp", checkpoint.physic_msg_timestamp),
            (8, "logics_msg_timestamp", checkpoint.logics_msg_timestamp),
            (16, "index_msg_timestamp", checkpoint.index_msg_timestamp),
        )
        for at, name, value in times:
            if value > newest_ms:
                expected = f"{name} at most {newest_ms}, the store time of the newest record"
                advice = f"either records are lost, or this number is damaged. {_ADVICE_OLDER}"
                findings.error("checkpoint", str(path), at, expected, value, advice)
        if checkpoint.confirm_physical_offset > snapshot.max_physical_offset:
            expected = f"confirm_physical_offset at most {snapshot.max_physical_offset}, the end of the log"
            advice = "either records are lost, or this number is damaged"
            findings.error("checkpoint", str(path), 32, expected, checkpoint.confirm_physical_offset, advice)
    own = decode_progress(data)
    if own is not None and own.log_synced > snapshot.max_physical_offset and not snapshot.is_live:
        expected = f"log_synced at most {snapshot.max_physical_offset}, the end of the log"
        advice = "records are lost that were on disk: restore the log from a replica or a copy"
        findings.error("checkpoint", str(path), PROGRESS_AT + 12, expected, own.log_synced, advice)
    rest = data[48:CHECKPOINT_BYTES]  # at 40 RocketMQ 5.5 keeps how far its queues are
    if data[PROGRESS_AT:].startswith(PROGRESS_MAGIC):  # our own positions, ignored when RocketMQ wrote since
        rest = data[48:PROGRESS_AT] + data[PROGRESS_END:CHECKPOINT_BYTES].rjust(CHECKPOINT_BYTES - PROGRESS_AT, b"\0")
    if rest.strip(b"\0"):
        at = 48 + next(number for number, value in enumerate(rest) if value)
        findings.warn("checkpoint", str(path), at, "zeros", f"{rest[at - 48]:02X}", "nothing reads these bytes")


def own_progress(snapshot: StoreSnapshot) -> Progress | None:
    """StrataMQ's own exact positions, None in a store that RocketMQ wrote last."""
    try:
        return decode_progress((snapshot.path / layout.CHECKPOINT).read_bytes()[:CHECKPOINT_BYTES])
    except OSError:
        return None


def check_end(snapshot: StoreSnapshot, findings: Findings, newest_ms: int) -> None:
    """Look behind the end of the log: zeros, what a cut left behind, or records that a damaged one hides."""
    end = snapshot.max_physical_offset
    file = snapshot.file_of(end)
    if file is None or snapshot.is_live:
        return
    log = snapshot.bytes_of(file)
    at = end - file.base
    tail = log[at : min(at + 4096, file.length)]
    if not tail.any():
        return
    checkpoint = snapshot.checkpoint
    synced = checkpoint.physic_msg_timestamp if checkpoint else 0
    if checkpoint and snapshot.was_stopped_cleanly:
        synced = max(synced, checkpoint.logics_msg_timestamp)  # after a kill this one may run ahead of the log
    found = tail[:16].tobytes().hex(" ")
    if snapshot.liveness.has_abort:
        advice = "the store was killed; the next start cuts the log here"
        if newest_ms < synced:
            advice = f"records up to {synced} were on disk, but the log ends before: restore this file from a replica"
            findings.error("log-end", file.path, at, "a record or zeros", found, advice)
        else:
            findings.inform("torn-end", file.path, at, "a record or zeros", found, advice)
        return
    if newest_ms < synced:
        advice = "the store was stopped in order and had more records: restore this file from a replica or a copy"
        findings.error("log-end", file.path, at, "a record or zeros", found, advice)
    else:
        advice = "left over from a cut of the log during an earlier start; it will be written over"
        findings.inform("leftover-bytes", file.path, at, "zeros", found, advice)


def check_config(snapshot: StoreSnapshot, findings: Findings) -> dict[str, Any]:
    """Read every JSON file below ``config``. Returns those that could be read, by file name."""
    read: dict[str, Any] = {}
    for file in listing.list_config_files(str(snapshot.path)):
        path = Path(file.path)
        name = path.name
        if not (name.removesuffix(".bak").endswith(".json") or name.removesuffix(".bak") in _NOT_JSON):
            continue
        try:
            read[name] = decode_config_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as error:
            at = getattr(error, "pos", getattr(error, "start", 0))
            backup = path.with_name(name + ".bak")
            if name.endswith(".bak"):
                advice = "only a backup; it is replaced when the file is written the next time"
                findings.warn("config", file.path, at, "JSON", error, advice)
            else:
                there = f"the broker falls back to {backup.name}" if backup.exists() else "there is no backup"
                advice = f"{there}; put it right by hand before the next start, or lose what it says"
                findings.error("config", file.path, at, "JSON as RocketMQ writes it", error, advice)
    return read


def check_group_offsets(
    snapshot: StoreSnapshot, findings: Findings, config: Mapping[str, Any], queues: list[QueueRange]
) -> None:
    """Compare groups' offsets with the queues: an offset behind a queue's end makes a group wait for nothing."""
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    for group, topic, queue_id, offset in group_offsets(config):
        end = ends.get((topic, queue_id))
        if end is not None and offset > end and not snapshot.is_live:
            path = str(snapshot.path / layout.CONFIG / OFFSETS_FILE)
            expected = f"group {group} at most at {end} of topic {topic}, queue {queue_id}"
            advice = "records are lost, or the offset is wrong; the group is set back to the end when it pulls"
            findings.warn("group-offset", path, 0, expected, offset, advice)
    for level, offset in delay_offsets(config):
        end = ends.get((SCHEDULE_TOPIC, level - 1))
        if end is not None and offset > end and not snapshot.is_live:
            path = str(snapshot.path / layout.CONFIG / DELAY_FILE)
            advice = "it is set back to the queue's end when the broker starts"
            findings.warn("group-offset", path, 0, f"delay level {level} at most at {end}", offset, advice)


def group_offsets(config: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
    """Group, topic, queue and next offset of every entry of the consumer offset table; what is odd is left out."""
    found = []
    table = _member(config.get(OFFSETS_FILE), "offsetTable")
    for name, offsets in table.items():
        topic, _, group = str(name).partition("@")
        for queue_id, offset in _numbers(offsets):
            found.append((group, topic, queue_id, offset))
    return found


def delay_offsets(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Delay level and next offset of its queue."""
    return _numbers(_member(config.get(DELAY_FILE), "offsetTable"))


def known_topics(config: Mapping[str, Any]) -> set[str] | None:
    """Topics that the configuration lists, None when there is none."""
    if TOPICS_FILE not in config:
        return None
    return set(_member(config[TOPICS_FILE], "topicConfigTable"))


def _member(document: Any, name: str) -> dict[str, Any]:
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _numbers(table: Any) -> list[tuple[int, int]]:
    if not isinstance(table, dict):
        return []
    return [
        (int(key), value) for key, value in table.items() if isinstance(value, int) and str(key).lstrip("-").isdigit()
    ]
