"""Is what came out what went in? Pure comparisons that answer with sentences about what is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

PROBLEMS_NAMED_MAX = 5


class Received(NamedTuple):
    """One delivered message: where it lay in the store, which event it says it is, and its content's fingerprint."""

    topic: str
    queue_id: int
    queue_offset: int
    number: int
    digest: str


def check_received(rows: Iterable[Received], digests: Callable[[int], str], count: int, senders: int) -> list[str]:
    """Compare everything delivered with events 0 to ``count`` - 1.

    Nothing may be missing, nothing may have come twice, every fingerprint must fit, offsets of a queue must have no
    gap, and in each queue the events of one sender must stand in the order in which it sent them. Sender of event N
    is N modulo ``senders``. Callbacks may come in any order: the order checked is that of the queue.
    """
    received = list(rows)
    problems: list[str] = []
    times = Counter(row.number for row in received)
    _name(problems, "never arrived", (number for number in range(count) if number not in times))
    _name(problems, "arrived more than once", (number for number, seen in sorted(times.items()) if seen > 1))
    _name(problems, "was never sent", (number for number in sorted(times) if not 0 <= number < count))
    _name(
        problems,
        "arrived with another topic, tag, key or body than it was sent with",
        (row.number for row in received if 0 <= row.number < count and row.digest != digests(row.number)),
    )
    queues: dict[tuple[str, int], list[Received]] = defaultdict(list)
    for row in received:
        queues[row.topic, row.queue_id].append(row)
    for (topic, queue_id), there in sorted(queues.items()):
        there.sort(key=lambda row: row.queue_offset)
        if [row.queue_offset for row in there] != list(range(len(there))):
            problems.append(f"queue {queue_id} of topic {topic} has gaps or repeats among its offsets")
        last: dict[int, int] = {}
        _name(
            problems,
            f"stands behind a later one of its sender in queue {queue_id} of topic {topic}",
            (row.number for row in there if _is_late(row.number, senders, last)),
        )
    return problems


def _is_late(number: int, senders: int, last: dict[int, int]) -> bool:
    sender = number % senders
    late = number <= last.get(sender, -1)
    last[sender] = max(number, last.get(sender, -1))
    return late


def _name(problems: list[str], what: str, numbers: Iterable[int]) -> None:
    """Add one sentence that names the first few events and counts the rest."""
    found = list(numbers)
    if found:
        some = ", ".join(f"{number}" for number in found[:PROBLEMS_NAMED_MAX])
        more = f" and {len(found) - PROBLEMS_NAMED_MAX:,} more" if len(found) > PROBLEMS_NAMED_MAX else ""
        problems.append(f"{len(found):,} x an event {what}: {some}{more}")


def check_counts(sent: Mapping[tuple[str, str], int], found: Mapping[tuple[str, str], int], who: str) -> list[str]:
    """Compare messages for each (topic, tag) as sent with what somebody else counted in the store."""
    return [
        f"{who} counts {found.get(key, 0):,} messages of {key[0]} with tag {key[1]}, sent were {sent.get(key, 0):,}"
        for key in sorted(set(sent) | set(found))
        if sent.get(key, 0) != found.get(key, 0)
    ]
