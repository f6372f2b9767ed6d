"""What consumer groups lose of queues of batches: `store clean --dry-run` counts messages and whole records."""

from __future__ import annotations

import json

import pytest

from stratamq.cli.main import main
from stratamq.files.durable import ConfigFile
from stratamq.logstore.batch_files import units_between
from stratamq.logstore.retention_losses import loss_ranges, measure_loss, read_offsets
from stratamq.logstore.retention_offline import OfflineStore
from stratamq.logstore.retention_reading import LiveQueues
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import message, open_store, put
from tests.unit.logstore.test_batch_queues import SMALL, batch, fresh

NOW = 1_700_000_000_000
OFFSETS = {"offsetTable": {"B@slow": {0: 4}, "B@fast": {0: 60}}}


@pytest.fixture
def directory(tmp_path):
    """A stopped store of twenty batches of three messages, one a second; a group has read one message of the second."""
    path = tmp_path / "s"
    clock = ManualClock(NOW)
    store = fresh(path, clock=clock)
    for number in range(20):
        put(store, batch(*(f"{number}.{part}" for part in range(3))), message(bytes(600), topic="T"))
        clock.advance(1_000)
    store.close()
    ConfigFile(str(path / "config/consumerOffset.json")).store(OFFSETS)
    return path


def dry_run(directory, capsys):
    assert main(["store", "clean", str(directory), "--dry-run", "--output", "json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_counts_messages_inside_of_batches(directory, capsys):
    told = dry_run(directory, capsys)
    (lost,) = [row for row in told["losses"] if row["topic"] == "B"]
    with OfflineStore(directory).snapshot as snapshot:
        low = told["disk"]["min_offset_after"]
        gone = [number for number in range(20) if _place(snapshot, number) < low]
        size = sum(_unit(snapshot, number).size for number in gone[1:])
    assert 3 < len(gone) < 20
    assert (lost["group"], lost["messages"]) == ("slow", 3 * len(gone) - 4)
    assert lost["bytes"] == size
    assert lost["oldest_ms"] == NOW + 1_000


def test_files_of_batches_go_as_those_of_other_queues(directory, capsys):
    told = dry_run(directory, capsys)
    (last,) = told["stays"]
    files = [row["file"] for row in told["goes"] if "batchconsumequeue" in row["file"]]
    assert files == sorted(files)
    assert files[0].endswith(f"batchconsumequeue/B/0/{0:020d}")
    assert last["cause"] == "newest"
    assert {row["when"] for row in told["goes"] if row["file"] in files} == {"a minute after the next start"}


def test_a_live_broker_and_a_directory_say_the_same(directory):
    offline = OfflineStore(directory)
    cuts = [file.base for file in offline.snapshot.files]
    offsets = read_offsets(OFFSETS)
    told = [_losses(offline, offsets, end) for end in cuts]
    store = open_store(directory, SMALL)
    live = LiveQueues(store._log, store._queues)
    assert [_losses(live, offsets, end) for end in cuts] == told
    assert [len(losses) for losses in told][:1] == [0]
    assert told[-1][0].messages > told[1][0].messages > 0
    store.close()


def _losses(reader, offsets, end):
    keys = [key for key in sorted(reader.keys()) if key.topic == "B"]
    return [measure_loss(reader, lost) for lost in loss_ranges(reader, keys, offsets, 0, end) if lost is not None]


def _unit(snapshot, number):
    (unit,) = units_between(snapshot, "B", 0, 3 * number, 3 * number + 1)
    return unit


def _place(snapshot, number):
    return _unit(snapshot, number).physical_offset
