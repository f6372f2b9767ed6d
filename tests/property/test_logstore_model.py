"""The log store against a dictionary: puts, commits, syncs, clean and unclean ends, deletions by hand, in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratamq.config import FlushMode
from stratamq.formats.java import tags_code
from stratamq.logstore.layout import stream_file_name
from stratamq.logstore.types import GetStatus
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import FOREVER, abandon, message, open_store, read_all, records_of, small_config

TOPICS = st.sampled_from(["A", "B", "%RETRY%group"])
QUEUES = st.integers(0, 2)
TAGS = st.sampled_from(["", "red", "green", "标签"])
SIZES = st.sampled_from([0, 1, 10, 100, 700, 3000])


class StoreMachine(RuleBasedStateMachine):
    """``committed`` is what is in the log, ``appended`` what waits for its commit: (topic, queue, body, tag)."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.number = 0
        self.committed = []
        self.synced = 0
        self.appended = []
        self.token = None

    @initialize(
        mode=st.sampled_from(list(FlushMode)),
        queue_bytes=st.sampled_from([20, 60, 400]),
        index_entries=st.sampled_from([2, 9, 500]),
    )
    def begin(self, mode, queue_bytes, index_entries):
        self.config = small_config(
            flush_mode=mode, consume_queue_file_bytes=queue_bytes, index_entries=index_entries, index_slots=5
        )
        self.open()

    def open(self):
        self.store = open_store(self.directory, self.config, clock=self.clock)
        self.token = None
        self.synced = len(self.committed)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.directory)

    # --- what is done ---

    @rule(topic=TOPICS, queue_id=QUEUES, sizes=st.lists(SIZES, min_size=1, max_size=3), tag=TAGS)
    def put(self, topic, queue_id, sizes, tag):
        if sum(sizes) > 3000:
            sizes = sizes[:1]
        batch = []
        for size in sizes:
            self.number += 1
            body = f"{self.number}".encode().ljust(size, b".")
            properties = {"KEYS": f"k{self.number} all", "TAGS": tag} if tag else {"KEYS": f"k{self.number}"}
            batch.append(message(body, topic=topic, queue_id=queue_id, **properties))
            self.appended.append((topic, queue_id, body, tag))
        self.store.append(batch)

    @rule()
    def commit(self):
        self.token = self.store.commit() or self.token
        self.committed += self.appended
        self.appended = []

    @rule()
    def sync(self):
        token = self.store.unsynced()
        if token is not None:
            self.store.sync(token)
            self.store.synced(token)
        self.synced = len(self.committed)

    @rule()
    def checkpoint(self):
        self.store.sync_checkpoint(self.store.begin_checkpoint())

    @rule(ms=st.sampled_from([1, 1000, 100_000]))
    def wait(self, ms):
        self.clock.advance(ms)

    @rule()
    def end_cleanly_and_open(self):
        self.store.close()
        self.committed += self.appended
        self.appended = []
        self.open()
        assert self.store.recovery.clean

    @rule()
    def be_killed_and_open(self):
        """A killed process loses what was not written; what was written is in the page cache."""
        abandon(self.store)
        self.appended = []
        self.open()
        assert not self.store.recovery.clean
        assert self.store.recovery.cut_bytes == 0

    @rule(garbage=st.binary(min_size=1, max_size=200))
    def be_killed_in_a_write_and_open(self, garbage):
        end = self.store.max_physical_offset
        abandon(self.store)
        self.appended = []
        path = self.directory / "commitlog" / stream_file_name(end - end % 4096)
        if path.exists() and 4096 - end % 4096 > len(garbage):
            with open(path, "r+b") as file:
                file.seek(end % 4096)
                file.write(garbage)
        self.open()

    @rule(victim=st.sampled_from(["consumequeue", "consumequeue/A", "consumequeue/B/1", "index"]), clean=st.booleans())
    def delete_by_hand_and_open(self, victim, clean):
        if clean:
            self.end_cleanly_and_open()
            self.store.close()
        else:
            abandon(self.store)
            self.appended = []
        shutil.rmtree(self.directory / victim, ignore_errors=True)
        self.open()

    # --- what must hold ---

    def visible(self):
        if self.config.flush_mode is FlushMode.SYNC:
            return self.committed[: self.synced]
        return self.committed

    @invariant()
    def queues_hold_what_may_be_seen(self):
        if not hasattr(self, "store"):
            return
        expected = {}
        for topic, queue_id, body, _ in self.visible():
            expected.setdefault((topic, queue_id), []).append(body)
        for topic in ("A", "B", "%RETRY%group"):
            for queue_id in range(3):
                bodies = [record.body for record in read_all(self.store, topic, queue_id, batch=5)]
                assert bodies == expected.get((topic, queue_id), [])

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def find_one_by_key(self, data):
        visible = self.visible()
        number = data.draw(st.integers(0, len(visible)))
        if number < len(visible):
            topic, _, body, _ = visible[number]
            key = "k" + body.rstrip(b".").decode()
            (view,) = self.store.query(topic, key, 9, 0, FOREVER).records
            assert [record.body for record in records_of(view)] == [body]

    @rule(topic=TOPICS, queue_id=QUEUES, tag=TAGS)
    def read_with_a_filter(self, topic, queue_id, tag):
        expected = [body for t, q, body, its in self.visible() if (t, q, its) == (topic, queue_id, tag)]
        found, offset = [], self.store.min_offset(topic, queue_id)
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.get(topic, queue_id, offset, 4, tags_codes=frozenset([tags_code(tag)]))
            assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            assert result.next_offset > offset
            found += [record.body for view in result.records for record in records_of(view)]
            offset = result.next_offset
        assert found == expected


StoreMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
