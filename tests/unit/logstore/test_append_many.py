"""Appending many at once: the same bytes as one by one, the same limits, all or none."""

from __future__ import annotations

import errno
import random

import pytest

from stratamq.errors import FlowControlled, MessageRefused, StoreClosed, StoreFull
from stratamq.formats.message import encode_host
from stratamq.testing.clock import ManualClock
from stratamq.testing.filesystem import FaultyFileSystem
from tests.unit.logstore.stores import FOREVER, abandon, bodies, message, open_store, put, read_all, small_config


def files_of(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for part in ("commitlog", "consumequeue", "index")
        for path in sorted((directory / part).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("seed", range(25))
def test_the_files_are_those_of_one_by_one(tmp_path, seed):
    rng = random.Random(seed)
    stores = [open_store(tmp_path / name, clock=ManualClock()) for name in "ab"]
    for _ in range(rng.randint(1, 6)):
        texts = [rng.randbytes(rng.choice([0, 1, 40, 700, 3000])) for _ in range(rng.randint(1, 40))]
        template = message(
            topic=rng.choice(["A", "B", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130]),
            queue_id=rng.randint(0, 2),
            flag=rng.choice([0, -5]),
            sys_flag=rng.choice([0, 0x101]),
            KEYS=rng.choice(["all", "x y"]),
            TAGS="t",
            DELAY="2",
        )
        own = None
        if rng.random() < 0.5:
            own = [f"KEYS\x01k{number}\x02TAGS\x01{number % 3}\x02" for number in range(len(texts))]
        result = stores[0].append_many(template, texts, own)
        ones = []
        for number, body in enumerate(texts):
            one = message(body, topic=template.topic, queue_id=template.queue_id)
            one.flag, one.sys_flag = template.flag, template.sys_flag
            one.properties = template.properties if own is None else own[number]
            ones += stores[1].append((one,))
        assert result == (ones[0].physical_offset, ones[0].queue_offset, len(ones), ones[0].store_timestamp)
        if rng.random() < 0.7:
            for store in stores:
                put(store)
    for store in stores:
        store.close()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path / "s")
    yield store
    store.close()


@pytest.mark.parametrize(
    ("template", "texts", "properties"),
    [
        (message(), [], None),
        (message(topic="a/b"), [b"x"], None),
        (message(sys_flag=4), [b"x"], None),
        (message(), [b"x", b"y" * 4000], None),
        (message(), [b"x"], ["a", "b"]),
        (message(), [b"x", b"y"], ["", "p" * 40_000]),
        (message(), [b"x"], ["\ud800"]),
        (message(), [b"x" * (5 << 20)], None),
        (message(flag=2**40), [b"x"], None),
    ],
)
def test_what_does_not_fit_is_refused_whole(store, template, texts, properties):
    with pytest.raises(MessageRefused):
        store.append_many(template, texts, properties)
    assert store.commit() is None
    assert store.append((message(),))[0][:3] == (0, 93, 0)


def test_ipv6_hosts_are_for_append(store):
    template = message()
    template.born_host = encode_host("::1", 1)
    with pytest.raises(MessageRefused, match="IPv6"):
        store.append_many(template, [b"x"])


def test_a_full_disk_takes_all_back(tmp_path):
    fs = FaultyFileSystem()
    store = open_store(tmp_path, fs=fs)
    fs.fail("write", path_part="commitlog", error=errno.ENOSPC, nth=2)
    store.append_many(message(KEYS="k"), [b"lost" * 300] * 20)
    with pytest.raises(StoreFull):
        store.commit()
    result = store.append_many(message(KEYS="k"), [b"kept"] * 3)
    assert (result.queue_offset, result.physical_offset) == (0, 0)
    put(store)
    assert bodies(store) == [b"kept"] * 3
    assert len(store.query("T", "k", 9, 0, FOREVER).records) == 3
    abandon(store)
    store = open_store(tmp_path)
    assert bodies(store) == [b"kept"] * 3
    store.close()


def test_it_is_bounded_and_refused_after_closing(tmp_path):
    store = open_store(tmp_path, small_config(pending_bytes_max=1 << 20, commit_log_file_bytes=1 << 21))
    store.append_many(message(), [b"x" * 1000] * 800)
    with pytest.raises(FlowControlled):
        store.append_many(message(), [b"x" * 1000] * 800)
    store.close()
    with pytest.raises(StoreClosed):
        store.append_many(message(), [b"x"])
    store = open_store(tmp_path, small_config(commit_log_file_bytes=1 << 21))
    assert len(read_all(store)) == 800
    store.close()
