"""The job `verify`: `stratamq store check` of a store of any size, its parts checked in parallel.

The parts and the findings are those of `logstore.check_parts`; this module only gives the tasks to Spark and keeps
their answers in a journal, so that a check that was cut off goes on where it was. Read-only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratamq.logstore.check import CheckReport
from stratamq.logstore.check_parts import PART_BYTES, PartedCheck
from stratamq.pipeline.jobs.running import TASKS_KEPT_BUSY, Journal, cores_of, journalled, spark_runner
from stratamq.pipeline.progress import TaskProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class VerifyPlan(NamedTuple):
    """What a check would do."""

    log_bytes: int
    parts: int
    index_files: int
    queue_tasks: int


def plan_verify(store: Path, *, part_bytes: int = PART_BYTES, index_every: int = 1) -> VerifyPlan:
    """How a store would be cut. Raises NotAStore."""
    check = PartedCheck(store, part_bytes=part_bytes, index_every=index_every)
    size = check.snapshot.max_physical_offset - check.snapshot.min_physical_offset
    return VerifyPlan(size, len(check.parts()), len(check.index_tasks()), len(check.shape_tasks()))


def verify(
    spark: SparkSession,
    store: Path,
    *,
    part_bytes: int = PART_BYTES,
    index_every: int = 1,
    journal: Path | None = None,
    progress: TaskProgress | None = None,
) -> CheckReport:
    """Check the store at ``store``, which every worker must see under this path. Blocks until it is done.

    Args:
        spark: The session.
        store: A store of ours or of RocketMQ, whatever its state.
        part_bytes: About how much of the log one task reads; whole files.
        index_every: Compare the index with every n-th file of the log, 0 for none. Its structure is always checked.
        journal: File that keeps what is done, to go on after a kill; removed when all is done.
        progress: Told of Spark's tasks, on another thread.

    Raises:
        NotAStore: There is nothing to check.
        PipelineError: A task failed, or the journal is of a store that has changed since.
    """
    store = store.absolute()
    check = PartedCheck(store, part_bytes=part_bytes, index_every=index_every)
    plan = [str(store), part_bytes, index_every, check.snapshot.max_physical_offset, check.snapshot.min_physical_offset]
    kept = Journal(journal, "verify", plan)
    wave = max(TASKS_KEPT_BUSY * cores_of(spark), 1)
    report = check.run(journalled(spark_runner(spark, progress), kept, wave=wave))
    kept.remove()
    return report
