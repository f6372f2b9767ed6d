"""Pop consumption: 200050 and its neighbours, assignments, and what a restart keeps."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from stratamq.broker.pop_records import Handle, parse_handle
from stratamq.config import BrokerConfig
from stratamq.errors import CorruptionError, InvalidArgument, StoreFailed
from stratamq.logstore.types import PutResult, PutStatus
from tests.unit.protocols.wire import Answer
from tests.unit.server.harness import FakePeer, Harness, records

INVISIBLE = 60_000


def pop(harness: Harness, **ext: Any) -> Answer:
    """POP_MESSAGE that does not wait."""
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }
    return harness.ask(200050, {name: str(value) for name, value in (fields | ext).items()})


def bodies(answer: Answer) -> list[bytes]:
    return [record.body for record in records(answer.body)]


def handles(answer: Answer) -> list[tuple[str, int, str]]:
    """Topic, offset and POP_CK of each message, made as clients make them."""
    starts = {}
    for entry in answer.ext["startOffsetInfo"].split(";"):
        flag, queue, start = entry.split(" ")
        starts[flag, queue] = start
    found = []
    for record in records(answer.body):
        flag = ("2" if "+" in record.topic else "1") if record.topic.startswith("%RETRY%") else "0"
        words = [starts[flag, str(record.queue_id)], answer.ext["popTime"], answer.ext["invisibleTime"]]
        words += [answer.ext["reviveQid"], flag, "broker-a", str(record.queue_id), str(record.queue_offset)]
        found.append((record.topic, record.queue_offset, " ".join(words)))
    return found


def ack(harness: Harness, handle: tuple[str, int, str], **ext: Any) -> Answer:
    topic, offset, text = handle
    queue = (*text.split(" "), *"0000000")[6]
    fields = {"consumerGroup": "g", "topic": topic, "queueId": queue, "extraInfo": text, "offset": str(offset)}
    return harness.ask(200051, fields | {name: str(value) for name, value in ext.items()})


def change(harness: Harness, handle: tuple[str, int, str], invisible: int) -> tuple[str, int, str]:
    """CHANGE_MESSAGE_INVISIBLETIME; the new handle."""
    topic, offset, text = handle
    fields = {"consumerGroup": "g", "topic": topic, "queueId": text.split(" ")[6], "extraInfo": text}
    answer = harness.ask(200053, fields | {"offset": str(offset), "invisibleTime": str(invisible)})
    assert answer.code == 0
    words = text.split(" ")
    words[:4] = [str(offset), answer.ext["popTime"], answer.ext["invisibleTime"], answer.ext["reviveQid"]]
    return topic, offset, " ".join(words)


def later(harness: Harness, ms: int) -> None:
    """Let time pass, and do what is due."""
    harness.clock.advance(ms)
    harness.broker.run_due()
    harness.pops.waiting.expire()


def fill(harness: Harness, count: int = 3, queue: int = 0) -> None:
    for number in range(count):
        assert harness.send(body=b"%d" % number, e=queue).code == 0


def test_what_is_popped_is_not_seen_by_others_and_gone_when_acknowledged(harness):
    fill(harness)
    first = pop(harness, maxMsgNums=2)
    assert (first.code, bodies(first)) == (0, [b"0", b"1"])
    assert first.ext["startOffsetInfo"] == "0 0 0"
    assert first.ext["msgOffsetInfo"] == "0 0 0,1"
    assert first.ext["restNum"] == "1"
    assert bodies(pop(harness)) == [b"2"]
    assert pop(harness).code == 210
    for handle in handles(first):
        assert ack(harness, handle).code == 0
    later(harness, 10 * INVISIBLE)
    assert bodies(pop(harness)) == [b"2"]  # it was not acknowledged


def test_what_is_not_acknowledged_comes_again_from_the_retry_topic(harness):
    fill(harness)
    first = pop(harness)
    assert ack(harness, handles(first)[1]).code == 0
    later(harness, INVISIBLE - 1)
    assert pop(harness).code == 210
    later(harness, 1)
    again = pop(harness)
    assert bodies(again) == [b"0", b"2"]
    assert {(record.topic, record.reconsume_times) for record in records(again.body)} == {("%RETRY%g_T", 1)}
    assert again.ext["startOffsetInfo"] == "1 0 0"
    for handle in handles(again):
        assert ack(harness, handle).code == 0
    later(harness, 10 * INVISIBLE)
    assert pop(harness).code == 210
    assert harness.broker.pop.open_count == 0


def test_after_too_many_tries_a_message_is_dead(harness):
    config = harness.broker.groups.get("g")
    config.retry_max_times = 2
    fill(harness, 1)
    for tries in range(3):
        answer = pop(harness)
        assert [record.reconsume_times for record in records(answer.body)] == [tries]
        later(harness, INVISIBLE)
    assert pop(harness).code == 210
    assert bodies(harness.pull("%DLQ%g")) == [b"0"]


def test_an_invisible_time_is_changed_in_both_directions(harness):
    fill(harness, 2)
    one, two = handles(pop(harness))
    longer = change(harness, one, 10 * INVISIBLE)
    change(harness, two, 1_000)
    later(harness, 1_000)
    assert bodies(pop(harness)) == [b"1"]
    later(harness, 2 * INVISIBLE)
    assert b"0" not in bodies(pop(harness))
    assert ack(harness, longer).code == 0
    later(harness, 20 * INVISIBLE)
    assert b"0" not in bodies(pop(harness))


def test_acks_of_what_is_not_there(harness):
    fill(harness, 1)
    (handle,) = handles(pop(harness))
    topic, _, text = handle
    assert ack(harness, (topic, 99, text)).code == 208
    assert ack(harness, handle, queueId=9).code == 13
    assert ack(harness, ("none", 0, text)).code == 17
    assert ack(harness, (topic, 0, "garbage")).code == 29
    assert ack(harness, (topic, 0, text.replace("0 ", "7 ", 1))).code == 0  # no such check-point: nothing happens
    assert ack(harness, handle).code == 0
    assert ack(harness, handle).code == 0
    later(harness, INVISIBLE)
    assert pop(harness).code == 210


def test_many_acks_at_once(harness):
    fill(harness, 10)
    answer = pop(harness)
    text = handles(answer)[0][2].split(" ")
    bits = base64.b64encode(bytes([0b11111110, 0b01])).decode()
    one = {"c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": int(text[1]), "it": INVISIBLE, "b": bits}
    assert harness.ask(200151, {}, {"brokerName": "broker-a", "acks": [one]}).code == 0
    later(harness, INVISIBLE)
    assert bodies(pop(harness)) == [b"0", b"9"]
    for bad in ({"acks": 7}, {"acks": [1]}, {"acks": [{"c": "g"}]}, {"acks": [one | {"b": "%"}]}):
        assert harness.ask(200151, {}, bad).code == 1


def test_a_pop_waits_until_something_comes(harness):
    harness.broker.topics.ensure("T", queues=4)
    waiting = FakePeer(6001)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "8", "invisibleTime": "1000"}
    harness.request(200050, fields | {"pollTime": "15000"}, peer=waiting)
    assert waiting.take() == []
    info = harness.ask(200055, {"consumerGroup": "g", "topic": "T", "queueId": "-1"})
    assert info.ext["pollingNum"] == "1"
    fill(harness, 1, queue=2)
    (answer,) = waiting.take()
    assert (answer.code, bodies(answer)) == (0, [b"0"])
    harness.request(200050, fields | {"pollTime": "15000"}, peer=waiting)
    later(harness, 1_000)  # the first one's time is over: it comes again, to who waits
    (answer,) = waiting.take()
    assert bodies(answer) == [b"0"]
    harness.request(200050, fields | {"pollTime": "500"}, peer=waiting)
    later(harness, 500)
    (answer,) = waiting.take()
    assert answer.code == 210


def test_too_many_pops_that_wait_are_told(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(pop_waiting_max=1))
    harness.broker.topics.ensure("T", queues=1)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "8", "invisibleTime": "1000"}
    one, other = FakePeer(1), FakePeer(2)
    harness.request(200050, fields | {"pollTime": "15000"}, peer=one)
    harness.request(200050, fields | {"pollTime": "15000"}, peer=other)
    assert [answer.code for answer in other.take()] == [209]
    one.is_closed = True
    harness.pops.waiting.expire()
    harness.request(200050, fields | {"pollTime": "15000"}, peer=other)
    harness.pops.waiting.release_all()
    assert [answer.code for answer in other.take()] == [14]
    harness.close()


def test_too_many_open_check_points_are_refused(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(pop_checkpoints_max=2))
    fill(harness, 3)
    first = pop(harness, maxMsgNums=1)
    pop(harness, maxMsgNums=1)
    assert (pop(harness).code, "pop_checkpoints_max" in (pop(harness).remark or "")) == (2, True)
    assert ack(harness, handles(first)[0]).code == 0
    assert bodies(pop(harness)) == [b"2"]
    harness.close()


def test_tags_select_and_what_is_passed_over_is_not_read_again(harness):
    for number in range(6):
        harness.send(body=b"%d" % number, properties=f"TAGS\x01{'ab'[number % 2]}\x02")
    assert bodies(pop(harness, expType="TAG", exp="b")) == [b"1", b"3", b"5"]
    assert pop(harness, expType="TAG", exp="c").code == 210
    harness.send(body=b"6", properties="TAGS\x01c\x02COLOUR\x01red\x02")
    assert bodies(pop(harness, expType="SQL92", exp="COLOUR = 'red'")) == [b"6"]
    assert pop(harness, expType="SQL92", exp="COLOUR = ").code == 23


def test_a_group_that_begins_at_the_end(harness):
    fill(harness, 2)
    assert pop(harness, initMode=1).code == 210
    fill(harness, 1)
    assert len(bodies(pop(harness, initMode=1))) == 1


def test_ordered_pops_close_a_queue(harness):
    fill(harness, 4)
    first = pop(harness, order="true", maxMsgNums=2)
    assert (bodies(first), first.ext["reviveQid"], first.ext["orderCountInfo"]) == ([b"0", b"1"], "999", "0 0 0")
    assert pop(harness, order="true").code == 210
    one, two = handles(first)
    assert ack(harness, one).code == 0
    assert pop(harness, order="true").code == 210
    assert ack(harness, two).code == 0
    second = pop(harness, order="true", maxMsgNums=2)
    assert bodies(second) == [b"2", b"3"]
    assert ack(harness, handles(second)[0]).code == 0
    later(harness, INVISIBLE)
    again = pop(harness, order="true")
    assert (bodies(again), again.ext["orderCountInfo"]) == ([b"3"], "0 0 1")
    change(harness, handles(again)[0], 0)
    assert bodies(pop(harness, order="true")) == [b"3"]


def test_the_same_attempt_gets_the_same_messages(harness):
    fill(harness, 2)
    assert bodies(pop(harness, order="true", attemptId="a")) == [b"0", b"1"]
    assert pop(harness, order="true", attemptId="b").code == 210
    assert bodies(pop(harness, order="true", attemptId="a")) == [b"0", b"1"]


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_restart_gives_nothing_twice_and_loses_nothing(tmp_path, order):
    harness = Harness(tmp_path)
    fill(harness, 5)
    first = pop(harness, maxMsgNums=3, order=order)
    assert ack(harness, handles(first)[0]).code == 0
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)
    harness.close()
    again = Harness(tmp_path, clock=harness.clock)
    if order == "false":
        assert bodies(pop(again)) == [b"3", b"4"]
    else:
        assert pop(again, order=order).code == 210
    later(again, INVISIBLE)
    assert bodies(pop(again, order=order))[:2] == [b"1", b"2"]
    again.close()


def test_after_a_kill_check_points_are_read_back_without_any_saved_table(tmp_path):
    harness = Harness(tmp_path)
    fill(harness, 5)
    first = pop(harness, maxMsgNums=3)
    assert ack(harness, handles(first)[0]).code == 0
    harness.close()  # no table was saved
    again = Harness(tmp_path, clock=harness.clock)
    assert bodies(pop(again)) == [b"3", b"4"]
    later(again, INVISIBLE)
    assert sorted(bodies(pop(again))) == [b"1", b"2", b"3", b"4"]
    again.close()


def test_a_check_point_that_cannot_be_stored_gives_nothing_out(harness):
    fill(harness, 2)
    harness.committer.refuse_with = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), "the disk is full")
    answer = pop(harness)
    assert (answer.code, answer.remark) == (1, "the disk is full")
    harness.committer.refuse_with = None
    answer = pop(harness)
    assert bodies(answer) == [b"0", b"1"]
    harness.committer.refuse_with = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, (), "the disk is full")
    assert ack(harness, handles(answer)[0]).code == 1
    later(harness, INVISIBLE)
    harness.committer.refuse_with = None
    later(harness, 1_000)
    assert sorted(bodies(pop(harness))) == [b"0", b"1"]


def test_progress_is_committed_so_that_a_start_reads_little(harness):
    fill(harness, 3)
    for handle in handles(pop(harness)):
        ack(harness, handle)
    later(harness, INVISIBLE)
    topic = harness.broker.pop.topic
    found = harness.broker.offsets.find("CID_RMQ_SYS_REVIVE_GROUP", topic, 0)
    assert found == harness.store.max_offset(topic, 0) - 1 == 3


def test_looking_without_taking(harness):
    fill(harness, 2)
    answer = harness.ask(200052, {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "1"})
    assert (answer.code, bodies(answer)) == (0, [b"0"])
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1"}
    assert harness.ask(200054, fields).ext["hasMsg"] == "true"
    pop(harness)
    assert harness.ask(200054, fields).ext["hasMsg"] == "false"
    assert harness.ask(200052, fields | {"maxMsgNums": "1"}).code == 19


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "none"}, 17),
        ({"queueId": 9}, 29),
        ({"maxMsgNums": 33}, 29),
        ({"maxMsgNums": 0}, 29),
        ({"invisibleTime": 0}, 29),
        ({"invisibleTime": 10**12}, 29),
        ({"exp": "a |", "expType": "TAGS"}, 23),
        ({"maxMsgNums": "x"}, 1),
    ],
)
def test_what_is_refused(harness, change, code):
    fill(harness, 1)
    assert pop(harness, **change).code == code


def test_modes_and_assignments(harness, tmp_path):
    harness.broker.topics.ensure("T", queues=5)
    for number, client in enumerate(("c1", "c2")):
        harness.heartbeat(client, peer=FakePeer(7000 + number), g="T:*")

    def assigned(client: str, **more: Any) -> list[tuple[str, int]]:
        body = {"topic": "T", "consumerGroup": "g", "clientId": client, "messageModel": "CLUSTERING"} | more
        rows = json.loads(harness.ask(400, {}, body).body)["messageQueueAssignments"]
        return [(row["mode"], row["messageQueue"]["queueId"]) for row in rows]

    assert assigned("c1") == [("PULL", 0), ("PULL", 1), ("PULL", 2)]
    assert assigned("c2") == [("PULL", 3), ("PULL", 4)]
    assert assigned("stranger") == []
    assert len(assigned("c1", messageModel="BROADCASTING")) == 5
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    assert harness.ask(401, {}, mode).code == 0
    assert assigned("c1") == assigned("c2") == [("POP", -1)]
    assert "messageQueueAssignments" not in json.loads(harness.ask(400, {}, {"topic": "none"}).body)
    assert harness.ask(401, {}, mode | {"mode": "PUSH"}).code == 29
    assert harness.ask(401, {}, mode | {"topic": "%RETRY%g"}).code == 16
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)
    again = json.loads((tmp_path / "config" / "messageRequestMode.json").read_text())
    assert again["messageRequestModeMap"]["T"]["g"]["mode"] == "POP"
    assert json.loads(harness.ask(402).body) == again


def test_handles_are_read_with_care():
    handle = parse_handle("5 1700000000000 60000 0 1 broker-a 3 7")
    assert handle == Handle(5, 1700000000000, 60000, 0, "1", "broker-a", 3, 7)
    for bad in ("", "1 2 3", "a b c d e f g h", "1 2 3 4 5 6 7 8 9", f"{2**64} 1 1 0 0 b 0 0"):
        with pytest.raises(InvalidArgument):
            parse_handle(bad)


def test_a_queue_that_cannot_be_read_does_not_cost_another_its_messages(harness, monkeypatch):
    harness.broker.topics.ensure("T", queues=3)
    for queue in range(3):
        harness.send(body=b"%d" % queue, e=queue)
    read = harness.broker.store.get

    def get(topic, queue_id, *arguments, **options):
        if (topic, queue_id) == ("T", 1):
            raise CorruptionError("commitlog/0", 7, "a record", "garbage")
        return read(topic, queue_id, *arguments, **options)

    monkeypatch.setattr(harness.broker.store, "get", get)
    answer = pop(harness)
    assert (answer.code, sorted(bodies(answer))) == (0, [b"0", b"2"])
    assert pop(harness).code == 1  # who gets nothing hears why
    monkeypatch.undo()
    assert bodies(pop(harness)) == [b"1"]
    later(harness, INVISIBLE)
    assert sorted(bodies(pop(harness))) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreFailed("read", "commitlog/0", "broken")])
def test_a_message_that_cannot_be_read_when_its_time_is_over_is_tried_again(harness, monkeypatch, error):
    fill(harness, 1)
    pop(harness)

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(harness.broker.store, "get", fail)
    later(harness, INVISIBLE)
    assert harness.broker.pop.open_count == 1
    monkeypatch.undo()
    later(harness, 1_000)
    assert bodies(pop(harness)) == [b"0"]


def test_a_put_that_fails_at_once_gives_the_messages_back(harness, monkeypatch):
    fill(harness, 2)

    def fail(*arguments):
        raise StoreFailed("write", "commitlog/0", "broken")

    monkeypatch.setattr(harness.committer, "put", fail)
    assert pop(harness).code == 1
    monkeypatch.undo()
    assert bodies(pop(harness)) == [b"0", b"1"]


@pytest.mark.parametrize("saved", [True, False])
def test_a_group_that_was_set_back_stays_so_over_a_restart(tmp_path, saved):
    harness = Harness(tmp_path)
    fill(harness, 6)
    pop(harness)
    harness.broker.offsets.reset("g", "T", 0, 0)
    assert bodies(pop(harness, maxMsgNums=1)) == [b"0"]
    if saved:
        for file, value in harness.broker.unsaved(with_offsets=True):
            file.store(value)
    harness.close()
    again = Harness(tmp_path, clock=harness.clock)
    assert bodies(pop(again)) == [b"1", b"2", b"3", b"4", b"5"]
    again.close()


def test_what_was_acknowledged_does_not_stay_in_memory_behind_a_long_one(harness, monkeypatch):
    monkeypatch.setattr("stratamq.broker.pop_table.HEAP_SLACK", 10)
    fill(harness, 60)
    pop(harness, maxMsgNums=1, invisibleTime=500)
    for _ in range(50):
        assert ack(harness, handles(pop(harness, maxMsgNums=1))[0]).code == 0
    assert harness.broker.pop.open_count == 1
    assert len(harness.broker.pop._table._due) < 20


def test_pops_that_waited_keep_to_the_bound(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(pop_checkpoints_max=2))
    harness.broker.topics.ensure("T", queues=1)
    peers = [FakePeer(6000 + number) for number in range(4)]
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000"}
    for peer in peers:
        harness.request(200050, fields | {"pollTime": "15000"}, peer=peer)
    fill(harness, 4)
    assert harness.broker.pop.open_count == 2
    assert sorted(answer.code for peer in peers for answer in peer.take()) == [0, 0, 2, 2]
    harness.close()


@pytest.mark.parametrize("name_in_ack", ["T", "%RETRY%g+T"])
def test_retry_topics_of_the_second_form(tmp_path, name_in_ack):
    harness = Harness(tmp_path, BrokerConfig(pop_retry_v2=True))
    fill(harness, 2)
    pop(harness)
    later(harness, INVISIBLE)
    assert harness.store.max_offset("%RETRY%g+T", 0) == 2
    again = pop(harness, maxMsgNums=1)
    assert again.ext["msgOffsetInfo"] == "2 0 0"
    _, offset, text = handles(again)[0]
    assert ack(harness, (name_in_ack, offset, text)).code == 0
    harness.close()
    harness = Harness(tmp_path, clock=harness.clock)  # the setting is back where it was: both forms are read
    rest = pop(harness)
    assert rest.ext["msgOffsetInfo"] == "2 0 1"
    row = {"c": "g", "t": "T", "r": "2", "so": 1, "q": 0, "rq": 0, "pt": int(rest.ext["popTime"]), "it": INVISIBLE}
    row["b"] = base64.b64encode(bytes([1])).decode()
    assert harness.ask(200151, {}, {"brokerName": "broker-a", "acks": [row]}).code == 0
    later(harness, INVISIBLE)
    assert pop(harness).code == 210
    harness.close()


def test_a_rollback_of_check_points_has_nothing_to_do(harness):
    fill(harness, 1)
    answer = pop(harness)
    assert harness.ask(200056, {}).code == 0
    assert ack(harness, handles(answer)[0]).code == 0
