"""Channels and connections: deliveries, credit, settling, confirms, transactions, replies, ends, refusals."""

from __future__ import annotations

import pytest

from stratamq.broker.amqp.access import Permission, TopicPermission, User, check_password, hash_password
from stratamq.broker.amqp.policies import Policy
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame
from tests.unit.broker.amqp.clients import Client, new_broker, refusal, turn


@pytest.fixture
def client():
    client = Client(new_broker())
    client.queue("q")
    return client


# --- deliveries ---


def test_consume_answers_before_it_delivers(client):
    client.publish("q", "a")
    answers = client.consume()
    assert answers[0] == methods.BasicConsumeOk("c")
    assert client.delivered(answers) == [(1, False, "a")]


def test_prefetch_is_each_consumers_own(client):
    client.publish("q", *"abcdef")
    client.send(methods.BasicQos(0, 2, False))
    assert len(client.delivered(client.consume(tag="one"))) == 2
    client.send(methods.BasicQos(0, 1, False))
    assert len(client.delivered(client.consume(tag="two"))) == 1
    assert client.delivered(client.ack(1)) == [(4, False, "d")]


def test_a_shared_window_counts_all_consumers(client):
    client.publish("q", *"abcdef")
    client.send(methods.BasicQos(0, 3, True))
    got = client.delivered(client.consume(tag="one") + client.consume(tag="two"))
    assert len(got) == 3
    assert len(client.delivered(client.ack(2, multiple=True))) == 2


def test_consumers_take_turns_and_higher_ones_go_first(client):
    client.consume(tag="low", **{"x-priority": -1})
    client.consume(tag="a")
    client.consume(tag="b")
    answers = client.publish("q", *"1234")
    tags = [one.consumer_tag for one in answers if isinstance(one, methods.BasicDeliver)]
    assert tags == ["a", "b", "a", "b"]


def test_a_single_active_consumer_is_followed_by_the_next(client):
    client.queue("s", single_active_consumer=True)
    client.consume("s", "one")
    client.consume("s", "two")
    answers = client.publish("s", *"12")
    assert {one.consumer_tag for one in answers if isinstance(one, methods.BasicDeliver)} == {"one"}
    client.send(methods.BasicCancel("one", False))
    answers = client.publish("s", "3")
    assert [one.consumer_tag for one in answers if isinstance(one, methods.BasicDeliver)] == ["two"]


def test_an_exclusive_consumer_is_alone(client):
    client.consume(exclusive=True)
    other = Client(client.broker)
    assert refusal(other.consume()) == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")


def test_a_deleted_queue_cancels_its_consumers(client):
    client.consume()
    other = Client(client.broker)
    other.call(methods.QueueDelete("q", False, False, False))
    assert client.take() == [methods.BasicCancel("c", True)]


def test_a_clogged_connection_gets_nothing_until_it_reads_again(client):
    client.session.set_clogged(True)
    assert client.delivered(client.consume()) == []
    client.publish("q", "a")
    client.session.set_clogged(False)
    turn(client.broker)
    assert client.delivered() == [(1, False, "a")]


def test_one_turn_does_not_send_more_than_fits(client):
    client.publish("q", *[b"x" * 300_000] * 10)
    assert len(client.delivered(client.consume())) == 4
    client.session.set_clogged(False)
    turn(client.broker)
    assert len(client.delivered()) == 4


# --- settling ---


@pytest.mark.parametrize(
    "method", [methods.BasicAck(99, False), methods.BasicAck(0, False), methods.BasicReject(99, True)]
)
def test_an_unknown_tag_closes_the_channel(client, method):
    tag = method.delivery_tag
    assert refusal(client.call(method)) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


@pytest.mark.parametrize(
    "method", [methods.BasicAck(2, True), methods.BasicAck(9, True), methods.BasicNack(9, True, True)]
)
def test_an_unknown_tag_settles_nothing_below_it(client, method):
    client.publish("q", "a", "b", "c")
    for _ in "abc":
        client.get(no_ack=False)
    client.ack(2)
    tag = method.delivery_tag
    assert refusal(client.call(method)) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
    client.reopen()
    assert client.bodies("q") == ["a", "c"]


