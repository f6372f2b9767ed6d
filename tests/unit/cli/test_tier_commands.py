"""`stratamq tier`, and `stratamq store clean` beside a cold tier."""

from __future__ import annotations

import json
import sys

import pytest

from stratamq.cli.main import main
from stratamq.config import RetentionConfig
from stratamq.errors import BackendError, StoreLocked
from stratamq.testing.backend import FaultyBackend
from stratamq.tiered.folder import FolderBackend
from stratamq.tiered.offline import keep_from
from tests.unit.logstore.stores import put
from tests.unit.logstore.test_batch_queues import batch
from tests.unit.tiered.test_store import POLICY, Both


@pytest.fixture
def both(tmp_path):
    """A store whose tier is a folder."""
    made = Both(tmp_path)
    made.close()
    made.directory = tmp_path
    made.backend = FaultyBackend(FolderBackend(str(tmp_path / "cold")))
    for name in (tmp_path / "tier").iterdir():
        name.unlink()
    made.open()
    made.fill(30)
    made.tier_all()
    made.fill(5)
    made.local.unsynced()
    yield made
    made.close()


@pytest.fixture
def url(both, tmp_path):
    return f"file://{tmp_path}/cold"


def run(capsys, *arguments):
    code = main(["tier", *arguments, "--broker", "b", "--output", "json", "--quiet"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else out.err


def test_status_says_what_is_there_and_what_waits(both, url, tmp_path, capsys):
    code, found = run(capsys, "status", url, "--data-dir", str(tmp_path / "s"))
    assert code == 0
    assert (found["tier"]["messages"], found["tier"]["queues"], found["tier"]["epoch"]) == (30, 1, 1)
    assert found["tier"]["waiting_messages"] == 5
    (row,) = found["queues"]
    assert (row["topic"], row["start"], row["end"], row["waiting_messages"]) == ("T", 0, 30, 5)


def test_status_names_topics_that_stay_in_local_files(both, url, tmp_path, capsys):
    both.local.set_queue_type("B", is_batch=True)
    put(both.local, batch("a", "b"))
    _, found = run(capsys, "status", url, "--data-dir", str(tmp_path / "s"))
    assert found["remarks"] == ["topic B stays in local files alone: it has queue.type=BatchCQ."]
    assert [row["topic"] for row in found["queues"]] == ["T"]


def test_list_names_every_segment(both, url, capsys):
    code, found = run(capsys, "list", url)
    assert code == 0
    manifest = both.service.manifests["T", 0]
    assert [row["name"] for row in found["segments"]] == [segment.name for segment in manifest.segments]
    assert run(capsys, "list", url, "--topic", "U")[1] == {"segments": []}


def test_check_is_content_with_a_good_tier(both, url, capsys):
    for deep in ([], ["--deep"]):
        code, found = run(capsys, "check", url, *deep)
        assert (code, found["findings"], found["checked"]["messages"]) == (0, [], 30)


def test_check_finds_what_is_missing_cut_and_changed(both, url, tmp_path, capsys):
    segments = both.service.manifests["T", 0].segments
    paths = [tmp_path / "cold" / "b" / segment.name for segment in segments]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    data = bytearray(paths[2].read_bytes())
    data[30] ^= 1
    paths[2].write_bytes(bytes(data))
    code, found = run(capsys, "check", url)
    assert code == 4
    assert [row["place"] for row in found["findings"]] == [segments[0].name, segments[1].name]
    code, found = run(capsys, "check", url, "--deep")
    assert [row["place"] for row in found["findings"]] == [segment.name for segment in segments[:3]]
    assert "offsets 0 to" in found["findings"][0]["text"]


def test_gc_deletes_litter_only(both, url, tmp_path, capsys):
    litter = tmp_path / "cold" / "b" / "s" / "T" / "0" / "00000001"
    name = f"{0:020d}-{5:020d}-00000001-{5:012x}{7:016x}.seg"
    (litter / name).write_bytes(b"left over")
    code, found = run(capsys, "gc", url, "--dry-run")
    assert (code, [row["name"] for row in found["litter"]]) == (0, [f"s/T/0/00000001/{name}"])
    code, found = run(capsys, "gc", url, "--yes")
    assert found["gc"] == {"objects": 1, "bytes": 9, "young": 0, "deleted": 1}
    assert not (litter / name).exists()
    assert run(capsys, "check", url, "--deep")[0] == 0


def test_rebuild_makes_the_catalogue_anew(both, url, tmp_path, capsys):
    code, found = run(capsys, "rebuild", url, "--data-dir", str(tmp_path / "s"))
    assert code == StoreLocked.exit_code
    assert "in use" in found
    before = dict(both.service.manifests)
    both.service.close()
    both.local.close()
    (tmp_path / "tier" / "catalogue.db").write_bytes(b"broken")
    code, found = run(capsys, "rebuild", url, "--data-dir", str(tmp_path))
    assert (code, found["rebuilt"]["queues"], found["rebuilt"]["messages"]) == (0, 1, 30)
    both.open()
    assert both.service.manifests == before


def test_an_address_is_needed_and_can_come_from_the_configuration(both, url, tmp_path, capsys):
    assert run(capsys, "list")[0] == 2
    assert run(capsys, "list", "nonsense:x")[0] == 2
    conf = tmp_path / "broker.conf"
    conf.write_text(f"tieredStoreFilePath={tmp_path}/cold\n")
    code, found = run(capsys, "list", "--config", str(conf))
    assert code == 0
    assert found["segments"]


def test_a_backend_that_is_not_there_is_an_empty_tier_or_an_error(tmp_path, capsys):
    code, found = run(capsys, "status", f"file://{tmp_path}/none")
    assert (code, found["tier"]["queues"]) == (0, 0)
    assert BackendError("read", "x", "y").exit_code == 3


def test_clean_without_a_broker_spares_what_the_tier_lacks(both, tmp_path):
    store = tmp_path / "s"
    (tmp_path / "tier").rename(store / "tier")
    found = keep_from(store, POLICY)
    unit = both.local.units("T", 0, 30, 1)[0]
    assert found == unit.physical_offset
    (store / "tier").rename(tmp_path / "tier")
    assert keep_from(store, POLICY) is None
    assert RetentionConfig().cold_gap_allowed is False


def test_clean_says_nothing_is_lost_that_the_tier_has(both, tmp_path, capsys):
    (tmp_path / "tier").rename(tmp_path / "s" / "tier")
    arguments = [
        "store",
        "clean",
        str(tmp_path / "s"),
        "--dry-run",
        "--reserved-hours",
        "0",
        "--output",
        "json",
        "--quiet",
    ]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["goes"]
    assert found["losses"] == []
    assert any("cold tier" in row["reason"] for row in found["stays"])
    (tmp_path / "s" / "tier").rename(tmp_path / "tier")
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["losses"]


@pytest.mark.parametrize("command", [["tier", "status", "s3://b/p"], ["serve", "--tier", "s3://b/p"]])
def test_an_object_store_without_its_package_is_said_with_the_extra_to_install(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "stratamq.tiered.objects", raising=False)
    monkeypatch.setattr("stratamq.cli.serve.set_up_logging", lambda level: None)  # it is for a whole process
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0", "--amqp-port", "-1"]
    more = ["--data-dir", str(tmp_path / "d"), *ports] if command[0] == "serve" else []
    assert main([*command, *more]) == 1
    assert "pip install 'stratamq[cloud]'" in capsys.readouterr().err
