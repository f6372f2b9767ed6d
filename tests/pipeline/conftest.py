"""One Spark session for the whole run: on two cores several JVMs would only compete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.archives import unpack_store

ROOT = Path(__file__).resolve().parents[2]

TUNED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # Quick to start and to warm up; slower in the long run, which tests do not have.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[object]:
    """A session on two cores whose tasks may fail twice before the query does."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from stratamq.pipeline.session import session

    made = session("tests", "local[2,3]", config=TUNED, jvm_log=tmp_path_factory.mktemp("spark") / "jvm.log")
    yield made
    made.stop()


@pytest.fixture(scope="session", params=["rocketmq-5.3-clean", "rocketmq-5.3-killed", "rocketmq-5.5-clean"])
def golden(request, tmp_path_factory) -> tuple[Path, Path]:
    """A store that RocketMQ itself wrote: its directory, and the file that says what is in it."""
    folder = ROOT / "tests" / "golden" / request.param
    if not (folder / "store.tar.xz").exists():
        pytest.skip(f"{folder} is not there")
    place = tmp_path_factory.mktemp(request.param)
    return unpack_store(request.param, place), folder / "MANIFEST.json"
