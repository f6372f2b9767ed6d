"""A master and its slaves over real sockets: what is copied, what survives, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratamq.config import BrokerConfig, BrokerRole, HaConfig, ServerConfig
from stratamq.errors import ConfigError, LogsDiffer
from stratamq.formats.timer import decode_checkpoint_file
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.server import lifecycle
from stratamq.server.lifecycle import Server, serve
from stratamq.server.metrics import BrokerCollector
from stratamq.server.requests.admin import runtime_table
from stratamq.server.settings import Settings
from tests.unit.server.harness import records
from tests.unit.server.replica_pair import (
    ASYNC,
    FILE_BYTES,
    FREE,
    SYNC,
    Cutting,
    Pair,
    end_of,
    followed,
    log_of,
    pair_in,
    send,
    until,
)
from tests.unit.server.test_lifecycle import Connection, pull_ext


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair_in(tmp_path) as made:
        yield made


@pytest.fixture
async def cutting() -> AsyncIterator[Cutting]:
    made = Cutting()
    address = await made.start()
    made.address = address  # type: ignore[attr-defined]
    yield made
    await made.close()


def target_of(master: Server) -> str:
    return f"127.0.0.1:{master.replication.port}"


@pytest.mark.parametrize("store", [ASYNC, SYNC], ids=["async", "sync"])
async def test_a_slave_has_the_same_bytes(pair, store):
    master = await pair.master(store=store)
    await send(master, 20)
    slave = await pair.slave(store=store)
    await followed(master, slave)
    await send(master, 150)
    await followed(master, slave)
    assert end_of(master) > 2 * FILE_BYTES
    await pair.stop(slave)
    await pair.stop(master)
    assert log_of(pair.folder / "slave") == log_of(pair.folder / "master") != b""


async def test_consumers_read_from_a_slave_where_it_is_allowed(pair):
    master = await pair.master()
    slave = await pair.slave(slave_reads=True)
    await send(master, 30)
    await followed(master, slave)
    await until("the topic is known", lambda: slave.broker.topics.find("T"))
    await pair.stop(master)
    client = await Connection.open(slave.addresses.broker)
    answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext())
    assert [record.body[500:] for record in records(answer.body)] == [b"%d" % number for number in range(30)]
    client.close()
    await pair.stop(slave)
    refusing = await pair.slave()
    client = await Connection.open(refusing.addresses.broker)
    answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext())
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "slaveReadEnable" in answer.remark
    client.close()


async def test_a_slave_refuses_messages(pair):
    master = await pair.master()
    slave = await pair.slave()
    (answer,) = await send(slave, 1)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in answer.remark
    assert end_of(master) == end_of(slave) == 0


@pytest.mark.parametrize("store", [ASYNC, SYNC], ids=["async", "sync"])
async def test_a_connection_may_end_at_any_byte(pair, cutting, store):
    master = await pair.master(store=store, from_first_file=True, batch_bytes=1024)
    cutting.target = target_of(master)
    random = Random(7)
    cutting.budgets = [random.randrange(1, 9000) for _ in range(12)]
    await send(master, 60)
    slave = await pair.slave(store=store, master_address=cutting.address)
    for _ in range(4):
        await send(master, 15)
        await followed(master, slave)
    assert cutting.connections > 12
    await pair.stop(slave)
    await pair.stop(master)
    assert log_of(pair.folder / "slave") == log_of(pair.folder / "master")


async def test_both_may_restart_and_the_slave_finds_the_master_again(pair):
    master, slave = await pair.master(), await pair.slave()
    for _ in range(2):
        await send(master, 40)
        await followed(master, slave)
        await pair.stop(slave)
        await send(master, 40)
        slave = await pair.slave()
        await followed(master, slave)
        await pair.stop(master)
        master = await pair.master()  # on other ports
    await send(master, 1)
    await followed(master, slave)
    await pair.stop(slave)
    await pair.stop(master)
    assert log_of(pair.folder / "slave") == log_of(pair.folder / "master")


async def test_a_slave_with_other_bytes_stops_and_changes_nothing(pair):
    for name in ("master", "slave"):
        alone = await pair.master(name)
        await send(alone, 20, body=name.encode())
        await pair.stop(alone)
    before = log_of(pair.folder / "slave")
    await pair.master()
    slave = await pair.slave()
    await asyncio.wait_for(slave.ended.wait(), 60)
    assert isinstance(slave.failure, LogsDiffer)
    assert "are not the master's" in str(slave.failure)
    await pair.stop(slave)
    assert log_of(pair.folder / "slave") == before


async def test_the_process_of_a_slave_with_other_bytes_ends(pair, monkeypatch):
    monkeypatch.setattr(lifecycle, "spare_collections", lambda: None)  # it is for a process that only serves
    for name in ("master", "slave"):
        alone = await pair.master(name)
        await send(alone, 2, body=name.encode())
        await pair.stop(alone)
    await pair.master()
    ha = HaConfig(role=BrokerRole.SLAVE, broker_id=1, retry_ms=20)
    server = replace(FREE, namesrv_addresses=pair.names)
    settings = Settings(data_dir=pair.folder / "slave", server=server, store=ASYNC, ha=ha)
    with pytest.raises(LogsDiffer) as caught:
        await asyncio.wait_for(serve(settings, ready_file=pair.folder / "ready"), 60)
    assert caught.value.exit_code == 4
    assert not (pair.folder / "ready").exists()


async def test_a_slave_with_more_than_its_master_stops(pair):
    master, slave = await pair.master(), await pair.slave()
    await send(master, 20)
    await followed(master, slave)
    await pair.stop(slave)
    await pair.stop(master)
    alone = await pair.master("slave")
    await send(alone, 1)
    await pair.stop(alone)
    await pair.master()
    slave = await pair.slave()
    await asyncio.wait_for(slave.ended.wait(), 60)
    assert "nothing more than what it has given" in str(slave.failure)


@pytest.mark.parametrize(("whole", "first"), [(False, None), (True, 0)])
async def test_what_an_empty_slave_gets(pair, whole, first):
    master = await pair.master(from_first_file=whole)
    await send(master, 150)
    slave = await pair.slave()
    await followed(master, slave)
    last = end_of(master) - end_of(master) % FILE_BYTES
    begin = last if first is None else first
    assert slave.broker.store.status().min_physical_offset == begin
    await pair.stop(slave)
    slave = await pair.slave()  # its log begins in the middle: recovery and following go on
    await send(master, 3)
    await followed(master, slave)
    await pair.stop(slave)
    await pair.stop(master)
    assert log_of(pair.folder / "slave") == log_of(pair.folder / "master", begin)


async def test_garbage_on_the_port_for_slaves_ends_that_connection_only(pair):
    master, slave = await pair.master(), await pair.slave()
    host, port = target_of(master).split(":")
    for garbage in (b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", (2**40).to_bytes(8, "big")):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        async with asyncio.timeout(60):
            await reader.read()
        assert reader.at_eof()
        writer.close()
    await send(master, 3)
    await followed(master, slave)


async def test_serve_is_no_slave(tmp_path):
    server = Server(
        Settings(
            data_dir=tmp_path, server=ServerConfig(namesrv_port=0), ha=HaConfig(role=BrokerRole.SLAVE, broker_id=1)
        )
    )
    with pytest.raises(ConfigError, match="stratamq broker"):
        await server.start()


async def test_tables_are_copied(pair):
    master, slave = await pair.master(), await pair.slave()
    await send(master, 3, topic="Orders")
    client = await Connection.open(master.addresses.broker)
    fields = {"consumerGroup": "g", "topic": "Orders", "queueId": 0, "commitOffset": 2}
    group = json.dumps({"groupName": "g", "retryMaxTimes": 7}).encode()
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    broker = slave.broker
    await until("the offset is here", lambda: broker.offsets.find("g", "Orders", 0) == 2)
    await until("the group is here", lambda: broker.groups.find("g") and broker.groups.find("g").retry_max_times == 7)
    await until("the topic is here", lambda: broker.topics.find("Orders"))
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})).code == 0
    await until("the topic is gone", lambda: broker.topics.find("Orders") is None)
    assert broker.topics.as_json() == master.broker.topics.as_json()
    client.close()


async def test_a_slave_that_becomes_a_master_delivers_what_was_not_delivered(pair):
    timer = BrokerConfig(timer_wheel=True, timer_precision_ms=100)
    master, slave = await pair.master(broker=timer), await pair.slave(broker=timer)
    now = pair.clock.wall_ms()
    for due in (now + 60_000, now + 3_600_000):
        await send(master, 1, i=f"TIMER_DELIVER_MS\x01{due}\x02")
    await send(master, 1, topic="D", i="DELAY\x011\x02")
    pair.clock.ahead_ms += 61_000
    store = master.broker.store
    await until("one is delivered", lambda: store.max_offset("T", 0) and store.max_offset("D", 0))
    await followed(master, slave)
    delays = slave.broker.delays
    await until("the delay's progress is here", lambda: delays.as_json()["offsetTable"][1] == 1)
    checkpoint = pair.folder / "slave" / "config" / "timercheck"

    def is_passed() -> bool:
        found = decode_checkpoint_file(checkpoint.read_bytes()) if checkpoint.exists() else None
        return found is not None and found.read_ms > now + 60_000 and found.queue_offset == 2

    await until("the timer's progress is here", is_passed)
    await pair.stop(slave)
    await pair.stop(master)
    master = await pair.master("slave", broker=timer)
    await until("the timer has read its topic", lambda: master.broker.timers.metrics.count("T") == 1)
    await send(master, 1, topic="D", i="DELAY\x011\x02")
    pair.clock.ahead_ms += 2_000
    await until("delays go on", lambda: master.broker.store.max_offset("D", 0) == 2)
    assert master.broker.store.max_offset("T", 0) == 1


async def test_status_of_both(pair):
    master, slave = await pair.master(), await pair.slave()
    await send(master, 3)
    await followed(master, slave)
    found = []
    for server in (master, slave):
        client = await Connection.open(server.addresses.broker)
        found.append(json.loads((await client.ask(RequestCode.GET_BROKER_HA_STATUS)).body))
        client.close()
    for server, names in (
        (master, {"stratamq_slaves 1.0", "stratamq_slaves_in_sync 1.0"}),
        (slave, {"stratamq_follows_master 1.0"}),
    ):
        families = BrokerCollector(server.broker, ()).collect()
        values = {f"{sample.name} {sample.value}" for family in families for sample in family.samples}
        assert names <= values
        assert runtime_table(server.broker)["brokerRole"] == server.settings.ha.role.value
    (row,) = found[0]["haConnectionInfo"]
    assert (found[0]["master"], found[0]["inSyncSlaveNums"], row["diff"], row["inSync"]) == (True, 1, 0, True)
    assert found[1]["master"] is False
    assert found[1]["haClientRuntimeInfo"]["maxOffset"] == end_of(master)
    assert found[1]["haClientRuntimeInfo"]["masterAddr"] == target_of(master)


# --- SYNC_MASTER ---


async def test_a_sync_master_answers_when_a_slave_has_it(pair):
    master = await pair.master(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=100_000)
    answers = await send(master, 1)
    assert [answer.code for answer in answers] == [ResponseCode.SLAVE_NOT_AVAILABLE]
    assert answers[0].ext["msgId"]
    slave = await pair.slave()
    await followed(master, slave)
    answers = await send(master, 30)
    assert {answer.code for answer in answers} == {0}
    assert end_of(slave) == end_of(master)
    await pair.stop(slave)
    await until("the slave is gone", lambda: not master.replication.master.links)
    answers = await send(master, 1)
    assert [answer.code for answer in answers] == [ResponseCode.SLAVE_NOT_AVAILABLE]
    assert FREE.namesrv_port == -1


async def test_a_slave_that_says_nothing_is_waited_for_so_long(pair):
    master = await pair.master(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=50)
    host, port = target_of(master).split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(bytes(8))
    await until("it is connected", lambda: master.replication.master.in_sync_copies() == 2)
    (answer,) = await send(master, 1)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    properties = "WAIT\x01false\x02"
    (answer,) = await send(master, 1, i=properties)
    assert answer.code == 0
    writer.close()


async def test_with_too_few_copies_nothing_is_stored(pair):
    master = await pair.master(role=BrokerRole.SYNC_MASTER, min_in_sync_replicas=2)
    (answer,) = await send(master, 1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "minInSyncReplicas asks for 2" in answer.remark
    assert end_of(master) == 0
