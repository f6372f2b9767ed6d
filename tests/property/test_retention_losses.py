"""What groups lose, against counting message by message; and queues after cleaning against the messages that remain."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stratamq.config import RetentionConfig
from stratamq.logstore.retention_losses import loss_ranges, measure_loss, sum_by_group
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.types import QueueKey
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import abandon, bodies, message, open_store, put
from tests.unit.logstore.test_retention_service import HOUR, Probe

KEY = QueueKey("T", 0)


class Messages:
    """A queue as a list of physical offsets; message n is n + 1 bytes long and stored at n ms."""

    def __init__(self, low: int, places: list[int]) -> None:
        self.low, self.places = low, places

    def span(self, key):
        """All of it."""
        return self.low, len(self.places)

    def physical_offset(self, key, offset):
        """Look it up."""
        return self.places[offset] if offset < len(self.places) else None

    def first_at(self, key, physical_offset):
        """Look through all."""
        found = (n for n, place in enumerate(self.places) if n >= self.low and place >= physical_offset)
        return next(found, len(self.places))

    def measure(self, key, first_offset, end_offset):
        """Add up."""
        return sum(n + 1 for n in range(first_offset, end_offset)), first_offset


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 5), max_size=30),
    st.integers(0, 30),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 40)),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_losses_are_what_counting_says(gaps, low, groups, start, more):
    places = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    low = min(low, len(places))
    end = start + more
    queue = Messages(low, places)
    offsets = {("T", group): {0: offset} for group, offset in groups.items()}
    found = {
        lost.group: measure_loss(queue, lost)
        for lost in loss_ranges(queue, [KEY], offsets, start, end)
        if lost is not None
    }
    for group, offset in (groups or {"": 0}).items():
        lost = [n for n, place in enumerate(places) if n >= max(low, offset) and start <= place < end]
        if lost:
            assert (found[group].messages, found[group].size_bytes) == (len(lost), sum(n + 1 for n in lost))
            assert found[group].first_offset == lost[0]
        else:
            assert group not in found
    assert sum(row[2] for row in sum_by_group(found.values())) == sum(loss.messages for loss in found.values())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["T", "U"]), st.integers(0, 1), st.integers(1, 1_500)), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_after_cleaning_every_queue_begins_where_the_log_does(tmp_path_factory, story, rounds):
    directory = tmp_path_factory.mktemp("clean")
    clock = ManualClock()
    store = open_store(directory / "s", clock=clock)
    try:
        sent: dict[tuple[str, int], list[bytes]] = {}
        for number, (topic, queue_id, size) in enumerate(story):
            body = number.to_bytes(4, "big") * (size // 4 + 1)
            put(store, message(body, topic=topic, queue_id=queue_id), sync=False)
            sent.setdefault((topic, queue_id), []).append(body)
        clock.advance(73 * HOUR)
        service = RetentionService(store, RetentionConfig(delete_batch_max=2), clock=clock, offsets=dict, probe=Probe())
        service.request()
        for _ in range(rounds):
            for step in service.round():
                if step.blocking is not None:
                    step.blocking()
        kept = 0
        for (topic, queue_id), messages in sent.items():
            low = store.min_offset(topic, queue_id)
            assert bodies(store, topic, queue_id) == messages[low:]
            kept += len(messages) - low
        lost = sum(messages for messages, _ in service.lost.values())
        assert kept + lost == len(story), "what is not kept is told as lost, once"
    finally:
        abandon(store)
