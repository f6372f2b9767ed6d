"""How jobs run: tasks with small JSON answers, on Spark or here, in waves whose answers outlive a kill.

A job is a list of tasks, each a pure function of plain numbers and files. `Journal` keeps the answers of finished waves
in one small file, which a later run of the same job takes up. What a plan is made of is in the journal too, so answers
of another plan are never taken.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stratamq.errors import PipelineError
from stratamq.files.durable import replace_file
from stratamq.pipeline.progress import TaskProgress, watching
from stratamq.pipeline.session import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]
TaskFunction = Callable[[Any], Json]
Runner = Callable[[TaskFunction, Sequence[Any]], list[Json]]
"""Calls a function for each task (again where one is retried) and returns the answers in the order of the tasks."""

WAVE_TASKS_MAX: Final = 256
"""Tasks between two writings of a journal: a kill costs the work of so many."""
TASKS_KEPT_BUSY: Final = 4
"""Waves are no smaller than so many tasks for each core."""


def run_here(fn: TaskFunction, tasks: Sequence[Any]) -> list[Json]:
    """A runner without Spark: one task after the other, in this process."""
    return [fn(task) for task in tasks]


def spark_runner(spark: SparkSession, progress: TaskProgress | None = None) -> Runner:
    """A runner on Spark: a task of a job is a Spark task. Errors of ours keep their text, as PipelineError."""

    def run(fn: TaskFunction, tasks: Sequence[Any]) -> list[Json]:
        if not tasks:
            return []
        held = list(tasks)

        def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    answer = json.dumps(fn(held[number]))
                    yield pa.record_batch([[number], [answer]], names=["number", "answer"])

        frame = spark.range(0, len(held), 1, len(held)).mapInArrow(work, "number long, answer string")
        with plain_errors(), watching(spark, progress):
            rows = frame.collect()
        answers = {row[0]: row[1] for row in rows}
        return [json.loads(answers[number]) for number in range(len(held))]

    return run


def cores_of(spark: SparkSession) -> int:
    """How many tasks the session runs at a time."""
    return max(1, spark.sparkContext.defaultParallelism)


class Journal:
    """Answers of finished tasks, in one file that is replaced as a whole and synced.

    Without a path it remembers for as long as it lives.
    """

    def __init__(self, path: Path | None, job: str, plan: object) -> None:
        """Open; answers of another job or plan are refused.

        Raises PipelineError: The file is of another job or plan, or no journal; remove it to begin anew.
        """
        self.path = path
        self._head = {"job": job, "plan": fingerprint(plan)}
        self.answers: dict[str, Json] = {}
        if path is not None and path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                head, answers = {"job": found["job"], "plan": found["plan"]}, dict(found["answers"])
            except (ValueError, KeyError, TypeError) as error:
                raise PipelineError(f"{path} is no journal of a job: {error}; name another file") from error
            if head != self._head:
                raise PipelineError(
                    f"{path} is the journal of another {found['job']}, or of a store that has changed since; remove it "
                    "to begin anew"
                )
            self.answers = answers

    def add(self, answers: dict[str, Json]) -> None:
        """Keep answers. Blocks for two syncs."""
        self.answers.update(answers)
        if self.path is not None:
            os.makedirs(self.path.parent, exist_ok=True)
            text = json.dumps({**self._head, "answers": self.answers}, ensure_ascii=False)
            replace_file(str(self.path), text.encode())

    def remove(self) -> None:
        """The job is done: nothing has to be taken up again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def fingerprint(plan: object) -> str:
    """A digest of a plan that its JSON form says completely."""
    text = json.dumps(plan, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def journalled(runner: Runner, journal: Journal, *, wave: int = WAVE_TASKS_MAX) -> Runner:
    """A runner that takes answers from the journal, and puts those of each wave into it."""

    def run(fn: TaskFunction, tasks: Sequence[Any]) -> list[Json]:
        keys = [f"{fn.__name__} {fingerprint(task)}" for task in tasks]
        left = [number for number, key in enumerate(keys) if key not in journal.answers]
        for at in range(0, len(left), wave):
            numbers = left[at : at + wave]
            answers = runner(fn, [tasks[number] for number in numbers])
            journal.add({keys[number]: answer for number, answer in zip(numbers, answers, strict=True)})
        return [journal.answers[key] for key in keys]

    return run
