"""Group commit on the event loop: what is batched, when answers leave, what happens when the disk is slow or fails."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from stratamq.config import FlushMode
from stratamq.logstore.group_commit import GroupCommitter
from stratamq.logstore.types import PutStatus, QueueKey
from stratamq.testing.filesystem import FaultyFileSystem
from stratamq.units import MiB
from tests.unit.logstore.stores import bodies, message, open_store, small_config


class GatedFileSystem(FaultyFileSystem):
    """Syncs of the commit log wait until the test opens the gate."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.log_syncs = 0

    def sync(self, fd):
        if "commitlog" in self._paths[fd] and threading.current_thread() is not threading.main_thread():
            self.log_syncs += 1
            self.waiting.release()
            assert self.gate.wait(100)
        super().sync(fd)


class Committing:
    """A store with its committer, and what the callbacks said."""

    def __init__(self, tmp_path, mode, **config):
        defaults = {"commit_log_file_bytes": 8 * MiB, "flush_interval_ms": 600_000}
        settings = {**defaults, "flush_consume_queue_interval_ms": 600_000, **config}
        self.fs = GatedFileSystem()
        self.store = open_store(tmp_path, small_config(flush_mode=mode, **settings), fs=self.fs)
        self.arrived, self.congestion = [], []
        self.committer = GroupCommitter(
            self.store,
            on_arrivals=self.arrived.extend,
            on_congested=lambda: self.congestion.append("congested"),
            on_relieved=lambda: self.congestion.append("relieved"),
        )

    async def __aenter__(self):
        self.committer.start()
        return self

    async def __aexit__(self, *_):
        self.fs.gate.set()
        await self.committer.close()
        self.store.close()

    def put(self, *messages):
        """Put and return where the outcome will be."""
        outcome = asyncio.get_running_loop().create_future()
        self.committer.put(messages, outcome.set_result)
        return outcome

    async def wait_for_sync_to_begin(self):
        assert await asyncio.to_thread(self.fs.waiting.acquire, timeout=100)


