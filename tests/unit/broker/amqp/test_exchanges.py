"""Exchanges through a channel: routing of every type, bindings between exchanges, alternates, what is refused."""

from __future__ import annotations

import pytest

from stratamq.broker.amqp.exchanges import headers_match
from stratamq.broker.amqp.topic_trie import TopicTrie
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.values import Sized
from tests.unit.broker.amqp.clients import Client, new_broker, refusal


@pytest.fixture
def client():
    client = Client(new_broker())
    for name in ("q", "r"):
        client.queue(name)
    return client


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("a.#", ["a", "a.b", "a..b", "a.b.c"], ["", "b.a", "ab"]),
        ("*.b", [".b", "x.b"], ["x.y.b", "b"]),
        ("#", ["", "a", "a.b"], []),
        ("*", ["", "a"], ["a.b"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.y.a.z"], ["", "x"]),
        ("a.*.#.c", ["a.b.c", "a.b.d.e.c"], ["a.c"]),
        ("#.#", ["", "a", "a.b"], []),
    ],
)
def test_topic_patterns(pattern, fits, fits_not):
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, "it")
    for key in fits:
        assert trie.match(key) == {"it"}, key
    for key in fits_not:
        assert trie.match(key) == set(), key
    trie.remove(pattern, "it")
    assert list(trie) == []
    assert trie._root.children == {}


@pytest.mark.parametrize(
    ("arguments", "headers", "fits"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": Sized(1, ord("b"))}, {"a": 1}, True),
        ({"x-other": 1}, {}, True),
        ({"x-match": "all-with-x", "x-other": 1}, {}, False),
        ({"x-match": "any-with-x", "x-other": 1}, {"x-other": 1}, True),
    ],
)
def test_headers(arguments, headers, fits):
    assert headers_match(arguments, headers) is fits


def test_direct_and_fanout(client):
    client.bind("q", "amq.direct", "k")
    client.bind("q", "amq.direct", "k")
    client.bind("r", "amq.direct", "other")
    client.bind("q", "amq.fanout")
    client.bind("r", "amq.fanout", "ignored")
    client.publish("k", "1", exchange="amq.direct")
    client.publish("x", "2", exchange="amq.fanout")
    assert client.bodies("q") == ["1", "2"]
    assert client.bodies("r") == ["2"]
    assert client.call(methods.QueueUnbind("q", "amq.direct", "k", {})) == methods.QueueUnbindOk()
    client.publish("k", "3", exchange="amq.direct")
    assert client.count("q") == 0


def test_headers_exchange_routes_by_each_message(client):
    client.bind("q", "amq.match", "", a=1)
    client.publish("", "yes", exchange="amq.match", headers={"a": 1})
    client.publish("", "no", exchange="amq.match", headers={"a": 2})
    assert client.bodies("q") == ["yes"]
    assert refusal(client.bind("q", "amq.match", "", **{"x-match": "zzz"})) == (
        406,
        'PRECONDITION_FAILED - Invalid x-match field value <<"zzz">>; expected all, any, all-with-x, or any-with-x',
    )
    client.reopen()
    assert refusal(client.bind("q", "amq.match", "", **{"x-match": 5})) == (
        406,
        "PRECONDITION_FAILED - Invalid x-match field type long (value 5); expected longstr",
    )


def test_a_message_reaches_a_queue_once_however_many_ways_lead_there(client):
    client.exchange("a", "fanout")
    client.exchange("b", "topic")
    assert client.call(methods.ExchangeBind("b", "a", "", False, {})) == methods.ExchangeBindOk()
    assert client.call(methods.ExchangeBind("a", "b", "#", False, {})) == methods.ExchangeBindOk()
    client.bind("q", "a")
    client.bind("q", "b", "#")
    client.bind("q", "b", "k.*")
    client.publish("k.x", "once", exchange="a")
    assert client.bodies("q") == ["once"]
    assert client.call(methods.ExchangeUnbind("b", "a", "", False, {})) == methods.ExchangeUnbindOk()


def test_an_alternate_exchange_takes_what_nobody_wants(client):
    client.exchange("spare", "fanout")
    client.exchange("main", "direct", alternate_exchange="spare")
    client.bind("q", "main", "k")
    client.bind("r", "spare")
    assert client.publish("k", "1", exchange="main", mandatory=True) == []
    assert client.publish("z", "2", exchange="main", mandatory=True) == []
    assert (client.bodies("q"), client.bodies("r")) == (["1"], ["2"])


