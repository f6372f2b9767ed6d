"""Topics, groups, offsets, locks, subscriptions: the tables of a broker and what is written of them."""

from __future__ import annotations

import pytest

from stratamq.broker.groups import GroupConfig, GroupTable
from stratamq.broker.locks import LEASE_MS, QueueLocks
from stratamq.broker.offsets import OffsetTable
from stratamq.broker.subscriptions import parse_subscription
from stratamq.broker.topics import TopicConfig, TopicTable, check_topic_name
from stratamq.broker.versions import DataVersion
from stratamq.errors import (
    GroupNotFound,
    InvalidArgument,
    SubscriptionIllegal,
    TopicNotFound,
    TopicRefused,
)
from stratamq.formats.config_json import decode_config_json, encode_config_json


def stored(value):
    """What comes back from disk."""
    return decode_config_json(encode_config_json(value))


def topics(**rest) -> TopicTable:
    return TopicTable(wall_ms=lambda: 1000, **rest)


# --- topics ---


def test_a_topic_is_made_from_its_template():
    changes: list[TopicConfig] = []
    table = topics(on_change=changes.append)
    table.ensure("TBW102", queues=8, perm=7)
    made = table.create_from_template("T", template="TBW102", queues=4)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert table.create_from_template("U", template="TBW102", queues=100).queues == 8
    assert [config.topic_name for config in changes] == ["TBW102", "T", "U"]
    assert table.version.counter == 3


@pytest.mark.parametrize(("template", "perm"), [("missing", 7), ("TBW102", 6)])
def test_a_topic_is_not_made_from_what_does_not_inherit(template, perm):
    table = topics()
    table.ensure("TBW102", queues=8, perm=perm)
    with pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
        table.create_from_template("T", template=template, queues=4)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "a/b", "x" * 128, "a\x01"])
def test_names_that_no_topic_has(name):
    with pytest.raises(TopicRefused):
        check_topic_name(name)


def test_queue_counts_are_checked():
    table = topics()
    table.ensure("TBW102", queues=8, perm=7)
    for count in (0, -1):
        with pytest.raises(InvalidArgument):
            table.create_from_template("T", template="TBW102", queues=count)
    for config in (
        TopicConfig(topic_name="T", write_queue_nums=2000),
        TopicConfig(topic_name="T", read_queue_nums=-1),
        TopicConfig(topic_name="T", perm=99),
    ):
        with pytest.raises(InvalidArgument):
            table.update(config)
    with pytest.raises(TopicRefused):
        table.update(TopicConfig(topic_name="SCHEDULE_TOPIC_XXXX"))


def test_topics_come_back_from_disk():
    table = topics()
    table.put(TopicConfig(topic_name="T", read_queue_nums=3, order=True, attributes={"message.type": "FIFO"}))
    again = TopicTable(stored(table.as_json()), wall_ms=lambda: 0)
    assert again.get("T") == table.get("T")
    assert again.version == table.version
    assert again.names() == ["T"]
    with pytest.raises(TopicNotFound):
        again.get("U")


def test_topics_of_a_rocketmq_file_are_read():
    file = {
        "dataVersion": {"counter": 3, "timestamp": 5},
        "topicConfigTable": {
            "T": {"topicName": "T", "perm": 6, "readQueueNums": 4, "multiTypes": 1, "attributes": None},
            "broken": None,
        },
    }
    table = TopicTable(file, wall_ms=lambda: 0)
    assert table.get("T").read_queue_nums == 4
    assert table.get("T").write_queue_nums == 16
    assert table.names() == ["T"]


def test_topics_that_the_store_knows_are_taken_back():
    table = topics()
    table.ensure("known", queues=2)
    assert table.take_back([("lost", 0), ("lost", 4), ("known", 3)]) == ["lost"]
    assert table.get("lost").queues == 5
    assert (table.get("known").read_queue_nums, table.get("known").write_queue_nums) == (4, 2)


# --- groups ---


def test_a_group_is_made_on_first_use_when_allowed():
    table = GroupTable(wall_ms=lambda: 1)
    assert table.get("g").retry_max_times == 16
    assert table.version.counter == 1
    with pytest.raises(InvalidArgument):
        table.get("not legal")
    closed = GroupTable(auto_create=False, wall_ms=lambda: 1)
    with pytest.raises(GroupNotFound, match="autoCreateSubscriptionGroup"):
        closed.get("g")
    assert closed.find("g") is None


