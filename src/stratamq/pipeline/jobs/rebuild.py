"""The job `rebuild`: ConsumeQueues and index made anew from the CommitLog, in parallel, byte for byte a broker's.

What the tasks do is in `logstore.rebuild_parts`. The driver plans, hands them out, and in the end puts the result in
place: into another directory, or into the store itself, whose lock it holds from the first look on. The spool of a run
that was killed is taken up by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from stratamq.config import DELAY_LEVELS_DEFAULT, StoreConfig, parse_delay_levels
from stratamq.errors import PipelineError
from stratamq.files.filesystem import LocalFileSystem
from stratamq.logstore import layout, listing
from stratamq.logstore.check_index import IndexFile
from stratamq.logstore.checkpoints import CheckpointFile
from stratamq.logstore.lock import StoreLock
from stratamq.logstore.mappings import map_read_only
from stratamq.logstore.rebuild_parts import (
    QueuesTask,
    ScanTask,
    Source,
    index_tasks,
    part_name,
    scan_part,
    write_index_file,
    write_queues,
)
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.pipeline.jobs.running import Runner, fingerprint

PART_BYTES: Final = 1 << 30
SPOOL: Final = "rebuild.spool"
MADE: Final = "rebuild.made"
OLD: Final = "rebuild.old"


class Rebuilt(NamedTuple):
    """What was made, or would be: the log's bytes and parts, records, queues, units, index files and entries."""

    log_bytes: int
    parts: int
    records: int
    queues: int
    units: int
    index_files: int
    index_entries: int


class RebuildPlan(NamedTuple):
    """A planned rebuild: the log, and which of its files make one task."""

    source: Source
    parts: tuple[tuple[int, ...], ...]
    newest_index: int

    @property
    def log_bytes(self) -> int:
        """Bytes of log that are read."""
        return self.source.end - self.source.bases[0] if self.source.bases else 0


