"""The examples: that they load without a broker or Spark, and what of them is plain Python."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from examples import produce_consume

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["examples.produce_consume", "examples.demo.clients"])
def test_loading_needs_no_client_and_no_spark(name):
    code = f"import sys, {name}; assert not {{'rocketmq', 'pyspark'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}/src:{ROOT}"})


def test_greetings():
    found = list(produce_consume.greetings(3))
    assert found[0] == ("greeting-0", "even", "hello, number 0")
    assert [tag for _, tag, _ in found] == ["even", "odd", "even"]


def test_spark_read_explains_itself(capsys):
    pytest.importorskip("pyspark")
    example = importlib.import_module("examples.spark_read")
    assert example.main([]) == 2
    assert "spark_read.py DIR" in capsys.readouterr().out


def test_demo_explains_itself():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo" / "run.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--events" in done.stdout