async def until(condition):
    """Let the loop turn until background work has made ``condition`` true."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - what happens in a thread sets no event here
            await asyncio.sleep(0)


@pytest.fixture(params=[FlushMode.SYNC, FlushMode.ASYNC])
def mode(request):
    return request.param


async def test_a_put_is_answered_with_its_place(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        result = await c.put(message(b"a"), message(b"b"))
        assert (result.status, [entry.queue_offset for entry in result.appended]) == (PutStatus.PUT_OK, [0, 1])
        result = await c.committer.append(message(b"c"))
        assert result.appended[0].queue_offset == 2
        assert bodies(c.store) == [b"a", b"b", b"c"]
        assert [arrival.max_offset for arrival in c.arrived] == [2, 3]
        assert c.arrived[0].queue == QueueKey("T", 0)


async def test_all_puts_of_one_turn_are_one_write(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        await c.put(message())
        writes = sum("commitlog" in path for operation, path in c.fs.calls if operation == "write")
        outcomes = [c.put(message(str(number), queue_id=number % 3)) for number in range(50)]
        results = await asyncio.gather(*outcomes)
        assert {result.status for result in results} == {PutStatus.PUT_OK}
        assert sum("commitlog" in path for operation, path in c.fs.calls if operation == "write") == writes + 1


async def test_async_answers_do_not_wait_for_the_disk(tmp_path):
    async with Committing(tmp_path, FlushMode.ASYNC) as c:
        c.fs.gate.clear()
        assert (await c.put(message())).status is PutStatus.PUT_OK
        assert c.store.max_offset("T", 0) == 1
        assert c.committer.pending_bytes > 0


async def test_sync_answers_wait_and_later_puts_share_the_next_sync(tmp_path):
    async with Committing(tmp_path, FlushMode.SYNC) as c:
        await c.put(message(b"first"))
        syncs = c.fs.log_syncs
        await c.wait_for_sync_to_begin()
        c.fs.gate.clear()
        held = c.put(message(b"held"))
        await c.wait_for_sync_to_begin()
        later = []
        for number in range(10):
            later.append(c.put(message(str(number))))
            await asyncio.sleep(0)
        assert not held.done()
        assert not any(outcome.done() for outcome in later)
        assert c.store.max_offset("T", 0) == 1  # consumers see nothing that a crash could take away
        c.fs.gate.set()
        await asyncio.gather(held, *later)
        assert c.fs.log_syncs == syncs + 2
        assert c.store.max_offset("T", 0) == 12


async def test_who_does_not_wait_for_the_sync_is_answered_at_once(tmp_path):
    async with Committing(tmp_path, FlushMode.SYNC) as c:
        c.fs.gate.clear()
        waits = c.put(message(b"waits"))
        does_not = c.put(message(b"does not", wait_for_sync=False))
        assert (await does_not).status is PutStatus.PUT_OK
        assert not waits.done()
        c.fs.gate.set()
        assert (await waits).status is PutStatus.PUT_OK
        assert bodies(c.store) == [b"waits", b"does not"]


async def test_a_slow_disk_answers_flush_disk_timeout_and_the_message_stays(tmp_path):
    async with Committing(tmp_path, FlushMode.SYNC, sync_flush_timeout_ms=1) as c:
        c.fs.gate.clear()
        results = await asyncio.gather(c.put(message(b"slow")), c.put(message(b"too")))
        assert [result.status for result in results] == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
        assert results[0].appended[0].queue_offset == 0
        result = await c.put(message(b"another"))
        assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
        c.fs.gate.set()
    store = open_store(tmp_path, small_config(commit_log_file_bytes=8 * MiB))
    assert bodies(store) == [b"slow", b"too", b"another"]
    store.close()


async def test_a_failed_sync_is_told_to_everybody_who_waits(tmp_path):
    async with Committing(tmp_path, FlushMode.SYNC) as c:
        c.fs.gate.clear()
        first = c.put(message(b"first"))
        await c.wait_for_sync_to_begin()
        second = c.put(message(b"second"))
        await asyncio.sleep(0)
        c.fs.fail("sync", path_part="commitlog")
        c.fs.gate.set()
        results = await asyncio.gather(first, second, c.put(message(b"third")))
        assert {result.status for result in results} == {PutStatus.SERVICE_NOT_AVAILABLE}
        assert not any(result.appended for result in results)
        assert (await c.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert c.store.max_offset("T", 0) == 0


async def test_a_full_disk_refuses_the_turn_and_the_next_is_taken(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        c.fs.fail("write", path_part="commitlog", error=errno.ENOSPC)
        results = await asyncio.gather(*[c.put(message(str(number))) for number in range(3)])
        assert {result.status for result in results} == {PutStatus.SERVICE_NOT_AVAILABLE}
        assert "no space left" in results[0].remark
        assert (await c.put(message(b"kept"))).appended[0].queue_offset == 0
        assert bodies(c.store) == [b"kept"]


async def test_refused_messages_are_answered_at_once(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        statuses = []
        for bad in (message(topic="a/b"), message(PAD="x" * 40_000), message(b"x" * (5 * MiB))):
            c.committer.put((bad,), lambda result: statuses.append(result.status))
        assert statuses == [PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.MESSAGE_ILLEGAL]
        statuses.clear()
        for _ in range(30):
            c.committer.put((message(b"x" * (4 * MiB)),), lambda result: statuses.append(result.status))
        assert statuses[0] is PutStatus.OS_PAGE_CACHE_BUSY  # more than pending_bytes_max in one turn
        assert (await c.put(message())).status is PutStatus.PUT_OK


async def test_congestion_is_told_once_each_way(tmp_path):
    async with Committing(tmp_path, FlushMode.SYNC, pending_bytes_max=MiB) as c:
        c.fs.gate.clear()
        outcomes = []
        for _ in range(4):
            outcomes.append(c.put(message(b"x" * 400_000)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert c.congestion == ["congested"]
        assert c.committer.is_congested
        c.fs.gate.set()
        await asyncio.gather(*outcomes)
        assert c.congestion == ["congested", "relieved"]
        assert not c.committer.is_congested


async def test_a_callback_that_raises_harms_nobody_else(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))

        def broken(_):
            raise ValueError("mine")

        c.committer._on_arrivals = broken
        c.committer.put((message(),), broken)
        assert (await c.put(message())).status is PutStatus.PUT_OK
        await asyncio.sleep(0)
        assert reported == ["a put's callback failed", "the arrivals callback failed"]


async def test_background_flush_and_checkpoint(tmp_path):
    intervals = {"flush_interval_ms": 1, "flush_consume_queue_interval_ms": 1}
    async with Committing(tmp_path, FlushMode.ASYNC, **intervals) as c:
        checkpoints = [path for operation, path in c.fs.calls if operation == "sync" and path.endswith("checkpoint")]
        await c.put(message())
        await until(lambda: c.store.flushed_physical_offset == c.store.max_physical_offset)
        await until(lambda: c.fs.calls.count(("sync", checkpoints[0])) > len(checkpoints))


async def test_a_failed_background_sync_stops_writes(tmp_path):
    async with Committing(tmp_path, FlushMode.ASYNC, flush_interval_ms=1) as c:
        await c.put(message())
        c.fs.fail("sync", path_part="commitlog", times=-1)
        await c.put(message())
        await until(lambda: c.store.failure is not None)
        assert (await c.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE


async def test_waiting_units_are_written_by_the_checkpoint_round(tmp_path, mode):
    async with Committing(tmp_path, mode) as c:
        c.fs.fail("write", path_part="consumequeue", error=errno.ENOSPC, times=-1)
        assert (await c.put(message(b"a"))).status is PutStatus.PUT_OK
        assert (await c.put(message(b"b"))).status is PutStatus.SERVICE_NOT_AVAILABLE
        await c.committer.checkpoint()
        assert not c.store.status().is_writable
        c.fs.heal()
        await c.committer.checkpoint()
        assert (await c.put(message(b"c"))).status is PutStatus.PUT_OK
        assert bodies(c.store) == [b"a", b"c"]


async def test_closing_answers_what_waits_and_refuses_what_comes(tmp_path, mode):
    c = Committing(tmp_path, mode)
    early = asyncio.get_running_loop().create_future()
    c.committer.put((message(),), early.set_result)
    assert early.result().status is PutStatus.SERVICE_NOT_AVAILABLE  # not started
    async with c:
        waits = c.put(message(b"waits"))
        await c.committer.close()
        assert (await waits).status is PutStatus.PUT_OK
        assert (await c.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE
        await c.committer.close()
        assert bodies(c.store) == [b"waits"]