def test_acknowledging_all_of_nothing_is_fine(client):
    assert client.ack(0, multiple=True) == []


def test_a_second_ack_closes_the_channel_and_the_rest_comes_back(client):
    client.publish("q", "a", "b")
    client.consume()
    client.ack(1)
    assert refusal(client.ack(1))[0] == 406
    client.reopen()
    got, _, body = client.get()
    assert (got.redelivered, body) == (True, b"b")


def test_recover_delivers_again(client):
    client.publish("q", "a")
    client.consume()
    answers = client.send(methods.BasicRecover(True))
    assert answers[0] == methods.BasicRecoverOk()
    assert client.delivered(answers) == [(2, True, "a")]
    assert refusal(client.call(methods.BasicRecover(False)))[0] == 540


def test_a_lost_connection_gives_back_what_it_held(client):
    client.publish("q", "a", "b")
    client.consume()
    client.session.shut_down()
    other = Client(client.broker)
    assert [other.get()[0].redelivered for _ in range(2)] == [True, True]


def test_cancel_leaves_deliveries_unacknowledged(client):
    client.publish("q", "a")
    client.consume()
    assert client.call(methods.BasicCancel("c", False)) == methods.BasicCancelOk("c")
    assert client.call(methods.BasicCancel("unknown", False)) == methods.BasicCancelOk("unknown")
    assert client.count() == 0
    assert client.ack(1) == []


def test_a_delivery_that_nobody_settles_closes_its_channel(client):
    client.queue("slow", consumer_timeout=1000)
    client.publish("slow", "a")
    client.consume("slow")
    client.broker.now_ms += 1000
    client.session.check_consumers()
    assert client.take() == []
    client.broker.now_ms += 1
    client.session.check_consumers()
    code, text = refusal(client.take())
    assert code == 406
    assert "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms." in text
    client.reopen()
    assert client.count("slow") == 1


# --- confirms ---


def test_confirms_cover_a_turn(client):
    client.call(methods.ConfirmSelect(False))
    assert client.publish("q", "a", "b", "c") == [methods.BasicAck(3, True)]
    assert client.publish("q", "d") == [methods.BasicAck(4, False)]


def test_a_return_comes_before_its_confirm(client):
    client.call(methods.ConfirmSelect(False))
    returned, _, ack = client.publish("nope", "x", mandatory=True)
    assert isinstance(returned, methods.BasicReturn)
    assert ack == methods.BasicAck(1, False)


class SlowStorage:
    """Turns that write something are safe only when `sync` says so."""

    is_congested = False

    def __init__(self, memory):
        self.memory, self.batch, self.dirty = memory, 0, False
        self.on_synced = lambda number: None

    def open_queue(self, name):
        return self.memory.open_queue(name)

    def publish(self, message, persistent, queues, forced=False):
        self.dirty = self.dirty or persistent
        return self.memory.publish(message, persistent, queues)

    def commit(self):
        if not self.dirty:
            return 0
        self.dirty = False
        self.batch += 1
        return self.batch

    def sync(self):
        self.on_synced(self.batch)


@pytest.fixture
def slow():
    from stratamq.broker.amqp.storage import MemoryStorage

    client = Client(new_broker(SlowStorage(MemoryStorage())))
    client.queue("d", durable=True)
    return client


def test_a_persistent_message_is_confirmed_after_its_sync_and_in_order(slow):
    slow.call(methods.ConfirmSelect(False))
    assert slow.publish("d", "safe", delivery_mode=2) == []
    assert slow.publish("d", "transient") == []
    slow.broker.storage.sync()
    assert slow.take() == [methods.BasicAck(1, False), methods.BasicAck(2, False)]
    assert slow.publish("d", "transient") == [methods.BasicAck(3, False)]


