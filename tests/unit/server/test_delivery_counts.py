"""Delivery counts of quorum queues over a clean stop, a kill, damage, and a file that has grown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratamq.broker.amqp.delivery_counts import DeliveryCounts
from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.frames import method_frame
from stratamq.protocols.amqp.properties import decode_properties
from stratamq.server.delivery_counts_file import COUNTS_FILE, DeliveryCountsFile
from tests.unit.protocols.amqp import peers
from tests.unit.server.test_amqp_shell import Broker, SocketClient

QUORUM = methods.QueueDeclare("q", False, True, False, False, False, {"x-queue-type": "quorum", "x-delivery-limit": 3})


async def get(client: SocketClient) -> methods.BasicGetOk | methods.BasicGetEmpty:
    """Take the next message, leaving its content aside."""
    answer = await client.call(methods.BasicGet("q", False))
    if isinstance(answer, methods.BasicGetOk):
        await client.frame()
        await client.frame()
    return answer


async def give_back(client: SocketClient, times: int) -> None:
    """Take the message and return it, so many times."""
    for _ in range(times):
        answer = await get(client)
        assert isinstance(answer, methods.BasicGetOk)
        client.writer.write(method_frame(1, methods.BasicNack(answer.delivery_tag, False, True)))


async def count_of(client: SocketClient) -> int | None:
    """The count that a consumer is told with the next message."""
    await client.call(methods.BasicConsume("q", "c", False, False, False, False, {}))
    assert isinstance(await client.method(), methods.BasicDeliver)
    kind, payload = await client.frame()
    assert kind == 2
    await client.frame()
    return (decode_properties(payload[12:]).get("headers") or {}).get("x-delivery-count")


async def filled(directory: Path) -> tuple[Broker, SocketClient]:
    """A broker with one message in a quorum queue, which came back twice."""
    broker = Broker(directory)
    await broker.start()
    client = await broker.client()
    await client.call(QUORUM)
    await client.call(methods.ConfirmSelect(False))
    client.writer.write(peers.publish(1, "", "q", b"x", delivery_mode=2))
    await client.method()
    await give_back(client, 2)
    await client.call(methods.BasicQos(0, 1, False))
    return broker, client


@pytest.mark.parametrize("is_killed", [False, True])
async def test_counts_and_the_limit_hold_over_a_restart(tmp_path, is_killed):
    broker, client = await filled(tmp_path / "one")
    if is_killed:
        shutil.copytree(tmp_path / "one", tmp_path / "killed")
        await broker.stop()
        again = Broker(tmp_path / "killed")
    else:
        await broker.stop()
        again = Broker(tmp_path / "one")
    await again.start()
    client = await again.client()
    assert await count_of(client) == 2
    client.writer.write(method_frame(1, methods.BasicNack(1, False, True)))
    assert isinstance(await client.method(), methods.BasicDeliver)
    await client.frame()
    await client.frame()
    client.writer.write(method_frame(1, methods.BasicNack(2, False, True)))  # over the limit: it dies
    assert (await (await again.client()).call(QUORUM)).message_count == 0
    assert again.service.storage.counts.of == {}
    await again.stop()
    assert not any(tmp_path.glob(f"{'killed' if is_killed else 'one'}/amqp/{COUNTS_FILE}"))


async def test_a_damaged_file_is_no_reason_not_to_start(tmp_path):
    broker, _ = await filled(tmp_path)
    await broker.stop()
    (path,) = tmp_path.glob(f"*/{COUNTS_FILE}")
    for bad in (b"rubbish" * 20, path.read_bytes()[:-9]):
        path.write_bytes(bad)
        again = Broker(tmp_path)
        await again.start()
        assert await count_of(await again.client()) is None
        await again.stop()


def test_the_file_is_replaced_when_it_has_grown_and_holds_what_is_left(tmp_path):
    counts = DeliveryCounts()
    file = DeliveryCountsFile(tmp_path, counts, bytes_max=1_000)
    for seq in range(300):
        counts.note("a", seq, 1)
        counts.end_turn()
        counts.forget("a", [seq - 3])
        counts.end_turn()
    counts.note("b", 7, 9)
    counts.end_turn()
    counts.drop("b")
    counts.end_turn()
    assert (tmp_path / COUNTS_FILE).stat().st_size < 2_000
    found = DeliveryCounts()
    again = DeliveryCountsFile(tmp_path, found)
    again.load(lambda store, seq: seq != 298)
    assert found.of == {"a": {297: 1, 299: 1}}
    again.close()
    file._close()


@pytest.mark.parametrize("bad", [3, [], ["q", 1], ["q", 1, -1], ["q", -1, 2], [1, 1, 1], ["q", "1", 1]])
def test_what_is_no_count_is_refused(bad):
    with pytest.raises(ValueError, match="no change"):
        DeliveryCounts().apply([bad])
