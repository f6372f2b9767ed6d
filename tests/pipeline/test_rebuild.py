"""The job `rebuild` on Spark: a broker's own bytes, from workers."""

from __future__ import annotations

import pytest

from tests.unit.logstore.test_rebuild_parts import files_below, written_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_workers_make_the_brokers_bytes(spark, tmp_path):
    from stratamq.errors import PipelineError
    from stratamq.pipeline.jobs import rebuild
    from stratamq.pipeline.jobs.running import spark_runner
    from tests.unit.logstore.tiny_store import flip

    root, out = written_store(tmp_path / "store"), tmp_path / "out"
    plan = rebuild.plan_rebuild(root, out, part_bytes=16384)
    made = rebuild.rebuild_elsewhere(spark_runner(spark), plan, out, shares=2)
    assert (made.records, made.units) == (300, 300)
    assert files_below(out, names_of_index=False) == files_below(root, names_of_index=False)
    flip(root / "commitlog" / f"{4096:020d}", 100, 0xFF)
    with pytest.raises(PipelineError, match="at byte"):
        rebuild.rebuild_elsewhere(spark_runner(spark), rebuild.plan_rebuild(root, out), tmp_path / "more", shares=2)
