"""Scripts of what the papers' figures show, with the trace they must give.

`STRATAMQ_REWRITE=1 pytest tests/simulation/test_scripts.py` writes the traces anew; read the difference before it is
committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.deck import perform

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = perform(text)
    if os.environ.get("STRATAMQ_REWRITE"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 4
