"""The job `verify` on Spark: the findings of `store check`, also when it was cut off and taken up again."""

from __future__ import annotations

import json

import pytest

from stratamq.logstore.check import check_store
from tests.unit.logstore.test_check_parts import made_store, seen
from tests.unit.logstore.tiny_store import flip

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def store(tmp_path):
    return made_store(tmp_path / "store")


def test_it_finds_what_store_check_finds(spark, store):
    from stratamq.pipeline.jobs.verify import verify

    assert seen(verify(spark, store.root, part_bytes=8192)) == seen(check_store(store.root))
    flip(store.root / "commitlog" / f"{4096:020d}", 500, 0xFF)
    flip(store.root / "consumequeue" / "topic-1" / "1" / f"{0:020d}", 45)
    damaged = verify(spark, store.root, part_bytes=8192)
    assert damaged.is_damaged
    assert seen(damaged) == seen(check_store(store.root))


def test_a_check_that_was_killed_goes_on_where_it_was(spark, store, tmp_path, monkeypatch):
    from stratamq.errors import PipelineError
    from stratamq.pipeline.jobs import running, verify

    journal = tmp_path / "journal.json"
    calls: list[int] = []
    real = running.Journal.add

    def killed_later(self, answers):
        real(self, answers)
        calls.append(len(answers))
        if len(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(running.Journal, "add", killed_later)
    with pytest.raises(KeyboardInterrupt):
        verify.verify(spark, store.root, part_bytes=1, journal=journal)
    monkeypatch.setattr(running.Journal, "add", real)
    before = len(json.loads(journal.read_text())["answers"])
    assert before == sum(calls)

    asked: list[int] = []
    plain = running.spark_runner(spark)

    def counting(_spark, _progress=None):
        def run(fn, tasks):
            asked.append(len(tasks))
            return plain(fn, tasks)

        return run

    monkeypatch.setattr(verify, "spark_runner", counting)
    with pytest.raises(PipelineError, match="journal of another"):
        verify.verify(spark, store.root, part_bytes=2, journal=journal)
    report = verify.verify(spark, store.root, part_bytes=1, journal=journal)
    assert seen(report) == seen(check_store(store.root))
    whole = len(store.log) // store.file_bytes + 1 + 1 + 1  # files of the log, an index file, one group of queues
    assert sum(asked) == whole - before
    assert not journal.exists()