def test_a_transaction_is_answered_after_its_sync(slow):
    slow.call(methods.TxSelect())
    slow.publish("d", "a", "b", delivery_mode=2)
    assert slow.count("d") == 0
    assert slow.send(methods.TxCommit()) == []
    slow.broker.storage.sync()
    assert slow.take() == [methods.TxCommitOk()]
    assert slow.count("d") == 2


def test_rollback_forgets_publishes_and_takes_acks_back(client):
    client.publish("q", "a")
    client.call(methods.TxSelect())
    client.consume()
    client.publish("q", "b")
    client.ack(1)
    assert client.call(methods.TxRollback()) == methods.TxRollbackOk()
    assert client.ack(1) == []
    assert client.call(methods.TxCommit()) == methods.TxCommitOk()
    assert client.bodies() == []


def test_a_channel_has_one_mode(client):
    assert refusal(client.call(methods.TxCommit())) == (406, "PRECONDITION_FAILED - channel is not transactional")
    client.reopen()
    client.call(methods.ConfirmSelect(False))
    assert refusal(client.call(methods.TxSelect())) == (
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    )
    client.reopen()
    client.call(methods.TxSelect())
    text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    assert refusal(client.call(methods.ConfirmSelect(False))) == (406, text)


# --- direct replies ---

REPLY_TO = "amq.rabbitmq.reply-to"


def test_a_direct_reply(client):
    client.consume(REPLY_TO, "replies", no_ack=True)
    client.publish("q", "question", reply_to=REPLY_TO)
    server = Client(client.broker)
    _, properties, _ = server.get()
    address = properties["reply_to"]
    assert address.startswith(f"{REPLY_TO}.")
    assert server.publish(address, "answer", mandatory=True) == []
    deliver, (_, body) = client.take()
    assert (deliver.consumer_tag, deliver.routing_key, body) == ("replies", address, b"answer")
    client.close()
    assert isinstance(server.publish(address, "late", mandatory=True)[0], methods.BasicReturn)


def test_what_direct_replies_need(client):
    assert refusal(client.publish("q", "x", reply_to=REPLY_TO))[1].endswith("fast reply consumer does not exist")
    client.reopen()
    assert refusal(client.consume(REPLY_TO))[1].endswith("reply consumer cannot acknowledge")
    client.reopen()
    client.consume(REPLY_TO, no_ack=True)
    assert refusal(client.consume(REPLY_TO, no_ack=True))[1].endswith("reply consumer already set")


# --- refusals that end the connection ---


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (methods.ChannelOpen(), 504),
        (methods.ChannelFlow(False), 540),
        (methods.BasicQos(10, 0, False), 540),
        (methods.BasicPublish("", "q", False, False), 505),
        (methods.QueueDeclareOk("q", 1, 1), 503),
    ],
)
def test_hard_errors_end_the_connection_and_nobody_else_notices(client, method, code):
    other = Client(client.broker)
    answers = client.send(method, methods.BasicGet("q", True))
    assert refusal(answers)[0] == code
    assert client.session.is_closed
    assert other.publish("q", "x") == []
    assert other.count() == 1


def test_a_used_consumer_tag_ends_the_connection(client):
    client.consume()
    assert refusal(client.consume()) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")


def test_a_channel_that_was_never_opened(client):
    assert refusal(client.send(methods.BasicGet("q", True), channel=7)) == (
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
    )


def test_too_many_channels(client):
    client.session.core.channel_max = 2
    client.send(methods.ChannelOpen(), channel=2)
    assert refusal(client.send(methods.ChannelOpen(), channel=3))[0] == 530


def test_a_message_over_the_limit_closes_the_channel():
    client = Client(new_broker(), body_bytes_max=3)
    client.queue()
    text = "PRECONDITION_FAILED - message size 4 is larger than configured max size 3"
    assert refusal(client.publish("q", "abcd")) == (406, text)


