"""The queue store against a plain model: any order of calls, clean and unclean reopening, unsynced bytes lost."""

from __future__ import annotations

import copy
import random
import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratamq.config import QueueStoreConfig
from stratamq.queuestore.queue import Queue
from stratamq.queuestore.store import QueueStore
from stratamq.queuestore.types import GONE, READY, UNACKED, CommitToken
from stratamq.testing.clock import ManualClock
from tests.unit.queuestore.memory_disk import MemoryDisk

CONFIG = QueueStoreConfig(
    queue_index_embed_msgs_below=64,
    queue_index_segment_entry_count=8,
    queue_index_journal_bytes_max=4096,
    journal_file_bytes=1024,
    msg_store_file_size_limit=1024,
    write_buffer_bytes=1024,
    recent_bytes_max=4096,
    index_cache_bytes_max=4096,
    body_cache_bytes_max=256,
    maintenance_bytes=1024,
)
NAMES = ["d0", "d1", "d2", "t0", "t1"]


@dataclass
class Message:
    """One message of the model."""

    content: bytes
    survives: bool
    state: int = READY


@dataclass
class ModelQueue:
    """One queue of the model."""

    durable: bool
    mark: int = 0
    messages: dict[int, Message] = field(default_factory=dict)


def survivors(model: dict[str, ModelQueue]) -> dict[str, dict[int, tuple[bytes, bool]]]:
    """What a restart brings back: content and redelivered flag by number."""
    return {
        name: {seq: (m.content, seq < queue.mark) for seq, m in sorted(queue.messages.items()) if m.survives}
        for name, queue in model.items()
        if queue.durable
    }


def stored(queue: Queue) -> dict[int, int]:
    """State by number of a real queue."""
    return {
        segment.first + at: state
        for segment in queue.segments.values()
        for at, state in enumerate(segment.states)
        if state != GONE
    }


