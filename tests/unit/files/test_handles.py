"""A bounded set of open files."""

from __future__ import annotations

import os

import pytest

from stratamq.files.filesystem import LocalFileSystem
from stratamq.files.handles import HandleCache


def test_the_least_recently_used_is_closed(tmp_path):
    cache = HandleCache(LocalFileSystem(), 2)
    paths = [str(tmp_path / name) for name in "abc"]
    first = cache.create(paths[0], 1)
    second = cache.create(paths[1], 1)
    assert cache.get(paths[0]) == first
    cache.create(paths[2], 1)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(second)
    assert len(cache) == 2
    assert cache.get(paths[0]) == first
    cache.forget(paths[0])
    cache.forget(paths[0])
    assert len(cache) == 1
    cache.close()
    assert len(cache) == 0


def test_a_missing_file_is_an_error(tmp_path):
    cache = HandleCache(LocalFileSystem(), 0)
    with pytest.raises(FileNotFoundError):
        cache.get(str(tmp_path / "none"))
