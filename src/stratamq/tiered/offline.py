"""What a cold tier still needs of the files of a broker that does not run: for commands that delete."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from stratamq.config import TieredConfig
from stratamq.formats.cold_manifest import decode_manifest
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.tiered.catalogue import FILE_NAME
from stratamq.tiered.planning import is_tiered

FOLDER: Final = "tier"
"""Below the data directory: the catalogue."""


def has_tier(directory: Path) -> bool:
    """Whether a broker with a cold tier ran on this store."""
    return os.path.exists(os.path.join(directory, FOLDER, FILE_NAME))


def tiered_topics(directory: Path) -> set[str]:
    """Topics that are in the tier; none without one."""
    return {topic for topic, _ in _ends(os.path.join(directory, FOLDER, FILE_NAME))} if has_tier(directory) else set()


def keep_from(directory: Path, policy: TieredConfig) -> int | None:
    """Physical offset from which on the files of a store must stay, as its catalogue says; None when it has no tier, or
    when all of it is there. Raises CorruptionError, sqlite3.Error when the catalogue cannot be read."""
    if not has_tier(directory):
        return None
    ends = _ends(os.path.join(directory, FOLDER, FILE_NAME))
    snapshot = StoreSnapshot.open(directory)
    low: int | None = None
    for queue in snapshot.queues():
        if not is_tiered(queue.topic, policy):
            continue
        end = ends.get((queue.topic, queue.queue_id), queue.min_offset)
        since = max(queue.min_offset, end if end <= queue.max_offset else queue.min_offset)
        if since < queue.max_offset:
            units = snapshot.units(queue.topic, queue.queue_id, since, since + 1)
            at = int(units["physical_offset"][0])
            low = at if low is None else min(low, at)
    return low


def _ends(path: str) -> dict[tuple[str, int], int]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as db:
        rows = db.execute("select topic, queue_id, manifest from heads").fetchall()
    return {(topic, queue_id): decode_manifest(data, path=path).end for topic, queue_id, data in rows}
