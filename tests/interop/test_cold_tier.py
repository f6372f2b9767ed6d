"""The unmodified C++ client reads everything from a broker whose local files are gone: the cold tier has it."""

from __future__ import annotations

import shutil

import pytest

from stratamq.cli.main import main
from stratamq.config import TieredConfig
from stratamq.errors import TierError
from stratamq.logstore.snapshot import StoreSnapshot
from stratamq.tiered import commits
from stratamq.tiered.backend import PrefixedBackend, open_backend
from tests.interop.cpp_world import World, bodies, without_client
from tests.unit.tiered.conftest import s3_config as s3_config
from tests.unit.tiered.conftest import s3_endpoint as s3_endpoint

pytestmark = [pytest.mark.interop, without_client]

CONF = """
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
tieredStoreGroupCommitTimeout=500
"""


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.quick), "s3"])
def tiered(request, tmp_path):
    text = CONF
    if request.param == "s3":
        policy = request.getfixturevalue("s3_config")
        text += f"objectStoreEndpoint={policy.endpoint}\ntier_region={policy.region}\n"
        text += f"objectStoreAccessKey={policy.access_key}\nobjectStoreSecretKey={policy.secret_key}\n"
    else:
        policy = TieredConfig(url=f"file://{tmp_path}/cold")
    conf = tmp_path / "broker.conf"
    conf.write_text(text)
    world = World(tmp_path, f"--config={conf}", f"--tier={policy.url}", "--amqp-port=-1")
    world.broker.start()
    yield world, PrefixedBackend(open_backend(policy), "broker-a")
    world.close()


def messages(count: int, name: str) -> list[dict]:
    return [
        {"body": f"{name}{number:04d}" + "." * 3000, "tags": "even" if number % 2 == 0 else "odd"}
        for number in range(count)
    ]


def produce(world, topic: str, sent: list[dict]) -> None:
    """In parts: a client gets its messages as an argument, and those may not be too long."""
    for at in range(0, len(sent), 30):
        world.produce(topic, sent[at : at + 30])


def wait_until_tiered(world, backend, topic: str, count: int) -> None:
    def has_all() -> bool:
        try:
            found = commits.find_all(backend).manifests
        except TierError:
            return False
        return sum(one.end for one in found if one.topic == topic) >= count

    world.wait_for(has_all, "everything in the tier")


def test_local_files_that_expired_are_read_from_the_tier(tiered):
    world, backend = tiered
    process = world.broker
    sent = messages(120, "m")
    produce(world, "cold", sent)
    wait_until_tiered(world, backend, "cold", 120)
    process.stop()
    assert main(["store", "clean", str(process.data_dir), "--reserved-hours", "0", "--yes"]) == 0
    snapshot = StoreSnapshot.open(process.data_dir)
    assert snapshot.min_physical_offset > 300_000
    process.start()
    consumer = world.consume("cold", "all-of-it")
    assert bodies(consumer.wait_for_messages(120)) == sorted(spec["body"] for spec in sent)
    odd = world.consume("cold", "odd", expression="odd")
    assert bodies(odd.wait_for_messages(60)) == sorted(spec["body"] for spec in sent if spec["tags"] == "odd")


def test_a_broker_that_lost_its_disk_goes_on_with_what_the_tier_has(tiered):
    world, backend = tiered
    process = world.broker
    sent = messages(60, "before")
    produce(world, "lost", sent)
    wait_until_tiered(world, backend, "lost", 60)
    process.kill()
    shutil.rmtree(process.data_dir)
    process.start()
    consumer = world.consume("lost", "g")
    consumer.wait_for_messages(60)
    later = messages(20, "after")
    produce(world, "lost", later)
    got = consumer.wait_for_messages(80)
    assert bodies(got) == sorted(spec["body"] for spec in [*sent, *later])
    places = {(row["queue"], row["offset"]) for row in got}
    assert len(places) == 80
