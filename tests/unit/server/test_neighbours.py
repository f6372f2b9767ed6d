"""Brokers that ask one another: found by name servers, over one connection, and named when they cannot be asked."""

import asyncio
import contextlib

from stratamq.nameserver.routes import Registration, RouteTable
from stratamq.server import neighbours
from stratamq.server.neighbours import BrokerNeighbours
from tests.unit.server.test_lifecycle import until
from tests.unit.server.test_registering import broker, names

QUEUE = {"topic": "SELF_TEST_TOPIC", "queueId": "0", "lo": "false"}


@contextlib.asynccontextmanager
async def asking(*namesrv, routes=None):
    """Ask, and wait for the answer as long as it takes."""
    made = BrokerNeighbours(routes or RouteTable(), namesrv, lambda: 60_000)

    async def ask(broker_name, code, ext):
        future = asyncio.get_running_loop().create_future()
        made.ask(broker_name, code, ext, future.set_result)
        return await future

    try:
        yield ask
    finally:
        await made.close()


async def test_a_broker_is_found_by_a_name_server_and_asked(tmp_path):
    async with names(tmp_path / "n") as found, broker(tmp_path / "b", found.address) as server:
        await until(lambda: found.names.routes.broker("broker-a") is not None)
        async with asking("127.0.0.1:1", found.address) as ask:
            answers = await asyncio.gather(*(ask("broker-a", 30, QUEUE) for _ in range(3)))
            assert [(answer.code, answer.ext["offset"]) for answer in answers] == [(0, "0")] * 3
            refused = await ask("broker-a", 30, {})
            assert (refused.code, "header cannot be read" in refused.remark) == (1, True)
            assert len(server.broker_listener.peers) == 1


async def test_a_broker_of_the_name_server_in_this_process_is_asked(tmp_path):
    async with broker(tmp_path / "b") as server:
        routes = RouteTable()
        routes.register(Registration(cluster="C", name="x", address=server.addresses.broker), now_ms=0)
        async with asking(routes=routes) as ask:
            assert (await ask("x", 30, QUEUE)).code == 0


async def test_who_cannot_be_asked_is_named(tmp_path):
    routes = RouteTable()
    routes.register(Registration(cluster="C", name="gone", address="127.0.0.1:1"), now_ms=0)
    async with names(tmp_path / "n") as found, asking(found.address, routes=routes) as ask:
        for name, why in (("unknown", "no name server knows"), ("gone", "127.0.0.1:1")):
            answer = await ask(name, 30, QUEUE)
            assert (answer.code, answer.body) == (1, b"")
            assert answer.remark.startswith(f"broker {name} could not be asked: ")
            assert why in answer.remark


async def test_a_broker_that_moved_is_looked_for_again(tmp_path):
    routes = RouteTable()
    async with asking(routes=routes) as ask:
        async with broker(tmp_path / "b") as server:
            routes.register(Registration(cluster="C", name="x", address=server.addresses.broker), now_ms=0)
            assert (await ask("x", 30, QUEUE)).code == 0
        assert (await ask("x", 30, QUEUE)).code == 1
        async with broker(tmp_path / "c") as server:
            routes.register(Registration(cluster="C", name="x", address=server.addresses.broker), now_ms=1)
            assert (await ask("x", 30, QUEUE)).code == 0


async def test_no_more_is_asked_than_allowed(monkeypatch):
    monkeypatch.setattr(neighbours, "ASKED_MAX", 0)
    async with asking() as ask:
        assert (await ask("x", 30, QUEUE)).code == 2
