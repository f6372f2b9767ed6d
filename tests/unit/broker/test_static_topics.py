"""Static topics: what a mapping may say, how one follows another, and offsets there and back."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.broker.static_topics import MappingItem, Place, StaticTopics, TopicMapping, check_items, decode_mapping
from stratamq.errors import MappingRefused, NotLeaderForQueue


def item(gen=0, queue_id=0, bname="a", logic=0, start=0, end=-1):
    return MappingItem(gen=gen, queue_id=queue_id, bname=bname, logic_offset=logic, start_offset=start, end_offset=end)


def mapping(queues, *, epoch=1, total=4, bname="a"):
    return TopicMapping(topic="S", bname=bname, total_queues=total, epoch=epoch, hosted_queues=queues)


def table(*mappings):
    topics = StaticTopics(broker_name="a", wall_ms=lambda: 5)
    for one in mappings:
        topics.put(topics.accept(one))
    return topics


@st.composite
def histories(draw):
    """Items as a queue gets them that moves about: each ends before the next begins."""
    items, at = [], draw(st.integers(0, 10**6))
    for gen in range(draw(st.integers(1, 6))):
        start, length = draw(st.integers(0, 1000)), draw(st.integers(0, 10**6))
        items.append(
            item(gen, gen, draw(st.sampled_from("ab")), at, start, draw(st.sampled_from([-1, start + length])))
        )
        at += length + draw(st.integers(1, 10**5))
    return tuple(items)


@given(histories(), st.integers(0, 10**7))
def test_an_offset_comes_back_from_the_item_it_lies_in(items, offset):
    check_items(items)
    place = Place(mapping({0: items}), 0, items)
    found = place.item_at(offset)
    if offset < items[0].logic_offset:
        assert found is items[0]
        assert found.to_physical(offset) < found.start_offset
        return
    following = place.after(found)
    assert found.logic_offset <= offset
    assert following is None or offset < following.logic_offset
    assert found.to_logical(found.to_physical(offset)) == offset
    assert found.to_physical(offset) == offset - found.delta


@given(histories())
def test_messages_keep_their_order(items):
    """What is stored later, in the same item or in a later one, has a higher offset."""
    places = []
    for one in items:
        length = one.end_offset - one.start_offset if one.end_offset != -1 else 1
        places += [(one, one.start_offset + at) for at in range(min(length, 3))]
    told = [one.to_logical_or_unknown(offset) for one, offset in places]
    assert told == sorted(set(told))


@given(histories())
def test_a_mapping_comes_back_from_json(items):
    before = mapping({0: items, 3: items[:1]})
    assert decode_mapping(json.loads(json.dumps(before.as_json()))) == before


def test_an_item_that_is_not_decided_is_written_to_but_not_read():
    items = (item(), item(1, 0, "a", -1))
    place = Place(mapping({0: items}), 0, items)
    assert place.leader.to_logical_or_unknown(7) == -1
    assert place.item_at(10**9) is items[0]
    assert place.after(items[0]) is None


def test_an_end_caps_what_is_told():
    assert item(logic=100, start=0, end=10).to_logical_or_unknown(50) == 110
    assert item(logic=100, start=20).to_logical(3) == 100


BAD_ITEMS = {
    "negative": (item(start=-1),),
    "has no logicOffset": (item(logic=-1), item(1, logic=50)),
    "must grow": (item(1), item(1, logic=50)),
    "before it begins": (item(start=5, end=3),),
    "logicOffset 50": (item(logic=50), item(1, logic=50)),
    "reaches into": (item(end=50), item(1, logic=50)),
    "at most": tuple(item(gen, logic=gen) for gen in range(1025)),
}


@pytest.mark.parametrize(("words", "items"), BAD_ITEMS.items(), ids=list(BAD_ITEMS))
def test_items_that_cannot_follow_one_another_are_refused(words, items):
    with pytest.raises(MappingRefused, match=words):
        check_items(items)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"bname": "a"},
        {"topic": "S", "bname": "a", "totalQueues": 5000},
        {"topic": "S", "bname": "a", "epoch": -2},
        {"topic": "S", "bname": "a", "hostedQueues": {"x": []}},
        {"topic": "S", "bname": "a", "hostedQueues": {"-1": []}},
        {"topic": "S", "bname": "a", "hostedQueues": {"0": [{"gen": 0, "queueId": 0}]}},
        {"topic": "S", "bname": "a", "hostedQueues": {"0": [{"gen": 0, "queueId": 2**40, "bname": "a"}]}},
        {
            "topic": "S",
            "bname": "a",
            "hostedQueues": {"0": [{"gen": 0, "queueId": 0, "bname": "a", "logicOffset": -7}]},
        },
    ],
)
def test_a_mapping_that_is_none_is_refused(value):
    with pytest.raises(MappingRefused):
        decode_mapping(value)


def test_members_that_rocketmq_leaves_out_or_adds_do_no_harm():
    found = decode_mapping({"topic": "S", "bname": "a", "hostedQueues": {0: []}, "currIdMap": {"0": 1}, "scope": None})
    assert found == mapping({0: ()}, epoch=0, total=0)


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("is for broker b", mapping({}, bname="b")),
        ("names queue 4", mapping({4: (item(),)})),
        ("says nothing of queue 1", mapping({1: ()})),
        ("where queue 1 begins", mapping({1: (item(logic=-1),)})),
        ("same physical queue 0", mapping({0: (item(),), 1: (item(),)})),
    ],
)
def test_a_mapping_that_cannot_be_served_is_refused(words, bad):
    topics = table()
    with pytest.raises(MappingRefused, match=words):
        topics.accept(bad)
    assert "S" not in topics
    assert not topics.is_dirty


def test_only_a_successor_takes_the_place_of_a_mapping():
    topics = table(mapping({0: (item(),), 1: (item(queue_id=1),)}, epoch=5))
    moved = (item(), item(1, 0, "b", 100))
    with pytest.raises(MappingRefused, match="older"):
        topics.accept(mapping({}, epoch=4))
    with pytest.raises(MappingRefused, match="queue 1 is missing"):
        topics.accept(mapping({0: (item(),)}, epoch=5))
    with pytest.raises(MappingRefused, match="needs a higher epoch"):
        topics.accept(mapping({0: moved, 1: (item(queue_id=1),)}, epoch=5))
    with pytest.raises(MappingRefused, match="another physical queue"):
        topics.accept(mapping({0: (item(queue_id=3),)}, epoch=6))
    with pytest.raises(MappingRefused, match="cannot become 9"):
        topics.accept(mapping({0: (item(logic=9),)}, epoch=6))
    topics.put(topics.accept(mapping({0: moved}, epoch=6)))
    assert topics.find("S").hosted_queues == {0: moved, 1: (item(queue_id=1),)}
    topics.put(topics.accept(mapping({0: (item(queue_id=7),)}, epoch=1), force=True))
    assert topics.find("S").led() == {0: 7, 1: 1}


def test_a_logic_offset_is_decided_once_within_an_epoch():
    open_, decided = ((item(0, 0, "b"), item(1, 0, "a", logic)) for logic in (-1, 10_000))
    topics = table(mapping({0: open_}, epoch=5), mapping({0: decided}, epoch=5))
    with pytest.raises(MappingRefused, match="cannot become 20000"):
        topics.accept(mapping({0: (item(0, 0, "b"), item(1, 0, "a", 20_000))}, epoch=5))


def test_the_oldest_items_may_go():
    three = (item(0), item(1, 1, "a", 100), item(2, 2, "a", 200))
    topics = table(mapping({0: three}, epoch=1), mapping({0: three[1:]}, epoch=1), mapping({0: three[2:]}, epoch=2))
    assert topics.place("S", 0).earliest == three[2]


def test_who_leads_is_asked():
    topics = table(mapping({0: (item(0, 3),), 2: (item(0, 1), item(1, 0, "b", 50))}))
    assert topics.place("T", 0) is None
    assert topics.place("S", 0).leader.queue_id == 3
    assert topics.place("S", -1).queue_id == 0
    for queue_id in (1, 2, 3, 99):
        with pytest.raises(NotLeaderForQueue, match=f"S-{queue_id} is not led by broker a"):
            topics.place("S", queue_id)
    with pytest.raises(NotLeaderForQueue):
        table(mapping({})).place("S", -1)


def test_name_servers_are_told_the_leaders_only():
    topics = table(mapping({0: (item(0, 3),), 2: (item(0, 1), item(1, 0, "b", 50))}, epoch=8))
    assert topics.infos() == {
        "S": {
            "bname": "a",
            "currIdMap": {0: 3},
            "dirty": False,
            "epoch": 8,
            "scope": "__global__",
            "topic": "S",
            "totalQueues": 4,
        }
    }


def test_the_table_comes_back_from_its_file_and_from_a_master():
    topics = table(mapping({0: (item(0, 3),)}))
    stored = json.loads(json.dumps(topics.as_json()))
    again = StaticTopics(stored, broker_name="a", wall_ms=lambda: 9)
    assert (again.find("S"), again.version, again.is_dirty) == (topics.find("S"), topics.version, False)
    slave = StaticTopics(broker_name="a", wall_ms=lambda: 9)
    sent = {"topicQueueMappingDetailMap": topics.details(), "mappingDataVersion": topics.version.as_json()}
    slave.adopt(sent)
    assert (slave.find("S"), slave.version, slave.is_dirty) == (topics.find("S"), topics.version, True)
    slave.is_dirty = False
    slave.adopt(sent)
    assert not slave.is_dirty
    topics.delete("S")
    topics.delete("S")
    assert (len(topics), topics.version.counter) == (0, 2)


def test_a_damaged_file_is_not_taken_for_an_empty_one():
    with pytest.raises(MappingRefused):
        StaticTopics({"topicQueueMappingInfoMap": {"S": 5}}, broker_name="a", wall_ms=lambda: 0)
    assert msgspec.structs.fields(MappingItem)[1].encode_name == "queueId"
