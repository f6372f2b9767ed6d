"""`stratamq pipeline report`: what it prints, and what it refuses before a JVM is started."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratamq.cli.output import JsonPrinter, TextPrinter
from stratamq.cli.pipeline import pipeline, say
from stratamq.errors import NotAStore
from stratamq.pipeline.jobs.report import report_of_batches
from tests.unit.pipeline.test_facts import batch_of, some_rows


def test_it_prints_for_people_and_for_programs():
    made = report_of_batches([batch_of(some_rows(200))], store="s")
    text, lines = io.StringIO(), io.StringIO()
    say(made, Path("r.html"), None, TextPrinter(text))
    for word in ("200", "r.html", "Topics and tags", "p99.9", "k1"):
        assert word in text.getvalue()
    printer = JsonPrinter(lines)
    say(made, Path("r.html"), Path("r.json"), printer)
    printer.close()
    document = json.loads(lines.getvalue())
    assert document["summary"]["messages"] == 200
    assert document["summary"]["json"] == "r.json"
    assert sum(row["messages"] for row in document["tags"]) == 200
    assert [row["what"] for row in document["distributions"]] == ["body size, bytes", "born to stored, ms"]


def test_an_empty_store_prints_too():
    text = io.StringIO()
    say(report_of_batches([], store="s"), Path("r.html"), None, TextPrinter(text))
    assert "messages              0" in text.getvalue()


def test_what_is_no_store_is_refused_at_once(tmp_path):
    result = CliRunner().invoke(pipeline, ["report", "--store", str(tmp_path), "--out", str(tmp_path / "r.html")])
    assert isinstance(result.exception, NotAStore)


def test_help_loads_nothing_heavy():
    code = "import sys, stratamq.cli.pipeline; assert not {'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("missing", [["--store", "x"], ["--out", "y"]])
def test_both_paths_are_needed(missing):
    assert CliRunner().invoke(pipeline, ["report", *missing]).exit_code == 2