def plan_rebuild(
    store: Path,
    spool: Path,
    config: StoreConfig | None = None,
    *,
    delay_levels: str = DELAY_LEVELS_DEFAULT,
    part_bytes: int = PART_BYTES,
) -> RebuildPlan:
    """Look at a store and cut its log into parts.

    The lengths of queue and index files are those of the files that are there, else those of ``config``.

    Raises NotAStore, and StrayFile or BadLength for the first wrong file of the log.
    """
    store = store.absolute()
    with StoreSnapshot.open(store) as snapshot:
        files, end = list(snapshot.files), snapshot.max_physical_offset
    shaped = _shaped_as_found(str(store), config or StoreConfig())
    bases = tuple(file.base for file in files if file.base < end)
    file_bytes = files[0].length if files else shaped.commit_log_file_bytes
    shaped = replace(shaped, commit_log_file_bytes=file_bytes)
    a_part = max(1, part_bytes // file_bytes)
    levels = parse_delay_levels(delay_levels)
    source = Source(str(store), "", file_bytes, bases, end, shaped, levels)
    # Another log, or other settings, make another spool: what is left of one never gets into the other.
    mark = fingerprint([source, part_bytes, [os.stat(file.path).st_ino for file in files]])
    source = source._replace(spool=os.path.join(os.path.abspath(spool), f"{SPOOL}-{mark}"))
    _, progress = CheckpointFile(LocalFileSystem(), str(store / layout.CHECKPOINT)).read()
    parts = tuple(bases[at : at + a_part] for at in range(0, len(bases), a_part))
    return RebuildPlan(source, parts, 0 if progress is None else progress.index_file)


def _shaped_as_found(root: str, config: StoreConfig) -> StoreConfig:
    # A run that was killed while it swapped directories has put the old ones aside.
    places = (root, os.path.join(root, OLD))
    lengths = [listing.unit_file_bytes(listing.list_queues(place)) for place in places]
    unit_bytes = lengths[0] or lengths[1]
    if unit_bytes is not None:
        config = replace(config, consume_queue_file_bytes=unit_bytes)
    listed_files = listing.list_index_files(places[0]) or listing.list_index_files(places[1])
    for listed in listed_files[:1]:
        found = IndexFile(listed, np.frombuffer(map_read_only(listed.path), dtype=np.uint8))
        if found.slot_count:
            config = replace(config, index_slots=found.slot_count, index_entries=found.entry_max)
    return config


def make(runner: Runner, plan: RebuildPlan, out: Path, *, shares: int, with_index: bool = True) -> Rebuilt:
    """Make everything below ``out``, which must be seen by all workers; returns when it is synced.

    Raises PipelineError or CorruptionError when the log is damaged: then nothing is made.
    """
    source = plan.source
    os.makedirs(source.spool, exist_ok=True)
    scans = [ScanTask(source, bases) for bases in plan.parts]
    scanned = runner(scan_part, scans)
    names = tuple(part_name(task) for task in scans)
    counts = tuple(int(one["keys"]) for one in scanned)
    queues = runner(write_queues, [QueuesTask(source, names, str(out), share, shares) for share in range(shares)])
    tasks = index_tasks(source, names, counts, str(out), plan.newest_index) if with_index else []
    (out / layout.CONSUME_QUEUE).mkdir(parents=True, exist_ok=True)
    if with_index:
        _clear_index(out, {task.path for task in tasks})
    entries = runner(write_index_file, tasks)
    _sync_tree(out)
    return Rebuilt(
        plan.log_bytes,
        len(plan.parts),
        sum(one["records"] for one in scanned),
        sum(one["queues"] for one in queues),
        sum(one["units"] for one in queues),
        len(tasks),
        sum(one["entries"] for one in entries),
    )


def _clear_index(out: Path, wanted: set[str]) -> None:
    """What a killed run with another end has left must not stay."""
    directory = out / layout.INDEX
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if str(path) not in wanted:
            path.unlink()


def rebuild_elsewhere(runner: Runner, plan: RebuildPlan, out: Path, *, shares: int, with_index: bool = True) -> Rebuilt:
    """Make queues and index below ``out``, a directory that holds neither. The store may be in use.

    Raises PipelineError: ``out`` is the store, or holds what no killed run has left.
    """
    out = out.absolute()
    if out == Path(plan.source.root):
        raise PipelineError(f"{out} is the store itself; to replace its queues and index, ask for that (in place)")
    mark = out / f".{os.path.basename(plan.source.spool)}"
    taken = [name for name in (layout.CONSUME_QUEUE, layout.INDEX) if (out / name).exists()]
    if taken and not mark.exists():
        raise PipelineError(f"{out} has {' and '.join(taken)} already; name an empty directory")
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    made = make(runner, plan, out, shares=shares, with_index=with_index)
    mark.unlink()
    shutil.rmtree(plan.source.spool)
    return made


@contextmanager
def store_held(store: Path) -> Iterator[None]:
    """Hold the lock of a store that was stopped in order.

    Raises StoreLocked: somebody has it. PipelineError: it was killed; a broker has to recover it first.
    """
    lock = StoreLock(str(store))
    try:
        if (store / layout.ABORT).exists():
            raise PipelineError(
                f"{store} was not stopped in order: start a broker on it once, which recovers it (and makes what is "
                "missing itself), or rebuild into another directory"
            )
        yield
    finally:
        lock.release()


def rebuild_in_place(runner: Runner, plan: RebuildPlan, *, shares: int, with_index: bool = True) -> Rebuilt:
    """Replace the queues and the index of the store. To be called with its lock held (`store_held`).

    Old directories go when the new ones are in their place; after a kill in between, the same call goes on, and a
    broker that is started instead makes what is missing from the log.
    """
    store = Path(plan.source.root)
    made_in, old = store / MADE, store / OLD
    made = make(runner, plan, made_in, shares=shares, with_index=with_index)
    fs = LocalFileSystem()
    old.mkdir(exist_ok=True)
    names = (layout.CONSUME_QUEUE, layout.INDEX) if with_index else (layout.CONSUME_QUEUE,)
    for name in names:
        if (store / name).exists():
            shutil.rmtree(old / name, ignore_errors=True)
            os.rename(store / name, old / name)
        os.rename(made_in / name, store / name)
        fs.sync_directory(str(store))
    for left in (old, made_in, Path(plan.source.spool)):
        shutil.rmtree(left, ignore_errors=True)
    fs.sync_directory(str(store))
    return made


def _sync_tree(top: Path) -> None:
    fs = LocalFileSystem()
    for directory, _, _ in os.walk(top):
        fs.sync_directory(directory)


def describe(plan: RebuildPlan) -> Sequence[tuple[str, object]]:
    """What a plan says to people."""
    config = plan.source.config
    return (
        ("log_bytes", plan.log_bytes),
        ("parts", len(plan.parts)),
        ("queue_file_bytes", config.consume_queue_file_bytes_rounded),
        ("index_slots", config.index_slots),
        ("index_entries", config.index_entries),
    )
