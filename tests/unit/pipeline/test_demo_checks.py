"""The demo's own judgement: it must see every kind of fault, or its good word is worth nothing."""

from __future__ import annotations

import json
import struct

import pytest

from examples.demo import orders
from examples.demo.checks import Received, check_counts, check_received
from examples.demo.processes import DemoFailed
from examples.demo.query import decode_records, encode_frame
from examples.demo.run import fresh_folder
from tests.unit.logstore.tiny_store import TinyStore

COUNT, SENDERS = 40, 4


def delivered():
    """40 events, dealt over two queues of each topic in the order sent."""
    places: dict[tuple[str, int], int] = {}
    rows = []
    for event in orders.events(COUNT):
        queue = event.number // 4 % 2
        offset = places.get((event.topic, queue), 0)
        places[event.topic, queue] = offset + 1
        rows.append(Received(event.topic, queue, offset, event.number, event.digest.hex()))
    return rows


def problems(rows):
    digests = [event.digest.hex() for event in orders.events(COUNT)]
    return check_received(rows, digests.__getitem__, COUNT, SENDERS)


def test_all_is_well_in_any_order_of_arrival():
    assert problems(delivered()) == []
    assert problems(delivered()[::-1]) == []


def test_a_lost_event_is_seen():
    rows = delivered()
    assert problems(rows[:-1]) == ["1 x an event never arrived: 39"]
    found = problems(rows[:5] + rows[6:])
    assert "never arrived: 5" in found[0]
    assert "gaps" in found[1]


def test_a_second_delivery_is_seen():
    rows = delivered()
    found = problems([*rows, rows[7]])
    assert found[0] == "1 x an event arrived more than once: 7"
    assert any("gaps or repeats" in one for one in found)
    again = rows[7]._replace(queue_offset=1000)
    assert "arrived more than once" in problems([*rows, again])[0]


def test_another_content_is_seen():
    rows = delivered()
    rows[3] = rows[3]._replace(digest="00" * 16)
    assert problems(rows) == ["1 x an event arrived with another topic, tag, key or body than it was sent with: 3"]
    rows[3] = rows[3]._replace(number=COUNT + 5)
    assert "never arrived: 3" in problems(rows)[0]
    assert "was never sent: 45" in problems(rows)[1]


def test_two_events_of_one_sender_in_the_wrong_order_are_seen():
    rows = delivered()
    first, second = [row for row in rows if row.number % SENDERS == 1 and (row.topic, row.queue_id) == ("orders", 0)][
        :2
    ]
    swapped = {first: second, second: first}
    rows = [
        row._replace(number=swapped[row].number, digest=swapped[row].digest) if row in swapped else row for row in rows
    ]
    assert ["stands behind a later one of its sender in queue 0 of topic orders" in one for one in problems(rows)] == [
        True
    ]


def test_many_faults_are_counted_and_some_named():
    assert problems([])[0] == "40 x an event never arrived: 0, 1, 2, 3, 4 and 35 more"


def test_counts():
    sent = {("a", "x"): 5, ("b", "y"): 2}
    assert check_counts(sent, dict(sent), "Spark") == []
    found = check_counts(sent, {("a", "x"): 4, ("c", "z"): 1}, "Spark")
    assert found[0] == "Spark counts 4 messages of a with tag x, sent were 5"
    assert len(found) == 3


def test_the_query_frame_and_its_answer(tmp_path):
    frame = encode_frame({"code": 12, "opaque": 1})
    length, header_length = struct.unpack(">II", frame[:8])
    assert length == len(frame) - 4
    assert header_length >> 24 == 0, "JSON"
    assert json.loads(frame[8:]) == {"code": 12, "opaque": 1}
    store = TinyStore(tmp_path)
    records = [store.put(body=b"a"), store.put(body=b"b")]
    assert decode_records(bytes(store.log)) == records


def test_somebody_elses_folder_is_left_alone(tmp_path):
    out = tmp_path / "out"
    fresh_folder(out)
    (out / "old").touch()
    fresh_folder(out)
    assert not (out / "old").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").touch()
    with pytest.raises(DemoFailed, match="not the demo's"):
        fresh_folder(precious)
    assert (precious / "thesis").exists()