def test_groups_come_back_from_disk():
    table = GroupTable(wall_ms=lambda: 1)
    table.put(GroupConfig(group_name="g", retry_max_times=3, consume_enable=False))
    again = GroupTable(stored(table.as_json()), wall_ms=lambda: 1)
    assert again.get("g") == table.get("g")
    again.delete("g")
    again.delete("g")
    assert again.version.counter == table.version.counter + 1
    assert len(again) == 0


# --- offsets ---


def test_offsets_are_written_as_rocketmq_writes_them():
    table = OffsetTable(wall_ms=lambda: 1)
    table.commit("g", "T", 0, 5)
    table.commit("g", "T", 1, 7)
    table.commit("h", "T", 0, 1)
    table.commit("g", "T", 0, 4)
    assert "0:4,1:7" in encode_config_json(table.as_json())
    again = OffsetTable(stored(table.as_json()), wall_ms=lambda: 1)
    assert again.find("g", "T", 0) == 4
    assert again.find("g", "T", 9) is None
    assert again.find("x", "T", 0) is None
    assert again.of("g", "T") == {0: 4, 1: 7}
    assert again.topics_of("g") == ["T"]
    assert again.groups_of("T") == ["g", "h"]
    again.delete_group("g")
    assert again.groups_of("T") == ["h"]


def test_a_version_counts_only_changes():
    table = OffsetTable(wall_ms=lambda: 1)
    table.commit("g", "T", 0, 5)
    assert table.as_json()["dataVersion"]["counter"] == 1
    table.is_dirty = False
    assert table.as_json()["dataVersion"]["counter"] == 1


def test_odd_offset_files():
    file = {"offsetTable": {"noseparator": {"0": 1}, "T@g": {"0": 1}, "a@b@c": {"1": 2}, "x@y": None}}
    table = OffsetTable(file, wall_ms=lambda: 1)
    assert sorted(table.pairs()) == [("T", "g"), ("a@b", "c")]
    assert DataVersion.from_json({"counter": "x"}) == DataVersion()
    assert DataVersion.from_json(None) == DataVersion()


# --- locks ---


def test_a_queue_has_one_holder_until_the_lease_ends():
    locks = QueueLocks()
    queues = [("T", 0), ("T", 1)]
    assert locks.lock("g", "one", queues, 0) == queues
    assert locks.lock("g", "two", [*queues, ("T", 2)], 10) == [("T", 2)]
    assert locks.lock("h", "two", queues, 10) == queues
    assert locks.lock("g", "one", queues, 30_000) == queues
    assert locks.lock("g", "two", queues, LEASE_MS) == []
    assert locks.lock("g", "two", queues, 30_000 + LEASE_MS) == queues
    assert locks.is_group_locked("g", "T", 2, 30_000 + LEASE_MS)
    assert not locks.is_group_locked("g", "U", 2, 0)


def test_only_the_holder_unlocks():
    locks = QueueLocks()
    locks.lock("g", "one", [("T", 0)], 0)
    locks.unlock("g", "two", [("T", 0)])
    assert locks.lock("g", "two", [("T", 0)], 1) == []
    locks.unlock("g", "one", [("T", 0), ("T", 7)])
    assert locks.lock("g", "two", [("T", 0)], 1) == [("T", 0)]
    locks.expire(LEASE_MS + 1)
    assert len(locks) == 0


# --- subscriptions ---


@pytest.mark.parametrize(
    ("expression", "codes"),
    [
        ("*", None),
        ("", None),
        ("TagA", {2598919}),
        ("TagA||TagB", {2598919, 2598920}),
        (" a ||  TagB || ", {97, 2598920}),
    ],
)
def test_tags_of_a_subscription(expression, codes):
    assert parse_subscription("T", expression).tags_codes == codes


def test_subscriptions_that_cannot_be_served():
    with pytest.raises(SubscriptionIllegal):
        parse_subscription("T", " || ")
    with pytest.raises(SubscriptionIllegal):
        parse_subscription("T", "||".join(f"t{number}" for number in range(2000)))
    with pytest.raises(SubscriptionIllegal, match="character 3"):
        parse_subscription("T", "a ! 5", "SQL92")
    with pytest.raises(SubscriptionIllegal, match="XPATH"):
        parse_subscription("T", "//a", "XPATH")