class QueueStoreMachine(RuleBasedStateMachine):
    """Drives a store on a disk in memory beside a model of dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.model: dict[str, ModelQueue] = {}
        self.history: dict[int, dict[str, dict[int, tuple[bytes, bool]]]] = {0: {}}
        self.tokens: list[CommitToken] = []
        self.count = 0
        self._open()

    def _open(self) -> None:
        self.store = QueueStore.open(self.folder.name, CONFIG, clock=self.clock, filesystem=self.disk)

    def _queue(self, index: int) -> tuple[Queue, ModelQueue] | None:
        queues = self.store.queues()
        if not queues:
            return None
        queue = queues[index % len(queues)]
        return queue, self.model[queue.name]

    # --- calls ------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def declare(self, name):
        self.store.declare_queue(name, durable=name[0] == "d")
        self.model.setdefault(name, ModelQueue(name[0] == "d"))

    @rule(
        into=st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
        size=st.sampled_from([0, 1, 20, 63, 64, 200, 500]),
        persistent=st.booleans(),
        times=st.integers(1, 9),
    )
    def publish(self, into, size, persistent, times):
        queues = [queue for at, queue in enumerate(self.store.queues()) if at in into]
        for _ in range(times if queues else 0):
            self.count += 1
            content = (b"%d." % self.count * (size // 2 + 1))[:size]
            seqs = self.store.publish(content, persistent=persistent, queues=queues)
            for queue, seq in zip(queues, seqs, strict=True):
                model = self.model[queue.name]
                assert seq > max(model.messages, default=-1)
                model.messages[seq] = Message(content, persistent and queue.durable)

    @rule(index=st.integers(0, 4), limit=st.integers(1, 12))
    def fetch(self, index, limit):
        if (pair := self._queue(index)) is None:
            return
        queue, model = pair
        ready = sorted(seq for seq, message in model.messages.items() if message.state == READY)[:limit]
        got = queue.fetch(limit)
        assert [(d.seq, d.content, d.redelivered) for d in got] == [
            (seq, model.messages[seq].content, seq < model.mark) for seq in ready
        ]
        for seq in ready:
            model.messages[seq].state = UNACKED
            model.mark = max(model.mark, seq + 1)

    @rule(index=st.integers(0, 4), pick=st.randoms(use_true_random=False), only_unacked=st.booleans())
    def ack(self, index, pick, only_unacked):
        if (pair := self._queue(index)) is None:
            return
        queue, model = pair
        seqs = [s for s, m in model.messages.items() if m.state == UNACKED or not only_unacked]
        chosen = [seq for seq in seqs if pick.random() < 0.7]
        assert queue.ack([*chosen, 10_000, *chosen[:1]]) == len(chosen)
        for seq in chosen:
            del model.messages[seq]

    @rule(index=st.integers(0, 4), pick=st.randoms(use_true_random=False))
    def requeue(self, index, pick):
        if (pair := self._queue(index)) is None:
            return
        queue, model = pair
        chosen = [s for s, m in model.messages.items() if m.state == UNACKED and pick.random() < 0.5]
        assert queue.requeue([*chosen, 10_000]) == len(chosen)
        for seq in chosen:
            model.messages[seq].state = READY

    @rule(index=st.integers(0, 4))
    def purge(self, index):
        if (pair := self._queue(index)) is None:
            return
        queue, model = pair
        ready = [seq for seq, message in model.messages.items() if message.state == READY]
        assert queue.purge() == len(ready)
        for seq in ready:
            del model.messages[seq]

    @rule(index=st.integers(0, 4))
    def delete(self, index):
        if (pair := self._queue(index)) is None:
            return
        queue, model = pair
        assert self.store.delete_queue(queue.name) == len(model.messages)
        del self.model[queue.name]

    # --- disk -------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Remember what the batch that is being committed makes of the model."""
        self.history[self.store.status().batch] = survivors(copy.deepcopy(self.model))

    @rule()
    def commit(self):
        self._note()
        token = self.store.commit()
        if token is not None:
            self.tokens.append(token)

    @precondition(lambda self: self.tokens)
    @rule()
    def sync(self):
        token = self.tokens.pop(0)
        self.store.sync(token)
        self.store.synced(token)

    @rule(times=st.integers(1, 30))
    def tick(self, times):
        self._note()
        while self.store.tick() and times:
            times -= 1

    @rule()
    def reopen(self):
        self.store.close()
        self._open()
        assert self.store.recovery.clean
        self._restarted(survivors(self.model))

    @rule(rng=st.randoms(use_true_random=False), lose=st.booleans(), flushed=st.booleans())
    def crash(self, rng, lose, flushed):
        if flushed:
            self._note()
            self.store.begin_step()
        status = self.store.status()
        self.store._lock.release()
        self.disk = self.disk.crash(random.Random(rng.random()) if lose else None)
        self._open()
        batch = self.store.status().batch - 1
        assert status.durable_batch <= batch < status.batch + flushed
        assert lose or batch >= status.batch - 1
        durable = self.history.get(status.durable_batch, {})
        self._restarted(self.history.get(batch, {}), durable, self.store.recovery.messages_dropped)

    def _restarted(
        self,
        expected: dict[str, dict[int, tuple[bytes, bool]]],
        durable: dict[str, dict[int, tuple[bytes, bool]]] | None = None,
        dropped: int = 0,
    ) -> None:
        found = {
            queue.name: {seq: (queue.read(seq), seq < queue.mark) for seq in sorted(stored(queue))}
            for queue in self.store.queues()
        }
        for name, messages in expected.items() if dropped else ():
            for seq in [seq for seq in messages if seq not in found[name]]:
                assert seq not in (durable or {}).get(name, {})
                assert len(messages.pop(seq)[0]) >= CONFIG.queue_index_embed_msgs_below
                dropped -= 1
        assert dropped >= 0
        assert found == expected
        for queue in self.store.queues():
            assert set(stored(queue).values()) <= {READY}
        marks = {queue.name: queue.mark for queue in self.store.queues()}
        self.model = {
            name: ModelQueue(True, marks[name], {seq: Message(content, True) for seq, (content, _) in messages.items()})
            for name, messages in found.items()
        }
        self.tokens.clear()
        batch = self.store.status().batch - 1
        self.history = {batch: survivors(self.model)}

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self):
        assert {queue.name for queue in self.store.queues()} == set(self.model)
        for queue in self.store.queues():
            messages = self.model[queue.name].messages
            assert stored(queue) == {seq: message.state for seq, message in messages.items()}
            ready = sum(message.state == READY for message in messages.values())
            assert queue.counts() == (ready, len(messages) - ready, sum(len(m.content) for m in messages.values()))

    @invariant()
    def references_are_exact(self):
        for store in (self.store._persistent, self.store._transient):
            named: dict[int, int] = {}
            for queue in self.store.queues():
                for segment in queue.segments.values():
                    for kind, message_id in queue.stored_ids(segment):
                        if queue._store_of(kind) is store:
                            named[message_id] = named.get(message_id, 0) + 1
            there = {i: store.references(i) for file in store.files for i in file.table.ids if store.references(i)}
            assert there == named

    @invariant()
    def memory_is_counted(self):
        shared = self.store._shared
        segments = [segment for queue in self.store.queues() for segment in queue.segments.values()]
        bodies = sum(len(c) for segment in segments for c in segment.contents if type(c) is bytes)
        assert shared.recent_bytes == bodies + 64 * sum(len(segment.contents) for segment in segments)

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestQueueStore = QueueStoreMachine.TestCase
TestQueueStore.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)

WEIGHTS = {
    "declare": 2.0,
    "publish": 30,
    "fetch": 15,
    "ack": 10,
    "requeue": 5,
    "purge": 1,
    "delete": 0.5,
    "commit": 15,
    "sync": 12,
    "tick": 8,
    "reopen": 1,
    "crash": 3,
}


def random_call(machine: QueueStoreMachine, rng: random.Random) -> None:
    """Make one call, chosen so that queues grow long and much is collected and recovered."""
    call = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    at = rng.randint(0, 4)
    arguments: dict[str, dict[str, object]] = {
        "declare": {"name": rng.choice(NAMES)},
        "publish": {
            "into": rng.sample(range(5), rng.randint(1, 3)),
            "size": rng.choice([0, 1, 20, 63, 64, 200, 500]),
            "persistent": rng.random() < 0.8,
            "times": rng.randint(1, 9),
        },
        "fetch": {"index": at, "limit": rng.randint(1, 12)},
        "ack": {"index": at, "pick": rng, "only_unacked": rng.random() < 0.9},
        "requeue": {"index": at, "pick": rng},
        "purge": {"index": at},
        "delete": {"index": at},
        "tick": {"times": rng.choice([1, 1, 30])},
        "crash": {"rng": rng, "lose": rng.random() < 0.7, "flushed": rng.random() < 0.4},
    }
    if call != "sync" or machine.tokens:
        getattr(machine, call)(**arguments.get(call, {}))


@pytest.mark.parametrize("seed", range(50))
def test_long_walks(seed):
    rng = random.Random(seed)
    machine = QueueStoreMachine()
    try:
        for _ in range(200):
            random_call(machine, rng)
            machine.counts_agree()
            machine.references_are_exact()
            machine.memory_is_counted()
    finally:
        machine.teardown()
