"""The job `export` on Spark: tasks that are tried again, a driver that is killed, and Spark reading the table."""

from __future__ import annotations

import sys

import pytest

from stratamq.logstore import layout
from tests.pipeline.cluster_world import Processes, wait_for
from tests.unit.pipeline.test_export import expected, options_of, rows_in, store_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


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


def test_a_driver_killed_for_real(spark, tmp_path):
    """The command is killed with SIGKILL after some of its commits; the next run completes the table."""
    from stratamq.pipeline.jobs import export as job
    from stratamq.pipeline.jobs.running import spark_runner
    from stratamq.pipeline.jobs.table import Table
    from tests.unit.logstore.tiny_store import T0, TinyStore

    store = TinyStore(tmp_path / "store", file_bytes=1 << 18, queue_file_units=500)
    for number in range(2000):
        store.put("orders", number % 2, b"%04d" % number * 500, stored=T0 + number * 1000)
    store.write()
    table = Table(tmp_path / "out")
    with Processes(tmp_path) as processes:
        arguments = ["--store", str(store.root), "--out", str(tmp_path / "out"), "--part-bytes", "64k"]
        command = [sys.executable, "-m", "stratamq.cli.main", "pipeline", "export", *arguments, "--commit-bytes", "1"]
        driver = processes.start("driver", [*command, "--master", "local[2]", "--quiet"])
        wait_for("two commits", lambda: table.newest().version >= 2, log=tmp_path / "driver.log")
        processes.kill(driver)
    found = rows_in(tmp_path / "out")
    assert 0 < len(found) < 2000, "it was killed in the middle"
    assert len(found) == len(set(found))
    done = job.export(spark_runner(spark), options_of(store), table)
    assert rows_in(tmp_path / "out") == expected(store)
    assert sum(file.rows for file in table.files()) == 2000
    assert done.messages < 2000
    assert list((tmp_path / "out").rglob("*.tmp")) == []
