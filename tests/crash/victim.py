"""The process that gets killed: appends under load with SYNC_FLUSH and prints every acknowledged message.

``python -m tests.crash.victim DIRECTORY FIRST_NUMBER`` opens the store, prints ``ready``, and then one line per
acknowledged message, ``topic queue_id queue_offset physical_offset number crc``, flushed in bursts, until it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import zlib

from stratamq.clock import SystemClock
from stratamq.config import FlushMode
from stratamq.formats.message import encode_host
from stratamq.formats.properties import encode_properties
from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message, PutStatus
from tests.unit.logstore.stores import small_config

HOST = encode_host("127.0.0.1", 1)
CONFIG = small_config(
    flush_mode=FlushMode.SYNC,
    commit_log_file_bytes=1 << 20,
    consume_queue_file_bytes=2000,
    index_slots=500,
    index_entries=2000,
    flush_consume_queue_interval_ms=20,
)


def body_of(number: int) -> bytes:
    """The body of a message follows from its number."""
    return random.Random(number).randbytes(number * 37 % 3000)


async def produce(committer: GroupCommitter, numbers: list[int], producer: int) -> None:
    """Send one message after the other and print what is acknowledged."""
    while True:
        numbers[0] += 1
        number = numbers[0]
        body = body_of(number)
        message = Message(
            topic=f"Topic{producer % 3}",
            queue_id=producer % 4,
            body=body,
            properties=encode_properties({"KEYS": f"key{number}", "TAGS": f"tag{number % 5}"}),
            born_timestamp=number,
            born_host=HOST,
        )
        result = await committer.append(message)
        if result.status is PutStatus.PUT_OK:
            place = result.appended[0]
            line = (
                message.topic,
                message.queue_id,
                place.queue_offset,
                place.physical_offset,
                number,
                zlib.crc32(body),
            )
            print(*line, flush=True)  # noqa: T201


async def main(directory: str, first: int) -> None:
    """Run until killed."""
    store = LogStore.open(directory, CONFIG, clock=SystemClock(), store_host=HOST)
    committer = GroupCommitter(store)
    committer.start()
    print("ready", flush=True)  # noqa: T201
    numbers = [first]
    async with asyncio.TaskGroup() as group:
        for producer in range(16):
            group.create_task(produce(committer, numbers, producer))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
