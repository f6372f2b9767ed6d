"""The store commands as a script sees them: exit codes, JSON, messages; and that help costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stratamq import __version__
from stratamq.cli.main import COMMANDS, main
from stratamq.cli.store import COMMANDS as STORE_COMMANDS
from stratamq.logstore import mappings
from tests.unit.logstore.tiny_store import T0, TinyStore, flip

LOG = "commitlog/00000000000000000000"


@pytest.fixture
def store(tmp_path):
    store = TinyStore(tmp_path / "s", file_bytes=8192)
    for number in range(10):
        store.put(
            queue_id=number % 2,
            body=f"order {number}".encode(),
            properties=f"TAGS\x01t{number % 3}\x02KEYS\x01k{number} all\x02UNIQ_KEY\x01ID{number}\x02",
            stored=T0 + 1000 * number,
        )
    store.put("hostile", body=b"\x1b]0;owned\x07\x1b[2J", properties="KEYS\x01\x1b[31m\x02", stored=T0 + 10_000)
    store.write()
    config = tmp_path / "s/config"
    config.mkdir()
    (config / "topics.json").write_text(
        '{"topicConfigTable":{"orders":{"perm":6,"readQueueNums":2,"writeQueueNums":2,"topicName":"orders"}}}'
    )
    (config / "consumerOffset.json").write_text('{"offsetTable":{"orders@readers":{0:3,1:5}}}')
    return store


def run(capsys, *arguments):
    """Exit code, stdout, stderr of one command."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--output", "json")
    return code, [json.loads(line) for line in out.splitlines()], err


