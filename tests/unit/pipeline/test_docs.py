"""The manual lists every option with its text, and every column."""

from __future__ import annotations

from pathlib import Path

from stratamq.formats.arrow import SCHEMA
from stratamq.pipeline.options import OPTIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def test_every_option_stands_there_as_the_code_says_it():
    assert [name for name, text in OPTIONS.items() if f"| `{name}` | {text} |" not in PAGE] == []


def test_every_column_stands_there():
    assert [name for name in SCHEMA.names if f"`{name}`" not in PAGE] == []
