"""Stream queues over a log in memory: places, windows, offsets, filters, confirms, both kinds of messages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.messages import Message, encode_address
from stratamq.broker.amqp.streams import BLOCK, StreamRecord, message_properties, stream_message, topic_of
from stratamq.formats.properties import KEYS, TAGS, UNIQ_KEY
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.properties import Facts, decode_properties, encode_properties
from stratamq.protocols.amqp.replies import AmqpError
from stratamq.protocols.amqp.values import Timestamp
from tests.unit.broker.amqp.clients import NOW_MS, Client, refusal, turn


class Log:
    """Topics as lists. Puts are answered at once, or when told to."""

    def __init__(self) -> None:
        self.topics: dict[str, list[StreamRecord]] = {}
        self.first: dict[str, int] = {}
        self.watchers: dict[str, Callable[[], None]] = {}
        self.held: list[Callable[[], None]] | None = None
        self.refuse = ""

    def ensure(self, topic: str) -> None:
        self.topics.setdefault(topic, [])
        self.first.setdefault(topic, 0)

    def delete(self, topic: str) -> None:
        del self.topics[topic]

    def put(
        self, topic: str, body: bytes, properties: dict[str, str], born_ms: int, done: Callable[[str], None]
    ) -> None:
        refuse = self.refuse

        def store() -> None:
            if not refuse:
                self.add(topic, body, properties, born_ms)
            done(refuse)

        if self.held is None:
            store()
        else:
            self.held.append(store)

    def add(self, topic: str, body: bytes, properties: dict[str, str], born_ms: int = NOW_MS) -> None:
        records = self.topics[topic]
        records.append(StreamRecord(self.first[topic] + len(records), born_ms, body, properties))
        if topic in self.watchers:
            self.watchers[topic]()

    def bounds(self, topic: str) -> tuple[int, int]:
        return self.first[topic], self.first[topic] + len(self.topics[topic])

    def offset_at(self, topic: str, ms: int) -> int:
        return next((one.offset for one in self.topics[topic] if one.born_ms >= ms), self.bounds(topic)[1])

    def read(self, topic: str, offset: int, count: int) -> tuple[Sequence[StreamRecord], int]:
        first, end = self.bounds(topic)
        if offset < first:
            return (), first
        found = self.topics[topic][offset - first : offset - first + count]
        return found, min(end, offset + len(found))

    def watch(self, topic: str, arrived: Callable[[], None] | None) -> None:
        if arrived is None:
            self.watchers.pop(topic)
        else:
            self.watchers[topic] = arrived


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def broker(log: Log) -> AmqpBroker:
    made = AmqpBroker(now_ms=NOW_MS, streams=log)
    made.add_defaults()
    return made


class Reader(Client):
    """A client that keeps what it was sent until it is asked for."""

    def __init__(self, broker: AmqpBroker) -> None:
        self.kept: list[Any] = []
        super().__init__(broker)
        self.kept.clear()

    def raw(self, data: bytes) -> list[Any]:
        found = super().raw(data)
        self.kept += found
        return found

    def fresh(self) -> list[Any]:
        """Everything since the last call."""
        turn(self.broker)
        found, self.kept = self.kept + self.take(), []
        return found

    def deliveries(self) -> list[tuple[int, bool, str]]:
        """Tag, redelivered and body of what was delivered since the last call."""
        return self.delivered(self.fresh())

    def confirms(self) -> list[Any]:
        """Acks and nacks since the last call."""
        return [one for one in self.fresh() if isinstance(one, methods.BasicAck | methods.BasicNack)]


@pytest.fixture
def client(broker: AmqpBroker) -> Reader:
    made = Reader(broker)
    made.queue("s", queue_type="stream", durable=True)
    return made


def bodies(client: Reader) -> list[str]:
    return [body for _, _, body in client.deliveries()]


def consume(client: Reader, *, tag: str = "c", prefetch: int = 100, **arguments: Any) -> list[Any]:
    client.send(methods.BasicQos(0, prefetch, False))
    return client.consume("s", tag, **{f"x-stream-{name}": value for name, value in arguments.items()})


def test_nothing_is_taken_away_and_everybody_has_a_place(broker, log, client):
    for number in range(5):
        client.publish("s", str(number))
    assert log.bounds("s") == (0, 5)
    consume(client, tag="a", offset="first")
    assert bodies(client) == ["0", "1", "2", "3", "4"]
    other = Reader(broker)
    consume(other, tag="b", offset=3)
    assert bodies(other) == ["3", "4"]
    last = Reader(broker)
    consume(last, tag="c", offset="last")
    assert bodies(last) == ["4"]
    new = Reader(broker)
    consume(new)
    assert bodies(new) == []
    client.publish("s", "5")
    turn(broker)
    assert [bodies(one) for one in (client, other, last, new)] == [["5"]] * 4


def test_acks_only_make_room(broker, log, client):
    for number in range(6):
        client.publish("s", str(number))
    consume(client, prefetch=2, offset="first")
    turn(broker)
    first = client.deliveries()
    assert [body for _, _, body in first] == ["0", "1"]
    client.send(methods.BasicAck(first[0][0], False))
    assert bodies(client) == ["2"]
    client.send(methods.BasicNack(first[1][0], False, True))  # it does not come again
    assert bodies(client) == ["3"]
    assert broker.vhosts["/"].queues["s"].unacked == 2
    assert log.bounds("s") == (0, 6)


def test_offsets_come_along_and_properties_as_they_were(client):
    client.publish("s", "x", content_type="text/plain", headers={"a": 1}, message_id="m-1")
    consume(client, offset="first")
    delivery, content = client.fresh()[-2:]
    assert content[0] == {"content_type": "text/plain", "headers": {"a": 1, "x-stream-offset": 0}, "message_id": "m-1"}
    assert (delivery.exchange, delivery.routing_key) == ("", "s")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Timestamp(NOW_MS // 1000 - 5), ["1", "2"]),
        ("10s", ["1", "2"]),
        ("1h", ["0", "1", "2"]),
        (99, []),
        (-1, ["0", "1", "2"]),
        ("next", []),
    ],
)
def test_where_a_consumer_begins(log, client, value, expected):
    for number, age_s in enumerate((60, 4, 1)):
        log.add("s", b"%d" % number, {}, NOW_MS - age_s * 1000)
    consume(client, offset=value)
    assert bodies(client) == expected


REFUSALS: list[tuple[int, Callable[[Reader], Any]]] = [
    (406, lambda client: client.queue("x", queue_type="stream")),  # not durable
    (406, lambda client: client.queue("x", queue_type="stream", durable=True, exclusive=True)),
    (406, lambda client: client.queue("x", queue_type="stream", durable=True, message_ttl=5)),
    (406, lambda client: client.queue("s" * 128, queue_type="stream", durable=True)),
    (540, lambda client: client.send(methods.BasicGet("s", False))),
    (540, lambda client: client.send(methods.QueuePurge("s", False))),
    (406, lambda client: client.consume("s")),  # no prefetch
    (540, lambda client: client.consume("s", no_ack=True)),
    (406, lambda client: consume(client, offset="yesterday")),
    (406, lambda client: consume(client, offset=True)),
    (406, lambda client: consume(client, filter=7)),
]


@pytest.mark.parametrize(("code", "attempt"), REFUSALS)
def test_what_a_stream_cannot_be_or_do(client, code, attempt):
    answers = attempt(client)
    assert refusal(answers[-1:] if isinstance(answers, list) else answers)[0] == code


def test_without_a_log_there_are_no_streams():
    broker = AmqpBroker(now_ms=NOW_MS)
    broker.add_defaults()
    assert refusal(Reader(broker).queue("s", queue_type="stream", durable=True))[0] == 406


def test_a_filter_value_is_a_tag(log, client):
    for number, value in enumerate(("eu", "us", "eu", None)):
        headers = {} if value is None else {"x-stream-filter-value": value}
        client.publish("s", str(number), headers=headers)
    assert [one.properties.get(TAGS) for one in log.topics["s"]] == ["eu", "us", "eu", None]
    consume(client, offset="first", filter="eu")
    assert bodies(client) == ["0", "2"]


def test_a_long_stretch_without_matches_is_passed_in_steps(broker, log, client):
    for number in range(1000):
        log.add("s", b"%d" % number, {TAGS: "no" if number < 999 else "yes"})
    consume(client, offset="first", filter="yes")
    assert bodies(client) == ["999"]


def test_confirms_wait_for_the_log_and_a_refusal_is_a_nack(broker, log, client):
    client.send(methods.ConfirmSelect(False))
    client.queue("plain")
    log.held = []
    client.publish("s", "0")
    client.publish("plain", "1")
    turn(broker)
    assert client.confirms() == []
    for store in log.held:
        store()
    assert [one.delivery_tag for one in client.confirms()] == [1, 2]
    log.refuse, log.held = "the disk is full", []
    client.publish("s", "2")
    log.refuse = ""
    client.publish("s", "3")
    turn(broker)
    for store in log.held:
        store()
    assert client.confirms() == [methods.BasicNack(3, False, False), methods.BasicAck(4, False)]
    assert [one.body for one in log.topics["s"]] == [b"0", b"3"]


def test_one_publish_reaches_streams_and_queues(broker, log, client):
    client.queue("q")
    for name in ("q", "s"):
        client.bind(name, "amq.fanout")
    client.publish("k", "both", exchange="amq.fanout")
    turn(broker)
    assert [one.body for one in log.topics["s"]] == [b"both"]
    assert broker.vhosts["/"].queues["q"].ready == 1


def test_a_dead_letter_leaves_its_queue_when_the_stream_has_it(broker, log, client):
    client.queue("work", dead_letter_exchange="", dead_letter_routing_key="s")
    client.publish("work", "bad")
    log.held = []
    got = client.get("work", no_ack=False)
    assert got is not None
    client.send(methods.BasicReject(got[0].delivery_tag, False))
    store = broker.vhosts["/"].queues["work"].levels[0].store
    assert store.count == 1
    for put in log.held:
        put()
    assert store.count == 0
    assert [one.body for one in log.topics["s"]] == [b"bad"]


def test_records_cleaned_away_are_passed_over(log, client):
    for number in range(200):
        log.add("s", b"%d" % number, {})
    consume(client, offset="first", prefetch=1)
    ((tag, _, body),) = client.deliveries()
    assert body == "0"
    log.topics["s"] = [StreamRecord(300, NOW_MS, b"300", {})]
    log.first["s"] = 300
    seen = []
    while tag is not None:
        client.send(methods.BasicAck(tag, False))
        found = client.deliveries()
        tag = found[0][0] if found else None
        seen += [body for _, _, body in found]
    assert seen == [*map(str, range(1, 64)), "300"]  # what had been read before is still delivered


def test_a_deleted_stream_takes_its_topic_and_tells_its_consumers(log, broker, client):
    consume(client, offset="first")
    (answer,) = Reader(broker).send(methods.QueueDelete("s", False, False, False))
    assert isinstance(answer, methods.QueueDeleteOk)
    assert "s" not in log.topics
    assert log.watchers == {}
    assert client.session.channels[1].consumers == {}


# --- names and messages ---


def test_names_of_topics():
    assert topic_of("/", "orders-1_A") == "orders-1_A"
    assert topic_of("/", "a.b c") == "a%2Eb%20c"
    assert topic_of("/", "%RETRY%g") == "%25RETRY%25g"
    assert topic_of("team", "x") == "%vhost%team%x"
    with pytest.raises(AmqpError, match="127"):
        topic_of("/", "\u4e16" * 50)


@given(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9))
def test_different_streams_are_different_topics(one, other):
    assert (topic_of("/", one) == topic_of("/", other)) == (one == other)
    assert topic_of("/", one) != topic_of("v", other)


HEADERS = st.dictionaries(
    st.text(max_size=8), st.text(max_size=8) | st.integers(-(2**31), 2**31) | st.booleans() | st.none(), max_size=4
)


@given(HEADERS, st.text(max_size=10), st.none() | st.text(max_size=10), st.binary(max_size=20))
def test_an_amqp_message_comes_back_as_it_was(headers, key, message_id, body):
    block = encode_properties({"headers": headers, "message_id": message_id, "priority": 3})
    sent = Message("ex", key, encode_address("ex", key), Facts(block), body, NOW_MS)
    properties = message_properties(sent)
    assert not any("\x01" in text or "\x02" in text for pair in properties.items() for text in pair)
    if "\x01" in key or "\x02" in key:
        return  # such a key cannot stand in a record; the message comes without it
    got = stream_message(StreamRecord(5, NOW_MS, body, properties), "s")
    assert (got.exchange, got.routing_key, got.body) == ("ex", key, body)
    found = decode_properties(got.facts.block)
    assert found.pop("headers") == {**headers, "x-stream-offset": 5}
    assert found == {name: value for name, value in decode_properties(block).items() if name != "headers"}


def test_a_message_of_a_rocketmq_client_becomes_one():
    properties = {KEYS: "order-1", TAGS: "paid", UNIQ_KEY: "7F0001", "colour": "blue", "WAIT": "true"}
    got = stream_message(StreamRecord(0, NOW_MS, b"x", properties), "s")
    assert (got.exchange, got.routing_key) == ("", "s")
    assert decode_properties(got.facts.block) == {
        "headers": {KEYS: "order-1", TAGS: "paid", "colour": "blue", "x-stream-offset": 0},
        "delivery_mode": 2,
        "message_id": "7F0001",
        "timestamp": NOW_MS // 1000,
    }


@pytest.mark.parametrize("block", ["", "%", base64.b64encode(b"\xff").decode(), base64.b64encode(b"\xff\xff").decode()])
def test_a_record_that_pretends_to_be_an_amqp_message_harms_nobody(block):
    got = stream_message(StreamRecord(0, NOW_MS, b"x", {BLOCK: block, "AMQP_KEY": "k" * 400}), "s")
    assert decode_properties(got.facts.block)["headers"]["x-stream-offset"] == 0
