"""Appending inside the process: StrataMQ's log store against SQLite (WAL), LMDB and RocksDB through their bindings.

Everybody stores the same messages, 1,000 to a transaction or batch, as each one's manual advises for bulk writing, and
nobody keeps a secondary index (messages carry no keys). "async" means that a crash of the machine may lose the last
moments: SQLite ``synchronous=NORMAL``, LMDB ``sync=False`` with a writable map, RocksDB's write-ahead log unsynced,
StrataMQ with ASYNC_FLUSH and a sync every 500 ms.

"group commit" is 64 producers on one event loop that each wait until their message is on the disk. The peers get the
same producers and the same shell as we have: what came in one turn of the loop is one synced transaction, in a thread.

``python -m bench.embedded [ROUNDS]`` runs it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from bench.rows import Missing, Row, pairs
from stratamq.clock import SystemClock
from stratamq.config import FlushMode, StoreConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message, PutStatus

HOST = encode_host("127.0.0.1", 10911)
BATCH = 1000
PRODUCERS = 64
BYTES_ASYNC = 64 << 20
MESSAGES_SYNC = 16_000


class Peer(Protocol):
    """Another embedded store: `write` is one transaction, durable when it was opened with ``synced``."""

    def write(self, first: int, bodies: Sequence[bytes]) -> None:
        """Store bodies under numbers from ``first`` on."""

    def close(self) -> None:
        """Close it."""


class Sqlite:
    """The standard library's SQLite, WAL mode, one prepared statement."""

    name = f"SQLite {sqlite3.sqlite_version}"

    def __init__(self, directory: str, synced: bool) -> None:
        self._db = sqlite3.connect(
            os.path.join(directory, "peer.db"), isolation_level=None, check_same_thread=False, cached_statements=10
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        self._db.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def write(self, first: int, bodies: Sequence[bytes]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO messages VALUES (?, ?)", enumerate(bodies, first))
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class Lmdb:
    """LMDB through py-lmdb: ascending keys, appended by one C call a transaction."""

    def __init__(self, directory: str, synced: bool) -> None:
        import lmdb

        self.name = "LMDB " + ".".join(map(str, lmdb.version()))
        options: dict[str, Any] = {} if synced else {"sync": False, "metasync": False, "writemap": True}
        self._env = lmdb.open(directory, map_size=4 << 30, **options)

    def write(self, first: int, bodies: Sequence[bytes]) -> None:
        items = [(number.to_bytes(8, "big"), body) for number, body in enumerate(bodies, first)]
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(items, append=True)

    def close(self) -> None:
        self._env.close()


class RocksDb:
    """RocksDB through rocksdict: a write batch a transaction."""

    def __init__(self, directory: str, synced: bool) -> None:
        import rocksdict

        self.name = "RocksDB (rocksdict)"
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self._batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(os.path.join(directory, "rocks"), options)
        self._options = rocksdict.WriteOptions()
        self._options.sync = synced

    def write(self, first: int, bodies: Sequence[bytes]) -> None:
        batch = self._batch(raw_mode=True)
        for number, body in enumerate(bodies, first):
            batch.put(number.to_bytes(8, "big"), body)
        self._db.write(batch, self._options)

    def close(self) -> None:
        self._db.close()


PEERS: dict[str, Callable[[str, bool], Peer]] = {"SQLite": Sqlite, "LMDB": Lmdb, "RocksDB": RocksDb}


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A directory that goes afterwards, on a real disk if ``BENCH_DIRECTORY`` names one."""
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("BENCH_DIRECTORY"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def message(body: bytes, number: int) -> Message:
    """One message as an embedding program makes it."""
    return Message(
        topic="Bench", queue_id=number & 3, body=body, properties="", born_timestamp=1_700_000_000_000, born_host=HOST
    )


def open_store(directory: str, mode: FlushMode) -> LogStore:
    """A store as it is opened by default."""
    return LogStore.open(directory, StoreConfig(flush_mode=mode), clock=SystemClock(), store_host=HOST)


def ours_async(size: int) -> float:
    """Messages a second: made, appended 1,000 to a commit, synced every 500 ms in a thread."""
    body = os.urandom(size)
    count = BYTES_ASYNC // (size + 100)
    with scratch() as directory, ThreadPoolExecutor(1) as thread:
        store = open_store(directory, FlushMode.ASYNC)
        started = synced_at = time.perf_counter()
        syncing = None
        for first in range(0, count, BATCH):
            store.append_many(message(b"", first // BATCH), [body] * BATCH)
            token = store.commit()
            if syncing is not None and syncing[0].done():
                store.synced(syncing[1])
                syncing = None
            if token is not None and syncing is None and time.perf_counter() - synced_at > 0.5:
                synced_at = time.perf_counter()
                syncing = (thread.submit(store.sync, token), token)
        seconds = time.perf_counter() - started
        if syncing is not None:
            syncing[0].result()
        store.close()
    return -(-count // BATCH) * BATCH / seconds


def theirs_async(make: Callable[[str, bool], Peer], size: int) -> float:
    """Messages a second of a peer."""
    body = os.urandom(size)
    count = BYTES_ASYNC // (size + 100)
    with scratch() as directory:
        peer = make(directory, False)
        started = time.perf_counter()
        for first in range(0, count, BATCH):
            peer.write(first, [body] * BATCH)
        seconds = time.perf_counter() - started
        peer.close()
    return -(-count // BATCH) * BATCH / seconds


def ours_synced(size: int) -> float:
    """Messages a second of 64 producers that each wait for the disk."""

    async def run(directory: str) -> float:
        store = open_store(directory, FlushMode.SYNC)
        committer = GroupCommitter(store)
        committer.start()
        body = os.urandom(size)

        async def produce(producer: int) -> None:
            for number in range(MESSAGES_SYNC // PRODUCERS):
                result = await committer.append(message(body, number + producer))
                assert result.status is PutStatus.PUT_OK

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for producer in range(PRODUCERS):
                group.create_task(produce(producer))
        seconds = time.perf_counter() - started
        await committer.close()
        store.close()
        return MESSAGES_SYNC / seconds

    with scratch() as directory:
        return asyncio.run(run(directory))


class _PeerCommitter:
    """Group commit round a peer, as `GroupCommitter` does it: one transaction in flight, in a thread."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._busy = False
        self._number = 0

    def append(self, body: bytes) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._waiting and not self._busy:
            loop.call_soon(self._begin)
        self._waiting.append((body, done))
        return done

    def _begin(self) -> None:
        group, self._waiting = self._waiting, []
        self._busy = True
        first = self._number
        self._number += len(group)
        writing = asyncio.get_running_loop().run_in_executor(
            self._thread, self._peer.write, first, [body for body, _ in group]
        )
        writing.add_done_callback(lambda ended: self._end(ended, group))

    def _end(self, ended: asyncio.Future[None], group: list[tuple[bytes, asyncio.Future[None]]]) -> None:
        ended.result()
        self._busy = False
        if self._waiting:
            self._begin()
        for _, done in group:
            done.set_result(None)

    def close(self) -> None:
        self._thread.shutdown()


def theirs_synced(make: Callable[[str, bool], Peer], size: int) -> float:
    """Messages a second of a peer with 64 producers that each wait for the disk."""

    async def run(peer: Peer) -> float:
        committer = _PeerCommitter(peer)
        body = os.urandom(size)

        async def produce() -> None:
            for _ in range(MESSAGES_SYNC // PRODUCERS):
                await committer.append(body)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(PRODUCERS):
                group.create_task(produce())
        seconds = time.perf_counter() - started
        committer.close()
        return MESSAGES_SYNC / seconds

    with scratch() as directory:
        peer = make(directory, True)
        try:
            return asyncio.run(run(peer))
        finally:
            peer.close()


def run(rounds: int) -> list[Row | Missing]:
    """All rows: two sizes, async and group commit, each against each peer."""
    rows: list[Row | Missing] = []
    jobs: list[tuple[str, Callable[[int], float], Callable[[Callable[[str, bool], Peer], int], float], float]] = [
        ("embedded append, async", ours_async, theirs_async, 3.0),
        ("embedded append, group commit of 64", ours_synced, theirs_synced, 2.0),
    ]
    for text, ours, theirs, target in jobs:
        for size in (1024, 128):
            job = f"{text}, {size} B"
            for name, make in PEERS.items():
                try:
                    with scratch() as directory:
                        peer = make(directory, False)
                        full_name = str(getattr(peer, "name", name))
                        peer.close()
                except ImportError as error:
                    rows.append(Missing(job=f"{job} against {name}", reason=f"not installed: {error.name}"))
                    continue
                mine, others = pairs(partial(ours, size), partial(theirs, make, size), rounds=rounds)
                rows.append(Row(job=job, peer=full_name, unit="msg/s", ours=mine, theirs=others, target=target))
    return rows


def main() -> None:
    """Print every row as one line."""
    for row in run(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        if isinstance(row, Missing):
            print(f"{row.job}: not run, {row.reason}")
            continue
        ours, theirs = sorted(row.ours)[len(row.ours) // 2], sorted(row.theirs)[len(row.theirs) // 2]
        print(f"{row.job:48} {row.peer:20} {ours:10,.0f} {theirs:10,.0f} {row.unit}  {row.ratio:.2f}x")


if __name__ == "__main__":
    main()
