"""A broker without sockets for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.server.harness import Harness


@pytest.fixture
def harness(tmp_path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.close()
