"""Pulls that filter by properties: what comes, what is said of filters that cannot be, who is woken, what is kept."""

from __future__ import annotations

import json

import pytest

from stratamq.config import BrokerConfig
from stratamq.logstore import filtered_read
from tests.unit.server.harness import FakePeer, Harness, records


def offsets(answer):
    return tuple(int(answer.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


def bodies(answer):
    return [record.body for record in records(answer.body)]


def sql_pull(harness, expression, **ext):
    return harness.pull(subscription=expression, expressionType="SQL92", **ext)


def sql_heartbeat(harness, expression, *, version=1, topic="T", client="c", peer=None):
    subscription = {"topic": topic, "subString": expression, "expressionType": "SQL92", "subVersion": version}
    body = {"clientID": client, "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription]}]}
    return harness.ask(34, {}, body, peer=peer)


def fill(harness, count, start=0):
    for number in range(start, start + count):
        harness.send(body=b"%d" % number, properties=f"price\x01{number}\x02TAGS\x01A\x02")


def waiting_pull(harness, expression, offset):
    ext = harness.pull_ext(queueOffset=offset, sysFlag=6, subscription=expression, expressionType="SQL92")
    harness.request(11, ext)


def send_quietly(harness, number, peer):
    ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    harness.request(310, ext | {"i": f"price\x01{number}\x02"}, b"%d" % number, peer=peer)


def test_only_messages_whose_properties_match_come(harness):
    fill(harness, 10)
    answer = sql_pull(harness, "price BETWEEN 5 AND 7 OR price = 1")
    assert (answer.code, bodies(answer)) == (0, [b"1", b"5", b"6", b"7"])
    assert offsets(answer) == (10, 0, 10)
    answer = sql_pull(harness, "price > 2", maxMsgNums=2)
    assert (bodies(answer), offsets(answer)) == ([b"3", b"4"], (5, 0, 10))
    assert bodies(sql_pull(harness, "TAGS = 'A' AND price < 1")) == [b"0"]
    assert len(bodies(sql_pull(harness, "price >= 0", maxMsgBytes=1))) == 1


def test_nothing_that_matches_is_said_with_progress(harness):
    fill(harness, 5)
    answer = sql_pull(harness, "price > 100")
    assert (answer.code, offsets(answer), answer.body) == (20, (5, 0, 5), b"")


def test_one_pull_looks_at_a_bounded_number_of_records(harness, monkeypatch):
    monkeypatch.setattr(filtered_read, "FILTERED_RECORDS_MAX", 10)
    fill(harness, 25)
    answer = sql_pull(harness, "price = 24")
    assert (answer.code, offsets(answer)) == (20, (10, 0, 25))
    answer = sql_pull(harness, "price = 24", queueOffset=20)
    assert (answer.code, bodies(answer)) == (0, [b"24"])


def test_a_costly_expression_looks_at_fewer_records(harness, monkeypatch):
    monkeypatch.setattr(filtered_read, "FILTERED_PARTS_MAX", 90)
    fill(harness, 25)
    costly = " OR ".join(["price = 100"] * 3)
    assert offsets(sql_pull(harness, costly))[0] == 9  # of 10 parts
    assert offsets(sql_pull(harness, " OR ".join(["price = 100"] * 100)))[0] == filtered_read.FILTERED_RECORDS_MIN


@pytest.mark.parametrize(("limit", "value"), [("FILTERED_ON_DISK_MAX", 3), ("FILTERED_PROPERTIES_BYTES_MAX", 300)])
def test_records_on_disk_and_long_properties_end_a_read(harness, monkeypatch, limit, value):
    monkeypatch.setattr(filtered_read, limit, value)
    limits = harness.store._limits
    object.__setattr__(limits, "page_cache_bytes", 0)
    fill(harness, 25)
    answer = sql_pull(harness, "price > 100")
    assert answer.code == 20
    assert 0 < offsets(answer)[0] < 25


@pytest.mark.parametrize(("offset", "code", "next_offset"), [(5, 19, 5), (6, 21, 5), (-1, 21, 0)])
def test_offsets_outside_of_a_queue(harness, offset, code, next_offset):
    fill(harness, 5)
    answer = sql_pull(harness, "price > 1", queueOffset=offset)
    assert (answer.code, offsets(answer)[0]) == (code, next_offset)


def test_an_expression_that_cannot_be_parsed(harness):
    fill(harness, 1)
    answer = sql_pull(harness, "price ! 5")
    assert answer.code == 23
    assert "character 7" in (answer.remark or "")
    assert harness.pull(subscription="x", expressionType="XPATH").code == 23


def test_the_heartbeats_filter_is_used_when_the_pull_has_none(harness):
    fill(harness, 5)
    assert harness.pull(sysFlag=0).code == 24
    sql_heartbeat(harness, "price = 3")
    assert bodies(harness.pull(sysFlag=0)) == [b"3"]
    assert harness.pull(sysFlag=0, subVersion=2).code == 25
    sql_heartbeat(harness, "price = 4", version=2)
    assert bodies(harness.pull(sysFlag=0, subVersion=2)) == [b"4"]
    sql_heartbeat(harness, "price = ", version=3)
    answer = harness.pull(sysFlag=0)
    assert answer.code == 27
    harness.broker.filters.register("g", [])
    sql_heartbeat(harness, "price = 2", version=4)
    harness.broker.filters.find("g", "T").version = 3
    assert harness.pull(sysFlag=0, subVersion=4).code == 28


def test_filters_can_be_switched_off(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(property_filters=False))
    fill(harness, 1)
    sql_heartbeat(harness, "price = 0")
    for answer in (sql_pull(harness, "price = 0"), harness.pull(sysFlag=0)):
        assert answer.code == 1
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"
    data = {"topic": "T", "subString": "a > 5"}
    for code, more in ((0, {}), (1, {"expressionType": "SQL92"})):
        check = {"clientId": "c", "group": "g", "subscriptionData": data | more}
        assert harness.ask(46, {}, check).code == code
    harness.close()


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [("SQL92", "a > 5", 0), ("SQL92", "a >", 23), ("TAG", "A", 0), ("XPATH", "//a", 23)],
)
def test_a_client_may_ask_whether_a_subscription_is_served(harness, kind, expression, code):
    subscription = {"topic": "T", "subString": expression, "expressionType": kind}
    body = {"clientId": "c", "group": "g", "subscriptionData": subscription}
    assert harness.ask(46, {}, body).code == code


# --- waiting ---


def test_a_pull_waits_on_until_a_message_matches(harness):
    fill(harness, 1)
    waiting_pull(harness, "price > 5", 1)
    other = FakePeer()
    for number in (1, 2, 3):
        send_quietly(harness, number, other)
    assert harness.peer.take() == []
    assert len(harness.broker.waiting) == 1
    send_quietly(harness, 9, other)
    (answer,) = harness.peer.take()
    assert (answer.code, bodies(answer), offsets(answer)[0]) == (0, [b"9"], 5)


def test_a_pull_that_nothing_matched_is_told_at_its_time_how_far_it_came(harness):
    fill(harness, 1)
    waiting_pull(harness, "price > 5", 1)
    harness.clock.advance(10_000)
    send_quietly(harness, 1, FakePeer())
    harness.clock.advance(4_999)
    harness.pulls.expire()
    assert harness.peer.take() == []
    harness.clock.advance(1)
    harness.pulls.expire()
    (answer,) = harness.peer.take()
    assert (answer.code, offsets(answer)) == (19, (2, 0, 2))


def test_a_lost_wake_up_of_a_filtering_pull_is_made_good(harness):
    fill(harness, 1)
    waiting_pull(harness, "price > 5", 1)
    harness.committer.on_arrivals = lambda arrivals: None
    send_quietly(harness, 9, FakePeer())
    harness.pulls.check_behind()
    assert bodies(harness.peer.take()[0]) == [b"9"]


# --- what is kept ---


def test_filters_are_kept_over_a_restart(tmp_path):
    harness = Harness(tmp_path)
    sql_heartbeat(harness, "price BETWEEN 5 AND 9", version=7)
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)
    saved = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
    assert saved["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] == "price BETWEEN 5 AND 9"
    harness.close()
    again = Harness(tmp_path)
    kept = again.broker.filters.find("g", "T")
    assert (kept.version, kept.is_dead) == (7, True)
    sql_heartbeat(again, "price BETWEEN 5 AND 9", version=7)
    assert not kept.is_dead
    again.close()


def test_a_filter_is_dead_once_its_group_is_gone(harness):
    sql_heartbeat(harness, "price > 5")
    kept = harness.broker.filters.find("g", "T")
    assert not kept.is_dead
    harness.broker.drop_connection(harness.peer)
    assert kept.is_dead
    sql_heartbeat(harness, "price > 5")
    assert not kept.is_dead
    harness.ask(35, {"clientID": "c", "producerGroup": "", "consumerGroup": "g"})
    assert kept.is_dead
    sql_heartbeat(harness, "price > 5")
    harness.clock.advance(200_000)
    harness.broker.expire_clients()
    assert kept.is_dead
