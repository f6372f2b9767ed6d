"""Retention inside a running broker: the disk is watched, refused writes have the right status, operators are heard."""

from __future__ import annotations

import asyncio

from stratamq.broker.offsets import OffsetTable
from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig
from stratamq.logstore.disk_usage import DiskUsage
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.server.lifecycle import Server
from stratamq.server.retention import retention_of, retention_tasks, run_round
from stratamq.server.settings import Settings
from stratamq.testing.clock import ManualClock
from tests.unit.logstore.stores import message, open_store, put
from tests.unit.server.harness import SMALL
from tests.unit.server.test_lifecycle import FREE, Connection, send_ext


class Probe:
    """A disk as full as a test says."""

    percent = 50

    def usage(self, path: str) -> DiskUsage:
        """A disk of 100 bytes."""
        return DiskUsage(path, 100, self.percent, 100 - self.percent, 1)


async def test_sends_are_refused_above_the_warning_mark_and_taken_again(tmp_path):
    server = Server(Settings(data_dir=tmp_path, server=FREE, store=SMALL))
    await server.start()
    try:
        probe = Probe()
        assert server.retention is not None
        server.retention._probe = probe
        client = await Connection.open(server.addresses.broker)
        assert (await client.ask(310, send_ext(), b"one")).code == ResponseCode.SUCCESS
        probe.percent = 91
        server.retention.watch()
        refused = await client.ask(310, send_ext(), b"two")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "above 90 %" in (refused.remark or "")
        assert server.broker.store.max_offset("T", 0) == 1
        probe.percent = 85
        server.retention.watch()
        assert (await client.ask(310, send_ext(), b"three")).code == ResponseCode.SUCCESS
        client.close()
    finally:
        await server.stop()


async def test_an_operator_asks_for_expired_files_to_go(tmp_path):
    server = Server(Settings(data_dir=tmp_path, server=FREE, store=SMALL, broker=BrokerConfig()))
    await server.start()
    try:
        client = await Connection.open(server.addresses.broker)
        answer = await client.ask(int(RequestCode.DELETE_EXPIRED_COMMITLOG))
        assert answer.code == ResponseCode.SUCCESS
        assert server.retention is not None
        assert server.retention.state.manual_rounds == 20
        client.close()
    finally:
        await server.stop()


async def test_a_round_lets_others_run_while_a_file_is_deleted(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path / "s", clock=clock)
    try:
        for _ in range(20):
            put(store, message(b"x" * 900))
        server = Server(Settings(data_dir=tmp_path, server=ServerConfig()))
        assert server.settings.retention == RetentionConfig()
        service = retention_of(
            store, RetentionConfig(delete_log_pause_ms=0), OffsetTable(wall_ms=clock.wall_ms), clock, probe=Probe()
        )
        assert service is not None
        clock.advance(73 * 3_600_000)
        service.request()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await run_round(service)
        task.cancel()
        assert service.deleted_files > 2
        assert turns > service.deleted_files
    finally:
        store.close()


async def test_the_timers_watch_and_clean_by_themselves(tmp_path):
    clock = ManualClock()
    store = open_store(tmp_path / "s", clock=clock)
    for _ in range(20):
        put(store, message(b"x" * 900))
    clock.advance(73 * 3_600_000)
    probe = Probe()
    policy = RetentionConfig(clean_interval_ms=100, delete_log_pause_ms=0)
    service = retention_of(store, policy, OffsetTable(wall_ms=clock.wall_ms), clock, probe=probe)
    assert service is not None
    service.request()
    probe.percent = 95
    tasks = [asyncio.create_task(work) for work in retention_tasks(service, first_round_s=0)]
    assert not store.status().is_writable, "the first look comes at once"
    probe.percent = 20
    async with asyncio.timeout(100):
        while not service.deleted_files or not store.status().is_writable:  # noqa: ASYNC110 - timers are tested
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    store.close()


async def test_a_store_without_files_has_no_retention():
    assert retention_of(object(), RetentionConfig(), OffsetTable(wall_ms=lambda: 0), ManualClock()) is None