def test_a_closed_channel_ignores_what_still_comes(client):
    client.raw(
        method_frame(1, methods.QueueDeclare("amq.x", False, False, False, False, False, {}))
        + method_frame(1, methods.QueueDeclare("later", False, False, False, False, False, {}))
    )
    assert "later" not in client.broker.vhosts["/"].queues
    client.reopen()
    assert client.count() == 0


def test_a_channel_number_may_be_used_again(client):
    assert client.call(methods.ChannelClose(200, "", 0, 0)) == methods.ChannelCloseOk()
    assert isinstance(client.call(methods.ChannelOpen()), methods.ChannelOpenOk)


# --- alarms ---


def test_publishers_are_blocked_while_an_alarm_is_raised(client):
    client.broker.set_alarm("memory", True)
    assert client.count() == 0
    assert client.publish("q", "x") == [methods.ConnectionBlocked("low on memory")]
    assert client.session.is_blocked
    client.broker.set_alarm("memory", False)
    assert client.take() == [methods.ConnectionUnblocked()]
    assert client.count() == 1


# --- users, permissions, policies ---


def test_permissions():
    broker = new_broker()
    broker.users.put(
        User("bob", hash_password("pw", "rabbit_password_hashing_sha256"), "rabbit_password_hashing_sha256")
    )
    broker.users.permit("bob", "/", Permission("^bob", "^bob|amq.default", "^bob"))
    bob = Client(broker, user="bob", password="pw")
    bob.queue("bob-1")
    bob.publish("bob-1", "x")
    assert bob.bodies("bob-1") == ["x"]
    text = "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'bob'"
    assert refusal(bob.queue("q")) == (403, text)
    bob.reopen()
    text = "ACCESS_REFUSED - write access to exchange 'amq.fanout' in vhost '/' refused for user 'bob'"
    assert refusal(bob.publish("", "x", exchange="amq.fanout")) == (403, text)
    bob.reopen()
    text = "PRECONDITION_FAILED - user_id property set to 'eve' but authenticated user was 'bob'"
    assert refusal(bob.publish("bob-1", "x", user_id="eve")) == (406, text)


def test_topic_permissions(client):
    broker = client.broker
    broker.users.put(
        User(
            "eve", hash_password("pw"), topic_permissions={("/", "amq.topic"): TopicPermission("^{username}[.]", ".*")}
        )
    )
    broker.users.permit("eve", "/", Permission(".*", ".*", ".*"))
    eve = Client(broker, user="eve", password="pw")
    assert eve.publish("eve.x", "x", exchange="amq.topic") == []
    assert refusal(eve.publish("bob.x", "x", exchange="amq.topic"))[0] == 403


def test_logins_and_virtual_hosts():
    broker = new_broker()
    wrong = Client(broker, password="wrong")
    assert any(isinstance(one, methods.ConnectionClose) and one.code == 403 for one in wrong.opened)
    broker.users.add("new", "pw")
    stranger = Client(broker, user="new", password="pw")
    assert stranger.opened[-1].text == "NOT_ALLOWED - access to vhost '/' refused for user 'new'"


def test_passwords_as_rabbitmq_keeps_them():
    assert check_password(
        "test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256"
    )
    assert not check_password(
        "test13", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256"
    )
    assert check_password("ö", hash_password("ö"), "stratamq_scrypt")
    assert not check_password("", "", "stratamq_scrypt")


def test_policies_take_effect_at_once_and_the_smaller_number_wins(client):
    vhost = client.broker.vhosts["/"]
    client.queue("own", max_length=1)
    client.publish("q", *"abcde")
    vhost.policies.set(Policy("all", ".*", {"max-length": 3}))
    vhost.policies.set(Policy("op", "q", {"max-length": 2, "message-ttl": 10}, is_operator=True))
    vhost.apply_policies()
    assert client.bodies() == ["d", "e"]
    assert vhost.queues["own"].max_length == 1
    vhost.policies.clear("all")
    vhost.policies.clear("op", is_operator=True)
    vhost.apply_policies()
    assert vhost.queues["q"].max_length is None
    with pytest.raises(InvalidArgument):
        Policy("bad", "(", {})
