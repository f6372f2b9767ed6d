"""The demo's events: always the same, within the sizes promised, and lifelike enough to report on."""

from __future__ import annotations

import collections
import json

from examples.demo import orders


def test_a_number_is_always_the_same_event():
    first = list(orders.events(300))
    assert first == list(orders.events(300))
    assert [event.number for event in first] == list(range(300))
    assert first[:100] == list(orders.events(100))
    assert first[0] != orders.event(0, seed=1)
    # Pinned: whoever changes what the demo sends does so on purpose.
    assert first[0].digest.hex() == "af0e3334f14e1e6851928ef60f432d31"


def test_senders_share_the_events():
    shares = [list(orders.events(100, start=start, step=3)) for start in range(3)]
    assert sorted(event.number for share in shares for event in share) == list(range(100))
    assert shares[1][0] == orders.event(1)


def test_sizes_and_contents_are_as_promised():
    events = list(orders.events(6000))
    sizes = sorted(len(event.body) for event in events)
    assert sizes[0] >= orders.BODY_BYTES_MIN
    assert sizes[-1] <= orders.BODY_BYTES_MAX
    assert sizes[300] < 400
    assert sizes[-300] > 1800
    for event in events[:300]:
        document = json.loads(event.body)
        assert document["event"] == event.number
        assert event.keys == f"{document['order_id']} {document['customer']}"
        assert document["type"] == event.tag
    assert all(b"\0" not in event.body for event in events), "the C++ client ends a body at the first zero byte"


def test_topics_and_tags_of_a_life():
    events = list(orders.events(6000))
    tags = collections.Counter((event.topic, event.tag) for event in events)
    assert {topic for topic, _ in tags} == set(orders.TOPICS)
    assert tags[orders.CREATED] == 2000
    assert tags[orders.PAID] > 10 * tags[orders.DECLINED] > 0
    assert tags[orders.DECLINED] == tags[orders.CANCELLED]
    ids = collections.Counter(event.keys.split(" ")[0] for event in events)
    assert set(ids.values()) == {3}


def test_no_two_events_look_alike():
    digests = {event.digest for event in orders.events(3000)}
    assert len(digests) == 3000
    assert orders.digest("a", "b", "c", b"d") != orders.digest("a", "bc", "", b"d")