def test_version_and_help(capsys):
    assert run(capsys, "--version") == (0, f"stratamq, version {__version__}\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in COMMANDS:
        assert name in out
    code, out, _ = run(capsys, "store", "--help")
    assert code == 0
    for name in STORE_COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", sorted(STORE_COMMANDS))
def test_every_store_command_has_help(capsys, name):
    code, out, _ = run(capsys, "store", name, "--help")
    assert code == 0
    assert "--output" in out


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom stratamq.cli.main import main\nmain(['--help'])\nmain(['store', '--help'])\n"
        "print('LOADED', sorted({'numpy', 'pyarrow', 'asyncio', 'aiohttp', 'rich'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=110).stdout
    assert out.splitlines()[-1] == "LOADED []"


def test_wrong_calls_end_with_2(capsys, tmp_path):
    assert run(capsys, "nothing")[0] == 2
    assert run(capsys, "store", "check")[0] == 2
    assert run(capsys, "store", "query", tmp_path)[0] == 2
    assert run(capsys, "store", "query", tmp_path, "--key", "k", "--from", "0")[0] == 2
    assert run(capsys, "store", "query", tmp_path, "--topic", "t", "--offset", "3")[0] == 2
    code, _, err = run(capsys, "store", "query", tmp_path, "--topic", "t", "--from", "yesterday")
    assert (code, "ISO 8601" in err) == (2, True)
    assert run(capsys, "store", "dump", tmp_path)[0] == 2


def test_no_store_ends_with_3(capsys, tmp_path):
    for verb in ("inspect", "check"):
        code, out, err = run(capsys, "store", verb, tmp_path / "none")
        assert (code, out) == (3, "")
        assert err == f"stratamq: {tmp_path / 'none'} is not a store directory: no such directory\n"


def test_check(capsys, store):
    code, (report,), _ = run_json(capsys, "store", "check", store.root)
    assert code == 0
    assert report["summary"]["records"] == 11
    assert (report["counts"], report["findings"]) == ([], [])
    assert report["remarks"] == ["Everything is as it should be."]

    flip(store.root / LOG, 88)
    mappings.drop_all_mappings()
    code, (report,), _ = run_json(capsys, "store", "check", store.root)
    assert code == 4
    assert report["counts"] == [{"severity": "error", "kind": "checksum", "count": 1}]
    (finding,) = report["findings"]
    assert (finding["file"], finding["offset"]) == (str(store.root / LOG), 8)
    assert set(finding) == {"severity", "kind", "file", "offset", "expected", "found", "advice"}
    code, out, _ = run(capsys, "store", "check", store.root)
    assert code == 4
    assert out.endswith("The store is damaged.\n")


def test_inspect(capsys, store):
    code, (view,), _ = run_json(capsys, "store", "inspect", store.root)
    assert code == 0
    assert view["state"]["max_physical_offset"] == store.end
    assert [(queue["topic"], queue["messages"]) for queue in view["queues"]] == [
        ("hostile", 1),
        ("orders", 5),
        ("orders", 5),
    ]
    assert view["queues"][1]["size_bytes"] == sum(
        r.size for r in store.records if r.queue_id == 0 and r.topic == "orders"
    )
    assert view["groups"] == [{"group": "readers", "topic": "orders", "queues": 2, "offset": 8, "lag": 2}]
    assert view["topics"][0]["perm"] == "read+write"
    assert view["index"][0]["entries"] == len(store.index)
    assert view["remarks"][0] == "The store was stopped in order; the next start is quick."
    code, out, _ = run(capsys, "store", "inspect", store.root)
    assert code == 0
    assert "Consumer groups" in out


@pytest.mark.parametrize("how", [["--offset", "{place}"], ["--file", LOG, "--at", "{place}"]])
def test_dump_a_record(capsys, store, how):
    record = store.records[3]
    arguments = [part.format(place=record.physical_offset) for part in how]
    code, (answer,), _ = run_json(capsys, "store", "dump", store.root, *arguments)
    assert code == 0
    fields = answer["fields"]
    at = record.physical_offset
    for field in fields:  # every byte is explained once, in order
        assert field["offset"] == at
        at += field["length"]
    assert at == record.physical_offset + record.size
    values = {field["name"]: field["value"] for field in fields}
    assert (values["body"], values["topic"], values["property KEYS"]) == ("order 3", "orders", "k3 all")


def test_dump_the_rest(capsys, store):
    code, (answer,), _ = run_json(
        capsys, "store", "dump", store.root, "--topic", "orders", "--queue", 1, "--offset-in-queue", 1
    )
    assert code == 0
    assert int(answer["unit_fields"][0]["value"]) == store.records[3].physical_offset
    assert answer["record_place"]["offset"] == store.records[3].physical_offset
    for file, at in (("checkpoint", 0), ("index/20231114221320000", 0), ("index/20231114221320000", 41)):
        code, (answer,), _ = run_json(capsys, "store", "dump", store.root, "--file", file, "--at", at)
        assert (code, bool(answer["fields"])) == (0, True)
    code, (answer,), _ = run_json(
        capsys, "store", "dump", store.root, "--file", "index/20231114221320000", "--at", 40 + 28 + 20
    )
    assert int(answer["fields"][1]["value"]) == 0
    assert run(capsys, "store", "dump", store.root, "--file", "lock")[0] == 3
    assert run(capsys, "store", "dump", store.root, "--file", "absent")[0] == 1
    assert run(capsys, "store", "dump", store.root, "--offset", 10**9)[0] == 3


def test_dump_of_any_place_never_fails(capsys, store):
    for at in range(0, 1200, 7):
        assert run(capsys, "store", "dump", store.root, "--offset", at)[0] == 0
    os.truncate(store.root / LOG, 8192)
    for at in range(8192 - 30, 8192):
        assert run(capsys, "store", "dump", store.root, "--offset", at)[0] == 0


@pytest.mark.parametrize("with_index", [True, False])
def test_query_by_key_and_id(capsys, store, with_index):
    if not with_index:
        (store.root / "index/20231114221320000").unlink()
    code, rows, err = run_json(capsys, "store", "query", store.root, "--key", "k4")
    assert (code, [row["body"] for row in rows]) == (0, ["order 4"])
    assert ("by index" in err) == with_index
    assert ("reading the whole log" in err) == (not with_index)
    code, rows, err = run_json(capsys, "store", "query", store.root, "--key", "all", "--topic", "orders", "--limit", 3)
    assert ([row["queue_offset"] for row in rows], "there are more" in err) == ([0, 0, 1], True)
    for message_id in ("ID7", store.records[7].message_id):
        code, (row,), _ = run_json(capsys, "store", "query", store.root, "--id", message_id, "--body", "hex")
        assert (row["physical_offset"], row["body"]) == (store.records[7].physical_offset, b"order 7".hex(" "))
    code, rows, err = run_json(capsys, "store", "query", store.root, "--key", "nothing")
    assert (code, rows) == (1, [])


def test_query_by_time_and_offset(capsys, store):
    seconds = "2023-11-14T22:13:24"  # T0 is 22:13:20 UTC
    for start in (seconds, seconds + "Z", str(T0 + 4000), "2023-11-14T23:13:24+01:00"):
        code, rows, _ = run_json(
            capsys, "store", "query", store.root, "--topic", "orders", "--from", start, "--to", str(T0 + 8000)
        )
        assert (code, [row["body"] for row in rows]) == (0, ["order 4", "order 6", "order 5", "order 7"])
    arguments = ("--topic", "orders", "--queue", 1, "--offset", 2, "--limit", 2)
    code, rows, err = run_json(capsys, "store", "query", store.root, *arguments)
    assert ([row["queue_offset"] for row in rows], "there are more" in err) == ([2, 3], True)
    code, _, err = run(capsys, "store", "query", store.root, "--topic", "absent")
    assert (code, "has no topic absent" in err) == (1, True)


def test_stored_text_cannot_steer_a_terminal(capsys, store):
    code, out, _ = run(capsys, "store", "query", store.root, "--topic", "hostile")
    assert code == 0
    assert "\x1b" not in out
    assert "\\x1b[2J" in out
    assert "\x1b" not in run(capsys, "store", "dump", store.root, "--offset", store.records[-1].physical_offset)[1]


def test_a_reader_that_goes_away_ends_it_quietly(store):
    command = [sys.executable, "-m", "stratamq.cli.main", "store", "inspect", str(store.root)]
    closed_read, write = os.pipe()
    os.close(closed_read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")
