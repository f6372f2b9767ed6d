"""A check in parts finds what the check in one piece finds, word for word, whatever is wrong with the store."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from stratamq.findings import Findings, Severity
from stratamq.logstore.check import CheckReport, check_store
from stratamq.logstore.check_log import LogFacts, LogPass, QueueNames
from stratamq.logstore.check_parts import PartedCheck, run_here
from stratamq.logstore.listing import StreamFile
from tests.golden.archives import unpack_store
from tests.unit.logstore.stores import message, open_store, put
from tests.unit.logstore.tiny_store import T0, TinyStore, flip

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
STORES = sorted(path.parent.name for path in GOLDEN.glob("rocketmq-*/store.tar.xz"))


def made_store(root: Path, *, clock_goes_back: bool = False) -> TinyStore:
    made = TinyStore(root, queue_file_units=16, index_slots=500, index_entries=2000)
    for number in range(240):
        properties = f"UNIQ_KEY\x01u{number}\x02TAGS\x01t{number % 3}\x02KEYS\x01k{number % 7} other\x02"
        stored = T0 + number - (700 if clock_goes_back and number % 60 >= 50 else 0)
        made.put(f"topic-{number % 3}", number % 2, b"x" * (number % 90), properties, stored=stored)
    return made.write()


def seen(report: CheckReport) -> tuple[object, ...]:
    """All of a report but the order in which findings of one severity were made."""
    return (
        report._replace(findings=[], counts={}),
        sorted(map(repr, report.findings)),
        sorted(map(repr, report.counts.items())),
    )


def in_parts(root: Path, part_bytes: int = 8192, rows_max: int = 7) -> CheckReport:
    return PartedCheck(root, part_bytes=part_bytes, rows_max=rows_max).run(run_here)


@pytest.mark.parametrize(("part_bytes", "rows_max"), [(1, 10_000), (1, 1), (8192, 13), (1 << 30, 10_000)])
@pytest.mark.parametrize("clock_goes_back", [False, True])
def test_a_whole_store(tmp_path, part_bytes, rows_max, clock_goes_back):
    made_store(tmp_path / "store", clock_goes_back=clock_goes_back)
    plain = check_store(tmp_path / "store")
    assert seen(in_parts(tmp_path / "store", part_bytes, rows_max)) == seen(plain)
    assert plain.records == 240
    assert not plain.is_damaged
    kinds = {kind for _, kind in plain.counts}
    assert ("clock" in kinds) == clock_goes_back


@pytest.mark.parametrize("seed", range(24))
def test_a_damaged_store(tmp_path, seed):
    made_store(tmp_path / "store")
    chance = random.Random(seed)
    files = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file() and len(path.name) in (17, 20))
    for _ in range(1 + seed % 4):
        path = chance.choice(files)
        flip(path, chance.randrange(path.stat().st_size), 1 << chance.randrange(8))
    plain = check_store(tmp_path / "store")
    assert seen(in_parts(tmp_path / "store", 1 + seed % 3 * 6000, (2, 7, 30, 10_000)[seed % 4])) == seen(plain)


def pairs(facts: LogFacts) -> list[tuple[int, int]]:
    """Positions and hashes of index entries."""
    return list(zip(facts.positions[facts.index_rows].tolist(), facts.index_hashes.tolist(), strict=True))


def test_a_file_comes_in_pieces_that_tile_it(tmp_path):
    store = made_store(tmp_path / "store")
    path = min((store.root / "commitlog").iterdir())
    log, file = np.frombuffer(path.read_bytes(), np.uint8), StreamFile(str(path), 0, path.stat().st_size, 0, 0)
    whole = LogPass(Findings(), QueueNames()).file(log, file, len(log))
    pieces = list(LogPass(Findings(), QueueNames()).pieces(log, file, len(log), rows_max=5))
    ends = [end for end, _ in pieces]
    assert [len(facts.positions) for _, facts in pieces[:-1]] == [5] * (len(pieces) - 1)
    assert len(pieces) > 3
    assert ends == [*(int(facts.positions[0]) for _, facts in pieces[1:]), len(log)]
    for field in ("positions", "queue_offsets", "tags_codes"):
        assert np.array_equal(np.concatenate([getattr(facts, field) for _, facts in pieces]), getattr(whole, field))
    entries = [pair for _, facts in pieces for pair in pairs(facts)]
    assert sorted(entries) == sorted(pairs(whole))


def test_a_clock_that_was_set_back_is_counted_the_same_in_any_pieces(tmp_path):
    store = made_store(tmp_path / "store", clock_goes_back=True)
    steps = set()
    for rows_max in (1, 3, 1000):
        one = LogPass(Findings(), QueueNames())
        for path in sorted((store.root / "commitlog").iterdir()):
            log = np.frombuffer(path.read_bytes(), np.uint8)
            list(one.pieces(log, StreamFile(str(path), int(path.name), len(log), 0, 0), len(log), rows_max=rows_max))
        steps.add(one.clock_steps)
    assert len(steps) == 1
    assert steps != {0}


def test_units_and_entries_that_are_gone(tmp_path):
    store = made_store(tmp_path / "store")
    queue = sorted((store.root / "consumequeue" / "topic-1" / "1").iterdir())
    queue[1].write_bytes(bytes(queue[1].stat().st_size))  # a hole in the middle
    shutil.rmtree(store.root / "consumequeue" / "topic-2" / "0")
    plain = check_store(store.root)
    assert plain.is_damaged
    assert seen(in_parts(store.root)) == seen(plain)
    assert {kind for severity, kind in plain.counts if severity is not Severity.INFO} >= {"unit", "unit-missing"} - {
        "unit"
    }


def test_the_beginning_of_the_log_is_gone(tmp_path):
    store = made_store(tmp_path / "store")
    for path in sorted((store.root / "commitlog").iterdir())[:2]:
        path.unlink()
    plain = check_store(store.root)
    assert seen(in_parts(store.root)) == seen(plain)


def test_an_empty_store(tmp_path):
    TinyStore(tmp_path / "store").write()
    assert seen(in_parts(tmp_path / "store")) == seen(check_store(tmp_path / "store"))


@pytest.mark.parametrize("name", STORES)
def test_rocketmq_stores(name, tmp_path):
    root = unpack_store(name, tmp_path)
    assert seen(in_parts(root, 1)) == seen(check_store(root))


def test_a_store_in_use(tmp_path):
    store = open_store(tmp_path / "store")
    for number in range(150):
        put(store, message(b"x" * 50, queue_id=number % 3, KEYS=f"k{number}"), sync=number % 40 == 0)
    report = in_parts(tmp_path / "store")
    assert report.is_live
    assert not report.is_damaged
    assert seen(report) == seen(check_store(tmp_path / "store"))
    store.close()


def test_some_files_are_compared_with_the_index(tmp_path):
    store = made_store(tmp_path / "store")
    flip(next((store.root / "index").iterdir()), 40 + 4 * 500 + 20 * 5, 0xFF)  # hash of an entry of the first file
    none = PartedCheck(store.root, part_bytes=1, index_every=0).run(run_here)
    some = PartedCheck(store.root, part_bytes=1, index_every=3).run(run_here)
    assert (Severity.ERROR, "index-entry") not in none.counts
    assert some.counts[Severity.ERROR, "index-entry"] == 1
