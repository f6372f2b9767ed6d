"""The AMQP broker for any sequence of events: a queue against a plain list, crashes included; noise harms nobody."""

from __future__ import annotations

import json
import shutil
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratamq.broker.amqp import levels
from stratamq.broker.amqp.definitions import definitions_of, load_definitions
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import SPECS
from stratamq.protocols.amqp.frames import method_frame
from tests.unit.broker.amqp.clients import Client, new_broker, turn
from tests.unit.broker.amqp.test_storage import Disk
from tests.unit.protocols.amqp.peers import publish, raw_frame


class QueueAgainstList(RuleBasedStateMachine):
    """A durable queue with a tiny window on a real store; the model is two lists."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="stratamq-amqp-")
        self.window, levels.WINDOW_MESSAGES = levels.WINDOW_MESSAGES, 4
        self.fetch, levels.FETCH_MESSAGES = levels.FETCH_MESSAGES, 3
        self.disk = Disk(self.directory)
        self.client = Client(new_broker(self.disk.storage))
        self.client.queue("q", durable=True)
        self.client.call(methods.ConfirmSelect(False))
        self.ready: list[int] = []
        self.unacked: dict[int, int] = {}
        self.next = 0

    def teardown(self):
        levels.WINDOW_MESSAGES, levels.FETCH_MESSAGES = self.window, self.fetch
        self.sync_all()
        self.disk.store.close()
        shutil.rmtree(self.directory)

    def sync_all(self):
        turn(self.client.broker)
        while self.disk.tokens or self.disk.later:
            self.disk.sync()
            while self.disk.later:
                self.disk.later.pop()()

    @rule(count=st.integers(1, 8))
    def publish(self, count):
        numbers = list(range(self.next, self.next + count))
        self.next += count
        self.client.publish("q", *[str(number) for number in numbers], delivery_mode=2)
        self.ready += numbers

    @rule()
    def get(self):
        got = self.client.get(no_ack=False)
        if not self.ready:
            assert got is None
            return
        assert int(got[2]) == self.ready.pop(0)
        self.unacked[got[0].delivery_tag] = int(got[2])

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), multiple=st.booleans(), how=st.sampled_from(["ack", "requeue", "drop"]))
    def settle(self, data, multiple, how):
        tag = data.draw(st.sampled_from(list(self.unacked)))
        tags = [known for known in self.unacked if known <= tag] if multiple else [tag]
        if how == "ack":
            assert self.client.ack(tag, multiple=multiple) == []
        else:
            assert self.client.nack(tag, multiple=multiple, requeue=how == "requeue") == []
        numbers = [self.unacked.pop(known) for known in tags]
        if how == "requeue":
            self.ready = sorted(self.ready + numbers)

    @rule()
    def purge(self):
        assert self.client.call(methods.QueuePurge("q", False)).message_count == len(self.ready)
        self.ready.clear()

    @rule()
    def sync(self):
        self.disk.sync()
        self.client.take()

    @rule(killed=st.booleans())
    def restart(self, killed):
        self.sync_all()
        definitions = json.loads(json.dumps(definitions_of(self.client.broker)))
        if killed:
            self.disk.kill()
        else:
            self.disk.store.close()
        self.disk = Disk(self.directory)
        broker = new_broker(self.disk.storage)
        load_definitions(broker, definitions)
        self.client = Client(broker)
        self.client.call(methods.ConfirmSelect(False))
        self.ready = sorted(self.ready + list(self.unacked.values()))
        self.unacked.clear()

    @invariant()
    def counts_agree(self):
        if hasattr(self, "client"):
            assert self.client.count("q") == len(self.ready)


QueueAgainstList.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestQueueAgainstList = QueueAgainstList.TestCase


SAMPLES = {
    "o": st.integers(0, 255),
    "h": st.integers(0, 65535),
    "l": st.integers(0, 2**32 - 1),
    "q": st.integers(0, 5),
    "s": st.sampled_from(["", "q", "r", "amq.topic", "e", "direct", "topic", "c", "amq.rabbitmq.reply-to"]),
    "S": st.binary(max_size=5),
    "b": st.booleans(),
    "t": st.dictionaries(
        st.sampled_from(["x-max-length", "x-message-ttl", "x-expires", "x-max-priority", "x-queue-type", "CC"]),
        st.one_of(st.integers(-1, 3), st.just("quorum"), st.none()),
        max_size=2,
    ),
}


@st.composite
def any_method(draw):
    spec = SPECS[draw(st.sampled_from(sorted(SPECS)))]
    arguments = spec.arguments(*[draw(SAMPLES[letter]) for letter in spec.layout if letter in SAMPLES])
    return method_frame(draw(st.integers(0, 2)), arguments)


ANYTHING = st.one_of(
    any_method(),
    st.builds(
        publish, st.just(1), st.sampled_from(["", "amq.topic", "e"]), st.sampled_from(["q", "r"]), st.binary(max_size=9)
    ),
    st.builds(raw_frame, st.sampled_from([1, 2, 3]), st.integers(0, 2), st.binary(max_size=30)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ANYTHING, max_size=30))
def test_whatever_one_client_sends_the_broker_serves_the_other(frames):
    broker = new_broker()
    noisy, calm = Client(broker), Client(broker)
    calm.queue("calm", exclusive=True)
    for frame in frames:
        noisy.session.receive(frame)
        turn(broker, later_ms=1)
        assert b"INTERNAL_ERROR" not in b"".join(noisy.session.outgoing)
    noisy.session.shut_down()
    turn(broker)
    calm.take()
    calm.publish("calm", "still here")
    assert calm.bodies("calm") == ["still here"]
    for queue in broker.vhosts["/"].queues.values():
        assert queue.unacked == 0
        assert queue.ready == sum(len(level) for level in queue.levels)
