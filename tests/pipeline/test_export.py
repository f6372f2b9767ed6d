"""The job `export` on Spark: tasks that are tried again, a driver that is killed, and Spark reading the table."""

from __future__ import annotations

import pytest

from stratamq.logstore import layout
from tests.unit.pipeline.test_export import expected, options_of, rows_in, store_of

pytestmark = pytest.mark.spark


def test_killed_in_the_middle_and_read_by_spark(spark, tmp_path, monkeypatch):
    from stratamq.pipeline.jobs import export as job
    from stratamq.pipeline.jobs.running import spark_runner
    from stratamq.pipeline.jobs.table import Table

    store = store_of(tmp_path / "store", 160)
    assert (store.root / layout.COMMIT_LOG).is_dir()
    options, table = options_of(store, minPartitions="4"), Table(tmp_path / "out")
    real, commits = Table.finish, []

    def dies(self, commit):
        commits.append(commit.version)
        if commit.version == 1:
            raise KeyboardInterrupt
        real(self, commit)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "finish", dies)  # between the commit and the files' way into place
        with pytest.raises(KeyboardInterrupt):
            job.export(spark_runner(spark), options, table, wave_bytes=2000)
    assert rows_in(tmp_path / "out") == []
    job.export(spark_runner(spark), options, table, wave_bytes=1 << 30)
    assert rows_in(tmp_path / "out") == expected(store)
    frame = spark.read.parquet(str(tmp_path / "out"))
    counted = {(row[0], row[1]): row[2] for row in frame.groupBy("topic", "queue_id").count().collect()}
    assert sum(counted.values()) == 160
    assert {topic for topic, _ in counted} == {"orders", "%RETRY%group"}
    assert frame.where("topic = 'orders' and date >= '2023-11-15'").count() > 0
