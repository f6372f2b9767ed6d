"""Queues and index made in parts are the broker's own files, byte for byte."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stratamq.errors import CorruptionError, PipelineError, StoreLocked
from stratamq.logstore import rebuild_parts
from stratamq.logstore.check import check_store
from stratamq.pipeline.jobs import rebuild
from stratamq.pipeline.jobs.running import run_here
from tests.golden.archives import unpack_store
from tests.unit.logstore.stores import message, open_store, put, small_config
from tests.unit.logstore.tiny_store import flip

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
STORES = sorted(path.parent.name for path in GOLDEN.glob("rocketmq-*-[ck]l*/store.tar.xz"))  # clean, killed


def files_below(root: Path, *, names_of_index: bool = True) -> dict[str, bytes]:
    found = {}
    for name in ("consumequeue", "index"):
        for number, path in enumerate(sorted(path for path in (root / name).rglob("*") if path.is_file())):
            key = str(path.relative_to(root)) if name != "index" or names_of_index else f"index/{number}"
            found[key] = path.read_bytes()
    return found


def written_store(root: Path, *, file_bytes: int = 4096, messages: int = 300) -> Path:
    store = open_store(root, small_config(commit_log_file_bytes=file_bytes))
    for number in range(messages):
        topic = ["orders", "payments", "SCHEDULE_TOPIC_XXXX"][number % 3]
        extra = {"DELAY": str(1 + number % 5)} if number % 3 == 2 else {}
        extra |= {"TAGS": f"t{number % 3}", "KEYS": f"k{number % 9} both", "UNIQ_KEY": f"u{number}"}
        put(store, message(b"x" * (number % 70), topic=topic, queue_id=number % 4, **extra), sync=number % 50 == 0)
    store.close()
    return root


def made_elsewhere(root: Path, out: Path, *, shares: int = 3, part_bytes: int = 8192) -> rebuild.Rebuilt:
    plan = rebuild.plan_rebuild(root, out, part_bytes=part_bytes)
    return rebuild.rebuild_elsewhere(run_here, plan, out, shares=shares)


@pytest.mark.parametrize("file_bytes", [4096, 1 << 20])
def test_into_another_directory(tmp_path, file_bytes):
    root = written_store(tmp_path / "store", file_bytes=file_bytes)
    made = made_elsewhere(root, tmp_path / "out")
    assert made.records == 300
    assert made.units == 300
    assert files_below(tmp_path / "out", names_of_index=False) == files_below(root, names_of_index=False)
    assert sorted(os.listdir(tmp_path / "out")) == ["consumequeue", "index"]


def test_in_place_after_both_are_gone(tmp_path):
    root = written_store(tmp_path / "store")
    before = files_below(root)
    shape = small_config()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    with rebuild.store_held(root):
        plan = rebuild.plan_rebuild(root, root, shape, part_bytes=8192)
        rebuild.rebuild_in_place(run_here, plan, shares=2)
        with pytest.raises(StoreLocked), rebuild.store_held(root):
            pass
    after = files_below(root)
    assert list(after.values()) == list(before.values())
    assert max(name for name in after if "index" in name) == max(name for name in before if "index" in name)
    assert not check_store(root).is_damaged
    assert not [name for name in os.listdir(root) if name.startswith("rebuild")]
    opened = open_store(root)  # a broker takes it as it is: nothing is read again
    assert opened.recovery.records == 0
    assert opened.max_offset("orders", 0) == 25
    opened.close()


@pytest.mark.parametrize("deadly", range(1, 9))
def test_killed_while_directories_are_swapped(tmp_path, monkeypatch, deadly):
    root = written_store(tmp_path / "store", messages=60)
    before = files_below(root)
    real, steps = os.rename, []

    def dies(*arguments):
        if "rebuild.made" in str(arguments[0]) or "rebuild.old" in str(arguments[1]):
            steps.append(arguments)
            if len(steps) == (deadly + 1) // 2 and deadly % 2:
                raise KeyboardInterrupt
        real(*arguments)
        if steps and len(steps) == deadly // 2 and deadly % 2 == 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, rebuild.store_held(root):
        patched.setattr(rebuild.os, "rename", dies)
        plan = rebuild.plan_rebuild(root, root)
        with pytest.raises(KeyboardInterrupt):
            rebuild.rebuild_in_place(run_here, plan, shares=2)
    with rebuild.store_held(root):
        rebuild.rebuild_in_place(run_here, rebuild.plan_rebuild(root, root), shares=2)
    assert list(files_below(root).values()) == list(before.values())
    assert not [name for name in os.listdir(root) if name.startswith("rebuild")]
    opened = open_store(root)
    assert opened.recovery.records == 0
    opened.close()


def test_a_killed_run_is_taken_up(tmp_path, monkeypatch):
    root = written_store(tmp_path / "store")
    done: list[str] = []

    def killed(fn, tasks):
        answers = []
        for task in tasks:
            if len(done) == 6:
                raise KeyboardInterrupt
            answers.append(fn(task))
            done.append(fn.__name__)
        return answers

    plan = rebuild.plan_rebuild(root, tmp_path / "out", part_bytes=4096)
    with pytest.raises(KeyboardInterrupt):
        rebuild.rebuild_elsewhere(killed, plan, tmp_path / "out", shares=2)
    scanned: list[object] = []
    real = rebuild_parts._scan

    def recorded(task, recorder):
        scanned.append(task)
        return real(task, recorder)

    monkeypatch.setattr(rebuild_parts, "_scan", recorded)
    rebuild.rebuild_elsewhere(run_here, plan, tmp_path / "out", shares=2)
    assert len(scanned) == len(plan.parts) - 6
    assert files_below(tmp_path / "out", names_of_index=False) == files_below(root, names_of_index=False)


def test_killed_while_queues_and_index_are_written(tmp_path):
    root = written_store(tmp_path / "store")
    plan = rebuild.plan_rebuild(root, tmp_path / "out")
    for deadly in range(3, 9):
        count = 0

        def killed(fn, tasks, deadly=deadly):
            nonlocal count
            answers = []
            for task in tasks:
                answers.append(fn(task))
                count += 1
                if count == deadly:
                    raise KeyboardInterrupt
            return answers

        with pytest.raises(KeyboardInterrupt):
            rebuild.rebuild_elsewhere(killed, plan, tmp_path / "out", shares=4)
    rebuild.rebuild_elsewhere(run_here, plan, tmp_path / "out", shares=4)
    assert files_below(tmp_path / "out", names_of_index=False) == files_below(root, names_of_index=False)


def test_a_damaged_log_makes_nothing(tmp_path):
    root = written_store(tmp_path / "store")
    flip(root / "commitlog" / f"{4096:020d}", 100, 0xFF)
    with pytest.raises(CorruptionError):
        made_elsewhere(root, tmp_path / "out")
    assert not (tmp_path / "out" / "consumequeue").exists()


def test_what_is_refused(tmp_path):
    root = written_store(tmp_path / "store", messages=10)
    plan = rebuild.plan_rebuild(root, root)
    with pytest.raises(PipelineError, match="the store itself"):
        rebuild.rebuild_elsewhere(run_here, plan, root, shares=1)
    (tmp_path / "full" / "index").mkdir(parents=True)
    with pytest.raises(PipelineError, match="has index already"):
        rebuild.rebuild_elsewhere(run_here, plan, tmp_path / "full", shares=1)
    (root / "abort").write_text("1")
    with pytest.raises(PipelineError, match="not stopped in order"), rebuild.store_held(root):
        pass


@pytest.mark.parametrize("kind", STORES)
def test_rocketmq_stores(kind, tmp_path):
    """Its queues, and before 5.5 (which indexes tags as well) its index: of a killed broker as far as it had come."""
    root = unpack_store(kind, tmp_path)
    made_elsewhere(root, tmp_path / "out", part_bytes=1)
    theirs, ours = files_below(root, names_of_index=False), files_below(tmp_path / "out", names_of_index=False)
    compared = [name for name in theirs if not (name.startswith("index") and "5.5" in kind)]
    if "killed" in kind:
        compared = [name for name in compared if name.startswith("consumequeue")]
        assert [name for name in compared if not ours[name].startswith(theirs[name].rstrip(b"\0"))] == []
    else:
        assert [name for name in compared if ours[name] != theirs[name]] == []
        assert sorted(name for name in ours if "index" not in name) == sorted(n for n in theirs if "index" not in n)
    assert len(compared) > 4
    for part in ("consumequeue", "index"):  # and a check of the log with ours in the place of theirs finds no damage
        shutil.rmtree(root / part)
        shutil.move(tmp_path / "out" / part, root / part)
    assert not check_store(root).is_damaged
