"""Key-value settings."""

from __future__ import annotations

import pytest

from stratamq.errors import InvalidArgument, NothingFound
from stratamq.nameserver.kv import KvConfig


def test_put_get_delete_and_what_is_stored():
    stored: list[dict] = []
    kv = KvConfig(on_change=stored.append)
    kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"
    assert kv.table("n") == {"k": "v"}
    assert stored == [{"configTable": {"n": {"k": "v"}}}]
    assert KvConfig(stored[0]).get("n", "k") == "v"
    kv.delete("n", "k")
    kv.delete("n", "k")
    assert stored[1:] == [{"configTable": {}}]
    for missing in (lambda: kv.get("n", "k"), lambda: kv.table("n")):
        with pytest.raises(NothingFound):
            missing()


@pytest.mark.parametrize("value", ["", "a", "a:", ":4", "a:4;", "a:x", "a:4,b:4", "a:4;b"])
def test_a_malformed_order_setting_is_refused(value):
    kv = KvConfig()
    with pytest.raises(InvalidArgument, match="order setting"):
        kv.put("ORDER_TOPIC_CONFIG", "T", value)


def test_a_good_order_setting_is_handed_out():
    kv = KvConfig()
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:8;broker-b:4")
    assert kv.order_topics() == {"T": "broker-a:8;broker-b:4"}


def test_the_number_and_length_of_entries_is_bounded():
    kv = KvConfig({"configTable": {"n": {str(number): "v" for number in range(10_000)}}})
    with pytest.raises(InvalidArgument, match="already"):
        kv.put("n", "one more", "v")
    kv.put("n", "0", "changed")
    with pytest.raises(InvalidArgument, match="characters"):
        KvConfig().put("n", "k", "v" * 70_000)


def test_a_damaged_file_is_read_as_far_as_it_makes_sense():
    assert KvConfig({"configTable": {"n": "x", "m": {"k": 5}}}).get("m", "k") == "5"
    assert KvConfig({"configTable": None}).order_topics() == {}
    assert KvConfig([]).order_topics() == {}
