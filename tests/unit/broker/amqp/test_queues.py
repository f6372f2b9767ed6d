"""Queues through a channel: declaring, order, limits, expiry, dead letters, priorities."""

from __future__ import annotations

import pytest

from stratamq.protocols.amqp import methods
from tests.unit.broker.amqp.clients import Client, new_broker, refusal, turn


@pytest.fixture
def client():
    return Client(new_broker())


def test_declare_answers_with_counts_and_makes_names(client):
    assert client.queue("q") == methods.QueueDeclareOk("q", 0, 0)
    client.publish("q", "a", "b")
    assert client.queue("q") == methods.QueueDeclareOk("q", 2, 0)
    made = client.queue("")
    assert made.queue.startswith("amq.gen-")
    assert client.call(methods.QueueBind("", "amq.direct", "", False, {})) == methods.QueueBindOk()
    client.publish(made.queue, "x", exchange="amq.direct")
    assert client.bodies(made.queue) == ["x"]


@pytest.mark.parametrize(
    ("again", "text"),
    [
        (
            {"durable": True},
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"max_length": 5},
            "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'long' "
            "but current is none",
        ),
    ],
)
def test_another_declaration_is_refused(client, again, text):
    client.queue("q")
    assert refusal(client.queue("q", **again)) == (406, f"PRECONDITION_FAILED - {text}")


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({"message_ttl": -1}, "'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}"),
        ({"message_ttl": "1"}, "'x-message-ttl' for queue 'q' in vhost '/': \"expected integer, got longstr\""),
        ({"expires": 0}, "'x-expires' for queue 'q' in vhost '/': {value_zero,0}"),
        (
            {"dead_letter_routing_key": "k"},
            "'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined",
        ),
        ({"max_priority": 256}, "'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,256}"),
        ({"overflow": "zzz"}, "'x-overflow' for queue 'q' in vhost '/': invalid_overflow"),
        ({"queue_type": "a"}, "'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'a'\""),
        ({"queue_mode": "a"}, "'x-queue-mode' for queue 'q' in vhost '/': \"unsupported queue mode 'a'\""),
    ],
)
def test_arguments_that_cannot_be(client, arguments, detail):
    assert refusal(client.queue("q", **arguments)) == (406, f"PRECONDITION_FAILED - invalid arg {detail}")


def test_a_dead_letter_exchange_has_a_name(client):
    assert refusal(client.queue("q", dead_letter_exchange=5)) == (
        406,
        "PRECONDITION_FAILED - invalid type 'long' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
    )


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_queues_that_outlive_connections_are_not_named_by_the_server(client, kind):
    assert refusal(client.queue("", queue_type=kind, durable=True)) == (
        406,
        f"PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_{kind}_queue",
    )


def test_what_quorum_queues_cannot_be(client):
    assert refusal(client.queue("q", queue_type="quorum"))[1].endswith(
        "invalid property 'non-durable' for queue 'q' in vhost '/'"
    )
    client.reopen()
    text = refusal(client.queue("q", queue_type="quorum", durable=True, exclusive=True))[1]
    assert text.endswith("invalid property 'exclusive-owner' for queue 'q' in vhost '/'")


def test_reserved_and_missing_names(client):
    assert refusal(client.queue("amq.x")) == (
        403,
        "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'",
    )
    client.reopen()
    missing = methods.QueueDeclare("nope", True, False, False, False, False, {})
    assert refusal(client.call(missing)) == (404, "NOT_FOUND - no queue 'nope' in vhost '/'")
    client.reopen()
    client.queue("q")
    unnamed = methods.QueueDeclare("", True, False, False, False, False, {})
    assert refusal(client.call(unnamed)) == (404, "NOT_FOUND - no queue '' in vhost '/'")
    client.reopen()
    assert refusal(client.call(methods.QueuePurge("", False))) == (404, "NOT_FOUND - no previously declared queue")


def test_an_exclusive_queue_is_its_connections_own_and_ends_with_it(client):
    client.queue("mine", exclusive=True)
    other = Client(client.broker)
    code, text = refusal(other.queue("mine", exclusive=True))
    assert code == 405
    assert text.startswith(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could"
    )
    client.publish("mine", "x")
    client.close()
    other.reopen()
    assert refusal(other.call(methods.QueueDeclare("mine", True, False, False, False, False, {})))[0] == 404


def test_an_auto_delete_queue_goes_with_its_last_consumer(client):
    client.queue("q", auto_delete=True)
    client.publish("q", "x")
    assert client.count() == 1
    client.consume()
    client.call(methods.BasicCancel("c", False))
    assert "q" not in client.broker.vhosts["/"].queues


def test_delete_and_purge_count_ready_messages(client):
    client.queue("q")
    client.publish("q", "a", "b", "c")
    client.get(no_ack=False)
    assert client.call(methods.QueuePurge("q", False)) == methods.QueuePurgeOk(2)
    client.publish("q", "d")
    assert refusal(client.call(methods.QueueDelete("q", False, True, False))) == (
        406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty",
    )  # fmt: skip
    client.reopen()
    assert client.call(methods.QueueDelete("q", False, False, False)) == methods.QueueDeleteOk(2)
    assert client.call(methods.QueueDelete("q", False, False, False)) == methods.QueueDeleteOk(0)


def test_what_is_given_back_stands_where_it_was(client):
    client.queue("q")
    client.publish("q", *"01234")
    for _ in range(3):
        client.get(no_ack=False)
    client.nack(2)
    got, _, body = client.get(no_ack=False)
    assert (got.redelivered, body) == (True, b"1")
    client.nack(0, multiple=True)
    found = [client.get() for _ in range(5)]
    assert [(got.redelivered, body) for got, _, body in found] == [
        (True, b"0"), (True, b"1"), (True, b"2"), (False, b"3"), (False, b"4"),
    ]  # fmt: skip


