"""How far Spark is: a thread that asks the status tracker a few times a second while an action runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2

TaskProgress = Callable[[int, int], None]
"""Called with tasks done and tasks in all of the stages that run now. On another thread."""


@contextmanager
def watching(spark: SparkSession, progress: TaskProgress | None) -> Iterator[None]:
    """While the block runs, tell ``progress`` how many tasks of the running stages are done."""
    if progress is None:
        yield
        return
    tracker = spark.sparkContext.statusTracker()
    stopped = threading.Event()

    def look() -> None:
        while not stopped.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                progress(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    thread = threading.Thread(target=look, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
