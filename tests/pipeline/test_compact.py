"""The job `compact` on Spark, beside the owner of the queue."""

from __future__ import annotations

import pytest

from stratamq.config import TieredLevel
from tests.unit.pipeline.test_compact import both, damage, tier  # noqa: F401 - fixtures
from tests.unit.tiered.test_store import expected, read_everything

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_workers_join_and_consumers_see_no_difference(spark, both, tier):  # noqa: F811 - fixtures
    from stratamq.pipeline.jobs import compact
    from stratamq.pipeline.jobs.running import spark_runner

    for queue_id in (0, 1):
        both.fill(40, queue_id=queue_id)
    both.tier_all()
    done = compact.compact(spark_runner(spark), tier, eager=True, clock=both.clock)
    assert (done.joins, done.messages, done.overtaken) == (2, 80, 0)
    assert damage(tier) == []
    both.fill(1)
    both.tier_all()
    store = both.with_level(TieredLevel.FORCE)
    assert read_everything(store) == [*expected(40), (40, expected(1)[0][1])]
    assert read_everything(store, queue_id=1) == expected(40)