def test_the_head_goes_when_a_queue_is_too_long(client):
    client.queue("q", max_length=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.queue("dead")
    client.publish("q", *"abcd")
    assert client.bodies("dead") == ["a", "b"]
    assert client.bodies("q") == ["c", "d"]


def test_bytes_are_limited_too(client):
    client.queue("q", max_length_bytes=10)
    client.publish("q", "xxxx", "yyyy", "zzzz")
    assert client.bodies("q") == ["yyyy", "zzzz"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_publishes_beyond_the_limit_are_nacked(client, overflow):
    client.queue("dead")
    client.queue("q", max_length=1, overflow=overflow, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.call(methods.ConfirmSelect(False))
    assert client.publish("q", "a", "b", "c") == [
        methods.BasicAck(1, False), methods.BasicNack(2, False, False), methods.BasicNack(3, False, False),
    ]  # fmt: skip
    assert client.bodies("q") == ["a"]
    assert client.bodies("dead") == (["b", "c"] if overflow.endswith("dlx") else [])


def test_messages_expire_at_the_head_only(client):
    client.queue("q")
    client.publish("q", "long", expiration="60000")
    client.publish("q", "short", expiration="100")
    turn(client.broker, later_ms=500)
    assert client.count() == 2
    assert client.get()[2] == b"long"
    assert client.get() is None


def test_the_smaller_time_to_live_counts_and_the_timer_finds_it(client):
    client.queue("dead")
    client.queue("q", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", "a", expiration="100")
    client.publish("q", "b", expiration="5000")
    turn(client.broker, later_ms=99)
    assert client.count("dead") == 0
    turn(client.broker, later_ms=1)
    assert client.count("dead") == 1
    assert client.broker.next_deadline_ms() is not None
    turn(client.broker, later_ms=900)
    _, properties, _ = client.get("dead")
    assert properties["headers"]["x-death"][0]["original-expiration"] == "100"
    assert "expiration" not in properties
    assert client.get("dead")[2] == b"b"


def test_a_time_to_live_of_zero_reaches_consumers_that_are_there(client):
    client.queue("q", message_ttl=0)
    client.publish("q", "nobody")
    turn(client.broker)
    assert client.count() == 0
    client.consume(no_ack=True)
    assert [body for _, _, body in client.delivered(client.publish("q", "somebody"))] == ["somebody"]


@pytest.mark.parametrize(
    ("expiration", "wrong"),
    [
        ("abc", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("", "no_integer"),
    ],
)
def test_an_expiration_must_be_a_number(client, expiration, wrong):
    client.queue("q")
    assert refusal(client.publish("q", "x", expiration=expiration)) == (
        406,
        f"PRECONDITION_FAILED - invalid expiration '{expiration}': {wrong}",
    )


def test_a_queue_that_nobody_uses_expires(client):
    client.queue("q", expires=1000)
    turn(client.broker, later_ms=900)
    client.get()
    turn(client.broker, later_ms=900)
    client.consume()
    turn(client.broker, later_ms=5000)
    client.call(methods.BasicCancel("c", False))
    assert "q" in client.broker.vhosts["/"].queues
    turn(client.broker, later_ms=1000)
    assert "q" not in client.broker.vhosts["/"].queues


def test_dead_letters_tell_their_story(client):
    client.exchange("dlx", "fanout")
    client.queue("q", dead_letter_exchange="dlx")
    client.queue("dead")
    client.bind("dead", "dlx")
    client.bind("q", "amq.direct", "key")
    client.publish("key", "x", exchange="amq.direct")
    client.get(no_ack=False)
    client.nack(1, requeue=False)
    got, properties, _ = client.get("dead")
    headers = properties["headers"]
    assert (got.exchange, got.routing_key) == ("dlx", "key")
    (death,) = headers["x-death"]
    assert {name: death[name] for name in ("count", "reason", "queue", "exchange", "routing-keys")} == {
        "count": 1, "reason": "rejected", "queue": "q", "exchange": "amq.direct", "routing-keys": ["key"],
    }  # fmt: skip
    assert (headers["x-first-death-queue"], headers["x-last-death-reason"]) == ("q", "rejected")


def test_a_cycle_without_a_rejection_ends(client):
    client.queue("a", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="b")
    client.queue("b", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="a")
    client.publish("a", "x")
    for _ in range(4):
        turn(client.broker, later_ms=10)
    assert (client.count("a"), client.count("b")) == (0, 0)


def test_a_rejection_may_go_round_for_ever_and_is_counted(client):
    client.queue("work", dead_letter_exchange="", dead_letter_routing_key="wait")
    client.queue("wait", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="work")
    client.publish("work", "x")
    for round_number in range(1, 4):
        got, properties, _ = client.get("work", no_ack=False)
        if round_number > 1:
            assert properties["headers"]["x-death"][0]["count"] == round_number - 1
        client.nack(got.delivery_tag, requeue=False)
        turn(client.broker, later_ms=10)
    assert client.count("work") == 1


def test_priorities(client):
    client.queue("q", max_priority=5)
    for priority in (1, 9, None, 3, 5, 0):
        client.publish("q", str(priority), priority=priority)
    assert client.bodies("q") == ["9", "5", "3", "1", "None", "0"]


def test_a_quorum_queue_gives_up_on_what_comes_back_too_often(client):
    client.queue("dead")
    client.queue(
        "q",
        durable=True,
        queue_type="quorum",
        delivery_limit=2,
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
    )
    client.publish("q", "x")
    client.consume()
    for tag in range(1, 4):
        client.nack(tag)
    _, properties, _ = client.get("dead")
    assert properties["headers"]["x-death"][0]["reason"] == "delivery_limit"
