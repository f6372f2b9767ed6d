"""The commands of `stratamq pipeline`: what they would do, and what they refuse, before Spark is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stratamq.cli.main import main
from stratamq.pipeline.jobs.export import export
from stratamq.pipeline.jobs.running import run_here
from stratamq.pipeline.jobs.table import Table
from tests.unit.pipeline.test_export import options_of, store_of


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path / "store", 60)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    from stratamq.cli.jobs.options import SparkOptions

    monkeypatch.setattr(SparkOptions, "session", lambda *_, **__: pytest.fail("Spark is started"))


def run(capsys, *arguments):
    code = main(["pipeline", *map(str, arguments), "--output", "json", "--quiet"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else out.err


def tree(root):
    return sorted((str(path.relative_to(root)), path.stat().st_size) for path in root.rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        (["verify", "--store", "STORE"], {"parts": 1, "index_files": 1, "queue_tasks": 1}),
        (["rebuild", "--store", "STORE", "--in-place"], {"parts": 1, "index_slots": 500, "queue_file_bytes": 1280}),
        (["rebuild", "--store", "STORE", "--out", "STORE/../x"], {"parts": 1}),
        (["report", "--store", "STORE", "--out", "STORE/../r.html"], {"messages": 60}),
    ],
)
def test_a_dry_run_says_what_would_be_done_and_does_nothing(store, tmp_path, capsys, arguments, plan):
    before = tree(tmp_path)
    code, found = run(capsys, *(one.replace("STORE", str(store.root)) for one in arguments), "--dry-run")
    assert code == 0
    assert {name: found["plan"][name] for name in plan} == plan
    assert tree(tmp_path) == before


def test_a_dry_run_of_an_export_shows_what_is_new(store, tmp_path, capsys):
    code, found = run(
        capsys, "export", "--store", store.root, "--out", tmp_path / "t", "--topics", "orders", "--dry-run"
    )
    assert code == 0
    assert sum(row["hi"] - row["lo"] for row in found["plan"]) == 30
    assert not (tmp_path / "t").exists()
    export(run_here, options_of(store), Table(tmp_path / "t"))
    assert run(capsys, "export", "--store", store.root, "--out", tmp_path / "t", "--dry-run")[1]["plan"] == []


def test_a_dry_run_of_a_replay_from_a_table_and_from_a_store(store, tmp_path, capsys):
    export(run_here, options_of(store), Table(tmp_path / "t"))
    to = ["--namesrv", "127.0.0.1:1", "--topics", "orders", "--dry-run"]
    for source in (["--table", tmp_path / "t"], ["--store", store.root]):
        code, found = run(capsys, "replay", *source, *to)
        assert code == 0
        assert sum(row["hi"] - row["lo"] for row in found["plan"]) == 30
    code, said = run(capsys, "replay", "--table", tmp_path / "t", "--topic-pattern", "o.*", *to)
    assert (code, "by --topics" in said) == (2, True)
    code, said = run(capsys, "replay", *to)
    assert code == 2
    assert "--table" in said
    code, said = run(capsys, "replay", "--table", tmp_path / "t", "--namesrv", "x:1", "--topics", "absent", "--dry-run")
    assert (code, "no topic absent" in said) == (5, True)


def test_a_dry_run_of_compact_names_joins(tmp_path, capsys):
    os.makedirs(tmp_path / "cold")
    code, found = run(capsys, "compact", f"file://{tmp_path}/cold", "--dry-run")
    assert (code, found) == (0, {"plan": []})


@pytest.mark.parametrize("job", ["verify", "rebuild", "export", "report"])
def test_what_is_no_store_is_refused(job, tmp_path, capsys):
    more = {
        "rebuild": ["--out", tmp_path / "o"],
        "export": ["--out", tmp_path / "o"],
        "report": ["--out", tmp_path / "r"],
    }
    code, said = run(capsys, job, "--store", tmp_path, *more.get(job, []))
    assert code == 3
    assert "commitlog" in said


def test_where_a_rebuild_goes_must_be_said(store, capsys):
    for more in ([], ["--in-place", "--out", "x"]):
        assert run(capsys, "rebuild", "--store", store.root, *more)[0] == 2
    (store.root / "abort").write_text("1")
    code, said = run(capsys, "rebuild", "--store", store.root, "--in-place")
    assert (code, "not stopped in order" in said) == (5, True)


def test_settings_of_spark_are_checked(store, capsys):
    code, said = run(capsys, "verify", "--store", store.root, "--conf", "nonsense", "--dry-run")
    assert (code, "spark.SOMETHING=VALUE" in said) == (2, True)
    assert run(capsys, "verify", "--store", store.root, "--part-bytes", "much", "--dry-run")[0] == 2


def test_every_job_is_in_the_manual_and_has_the_options_of_all():
    from stratamq.cli.pipeline import pipeline

    manual = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    for name in ("report", "verify", "rebuild", "compact", "export", "replay"):
        command = pipeline.get_command(None, name)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--master", "--packages", "--conf", "--dry-run", "--output", "--quiet"} <= options, name
        assert f"stratamq pipeline {name}" in manual
