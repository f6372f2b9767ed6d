"""Kill -9 under load, again and again on one directory: confirmed messages stay, acknowledged ones stay away."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from stratamq.clock import SystemClock
from stratamq.config import QueueStoreConfig
from stratamq.queuestore.store import QueueStore

KILLS = 60
CONFIG = QueueStoreConfig(
    queue_index_segment_entry_count=256,
    queue_index_journal_bytes_max=256 * 1024,
    journal_file_bytes=64 * 1024,
    msg_store_file_size_limit=256 * 1024,
    recent_bytes_max=512 * 1024,
)
WORKER = """
import sys
from tests.crash.test_queuestore_kill import work
work(sys.argv[1], int(sys.argv[2]))
"""


def body(number: int) -> bytes:
    """What message ``number`` holds: small or large, and telling which one it is."""
    return b"%d." % number * (900 if number % 5 == 0 else 20)


def say(line: str) -> None:
    """Tell the test, in one write."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def work(directory: str, first: int) -> None:
    """Publish to three queues, acknowledge from one, and say on stdout what is confirmed, until killed."""
    store = QueueStore.open(directory, CONFIG, clock=SystemClock())
    queues = [store.declare_queue(name, durable=True) for name in "abc"]
    number = first
    start = number
    acked: list[int] = []
    say("open")
    while True:
        for _ in range(20):
            store.publish(body(number), persistent=True, queues=queues)
            number += 1
        for delivery in queues[0].fetch(18):
            queues[0].ack([delivery.seq])
            acked.append(int(delivery.content.split(b".")[0]))
        for queue in queues[1:]:
            queue.ack([delivery.seq for delivery in queue.fetch(15)])
        token = store.commit()
        assert token is not None
        store.sync(token)
        assert start + store.synced(token) == number
        say(" ".join(map(str, ["confirmed", number - 1, *acked])))
        acked.clear()
        store.tick()


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_kill_under_load(tmp_path):
    rng = random.Random(7)
    first = 0
    confirmed: set[int] = set()
    acked: set[int] = set()
    for kill in range(KILLS):
        if kill % 10 == 9:
            QueueStore.open(tmp_path, CONFIG, clock=SystemClock()).close()
        lines = run_and_kill(tmp_path, first, rng.randint(1, 40))
        for line in lines:
            words = line.split()
            if words[:1] == ["confirmed"]:
                confirmed |= set(range(first, int(words[1]) + 1))
                acked |= {int(word) for word in words[2:]}
        first += 1_000_000
        check(tmp_path, confirmed, acked)


def run_and_kill(directory: Path, first: int, after: int) -> list[str]:
    """Start the worker, kill it once it has said ``after`` lines; returns all whole lines."""
    root = Path(__file__).parents[2]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(directory), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}", "PATH": ""},
    )
    assert worker.stdout is not None
    with worker:
        lines = [worker.stdout.readline() for _ in range(after)]
        worker.kill()
        lines += worker.stdout.readlines()
    assert lines[0] == "open\n"
    return [line for line in lines if line.endswith("\n")]


def check(directory: Path, confirmed: set[int], acked: set[int]) -> None:
    """Open what the kill left: order, contents, reference counts, and nothing lost or back."""
    store = QueueStore.open(directory, CONFIG, clock=SystemClock())
    queue = store.queue("a")
    assert queue is not None
    there: dict[int, int] = {}
    for segment in queue.segments.values():
        for seq in queue.numbers_between(segment.first, segment.end):
            content = queue.read(seq)
            number = int(content.split(b".")[0])
            assert content == body(number)
            there[number] = seq
    numbers = list(there)
    assert numbers == sorted(numbers)
    assert not acked & set(numbers)
    # Up to one round of acknowledgements was written and not yet told.
    assert len(confirmed - acked - set(numbers)) <= 18
    named: dict[int, int] = {}
    for other in store.queues():
        for segment in other.segments.values():
            for _, message_id in other.stored_ids(segment):
                named[message_id] = named.get(message_id, 0) + 1
    persistent = store._persistent
    counts = {i: persistent.references(i) for file in persistent.files for i in file.table.ids}
    assert {i: count for i, count in counts.items() if count} == named
    acked |= confirmed - acked - set(numbers)
    confirmed -= acked
    store._journal.close()
    store._handles.close()
    store._lock.release()