def test_carbon_copies(client):
    client.publish("q", "x", headers={"CC": ["r"], "BCC": ["nobody"]})
    got, properties, _ = client.get("r")
    assert (got.routing_key, properties["headers"]) == ("q", {"CC": ["r"]})
    assert client.count("q") == 1


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_carbon_copies_are_a_list(client, name):
    (answer,) = client.publish("q", "x", headers={name: "r"})
    assert refusal(answer) == (
        406,
        f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{name}",longstr}}',
    )


def test_an_alternate_exchange_has_a_name(client):
    assert refusal(client.exchange("main", "direct", alternate_exchange=5)) == (
        406,
        "PRECONDITION_FAILED - invalid type 'long' for arg 'alternate-exchange' in exchange 'main' in vhost '/'",
    )


def test_what_is_unroutable_returns_or_goes(client):
    returned, (_, body) = client.publish("nope", "x", mandatory=True)
    assert (returned, body) == (methods.BasicReturn(312, "NO_ROUTE", "", "nope"), b"x")
    assert client.publish("nope", "x") == []


def test_an_auto_delete_exchange_goes_with_its_last_binding(client):
    client.exchange("e", "direct", auto_delete=True)
    assert "e" in client.broker.vhosts["/"].exchanges
    client.bind("q", "e", "k")
    client.call(methods.QueueDelete("q", False, False, False))
    assert "e" not in client.broker.vhosts["/"].exchanges


def delete(name: str, *, if_unused: bool = False) -> methods.ExchangeDelete:
    return methods.ExchangeDelete(name, if_unused, False)


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (
            delete("amq.direct"),
            403,
            "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
        (delete(""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            methods.QueueBind("q", "", "k", False, {}),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (methods.QueueBind("q", "zzz", "k", False, {}), 404, "NOT_FOUND - no exchange 'zzz' in vhost '/'"),
        (methods.QueueBind("zzz", "amq.direct", "k", False, {}), 404, "NOT_FOUND - no queue 'zzz' in vhost '/'"),
        (
            methods.ExchangeDeclare("amq.direct", "fanout", False, True, False, False, False, {}),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' "
            "but current is 'direct'",
        ),
        (
            methods.ExchangeDeclare("e", "zzz", False, True, False, False, False, {}),
            406,
            "PRECONDITION_FAILED - unknown exchange type 'zzz'",
        ),
        (
            methods.ExchangeDeclare("amq.mine", "direct", False, True, False, False, False, {}),
            403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
    ],
)
def test_what_is_refused(client, method, code, text):
    assert refusal(client.call(method)) == (code, text)


def test_publishing_to_what_is_missing_or_internal_closes_the_channel(client):
    client.exchange("inner", "fanout", internal=True)
    assert refusal(client.publish("", "x", "y", exchange="inner")) == (
        403, "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'",
    )  # fmt: skip
    client.reopen()
    assert refusal(client.publish("", "x", exchange="zzz")) == (404, "NOT_FOUND - no exchange 'zzz' in vhost '/'")


def test_deleting_what_is_in_use_or_missing(client):
    client.exchange("e", "direct")
    client.bind("q", "e", "k")
    assert refusal(client.call(delete("e", if_unused=True))) == (
        406,
        "PRECONDITION_FAILED - exchange 'e' in vhost '/' in use",
    )
    client.reopen()
    for _ in range(2):
        assert client.call(delete("e")) == methods.ExchangeDeleteOk()
    assert client.call(methods.QueueUnbind("q", "e", "k", {})) == methods.QueueUnbindOk()


def test_remembered_routes_follow_changes(client):
    client.bind("q", "amq.topic", "a.*")
    client.publish("a.b", "1", exchange="amq.topic")
    client.bind("r", "amq.topic", "#")
    client.publish("a.b", "2", exchange="amq.topic")
    client.call(methods.QueueDelete("q", False, False, False))
    client.publish("a.b", "3", exchange="amq.topic")
    assert client.bodies("r") == ["2", "3"]


def test_ten_thousand_bindings_are_looked_at_as_a_tree():
    trie: TopicTrie[int] = TopicTrie()
    for number in range(10_000):
        trie.add(f"k.{number}.*", number)
    assert trie.match("k.77.x") == {77}
