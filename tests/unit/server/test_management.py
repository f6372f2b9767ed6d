"""The management API: every family of paths, with a real server, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aio_pika
import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import InvalidArgument
from stratamq.server.lifecycle import Server
from stratamq.server.management import lists
from tests.unit.server.test_lifecycle import FREE, settings


class Api:
    """A server and a client of its management API."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self._http = http

    async def call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        user: str = "guest:guest",
        status: int = 200,
        **query: str,
    ) -> Any:
        headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
        # yarl must not decode %2F in a path that is already encoded
        from yarl import URL

        url = URL(f"http://{self.server.addresses.http}/api{path}", encoded=True).update_query(query)
        data = None if body is None else json.dumps(body)
        async with self._http.request(verb, url, data=data, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == status, f"{verb} {path}: {answer.status} {text}"
            return json.loads(text) if text else None

    async def get(self, path: str, **options: Any) -> Any:
        return await self.call("GET", path, **options)

    async def put(self, path: str, body: Any = None, **options: Any) -> Any:
        return await self.call("PUT", path, {} if body is None else body, **{"status": 201, **options})

    async def post(self, path: str, body: Any, **options: Any) -> Any:
        return await self.call("POST", path, body, **options)

    async def delete(self, path: str, **options: Any) -> Any:
        return await self.call("DELETE", path, **{"status": 204, **options})


@contextlib.asynccontextmanager
async def serving(folder) -> AsyncIterator[Api]:
    server = Server(settings(folder, server=replace(FREE, amqp_port=0)))
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Api(server, http)
    finally:
        await server.stop()


async def test_who_may_come_in(tmp_path):
    async with serving(tmp_path) as api:
        await api.get("/overview", user="", status=401)
        await api.get("/overview", user="guest:wrong", status=401)
        assert await api.get("/whoami") == {"name": "guest", "tags": ["administrator"]}
        await api.put("/users/plain", {"password": "x", "tags": ""})
        await api.get("/overview", user="plain:x", status=401)
        await api.put("/users/look", {"password": "x", "tags": ["management"]})
        await api.get("/overview", user="look:x")
        await api.get("/users", user="look:x", status=401)
        await api.get("/queues/%2F", user="look:x", status=401)
        assert await api.get("/queues", user="look:x") == []
        await api.put("/permissions/%2F/look", {"configure": "^mine", "write": "", "read": ".*"})
        await api.put("/queues/%2F/mine-1", user="look:x")
        await api.put("/queues/%2F/yours", user="look:x", status=401)
        assert [row["name"] for row in await api.get("/queues", user="look:x")] == ["mine-1"]
        await api.put("/vhosts/mine", user="look:x", status=401)


async def test_queues_are_made_shown_and_deleted(tmp_path):
    async with serving(tmp_path) as api:
        arguments = {"x-message-ttl": 60000, "x-max-length": 5}
        await api.put("/queues/%2F/q", {"durable": True, "arguments": arguments})
        await api.put("/queues/%2F/q", {"durable": True, "arguments": arguments}, status=204)
        await api.put("/queues/%2F/q", {"durable": False}, status=400)
        row = await api.get("/queues/%2F/q")
        assert (row["name"], row["vhost"], row["durable"], row["arguments"]) == ("q", "/", True, arguments)
        assert (row["messages"], row["consumers"], row["state"], row["type"]) == (0, 0, "running", "classic")
        await api.put("/queues/%2F/amq.mine", status=403)
        await api.put("/queues/%2F/bad", {"arguments": {"x-max-priority": "many"}}, status=400)
        await api.put("/queues/%2F/bad", {"durable": 7}, status=400)
        await api.get("/queues/%2F/none", status=404)
        await api.get("/queues/none", status=404)
        # some clients ask for lists with a slash at the end, as RabbitMQ lets them
        assert [row["name"] for row in await api.get("/queues/")] == ["q"]
        assert (await api.get("/queues/%2F/q/"))["name"] == "q"
        await api.get("/none/", status=404)
        columns = await api.get("/queues", columns="name,messages_details.rate")
        assert columns == [{"name": "q", "messages_details": {"rate": 0.0}}]
        await api.post("/exchanges/%2F/amq.default/publish", _message("q", "one"))
        await api.delete("/queues/%2F/q", **{"if-empty": "true"}, status=400)
        await api.delete("/queues/%2F/q/contents")
        await api.delete("/queues/%2F/q", **{"if-empty": "true"})
        await api.delete("/queues/%2F/q", status=404)


def _message(key: str, payload: str, **properties: Any) -> dict[str, Any]:
    return {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": properties}


async def test_messages_go_in_and_come_out_in_order(tmp_path):
    async with serving(tmp_path) as api:
        await api.put("/queues/%2F/q")
        assert await api.post("/exchanges/%2F/amq.default/publish", _message("none", "x")) == {"routed": False}
        for number in range(3):
            sent = _message("q", f"m{number}", delivery_mode=2, headers={"n": number}, content_type="text/plain")
            assert await api.post("/exchanges/%2F/amq.default/publish", sent) == {"routed": True}
        raw = {"routing_key": "q", "payload": base64.b64encode(b"\xff\0").decode(), "payload_encoding": "base64"}
        await api.post("/exchanges/%2F/amq.default/publish", raw)
        look = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
        rows: list[dict[str, Any]] = []
        for _ in range(2):
            rows = await api.post("/queues/%2F/q/get", look)
            assert [row["payload"] for row in rows] == ["m0", "m1", "m2", "/wA="]
            assert [row["message_count"] for row in rows] == [3, 2, 1, 0]
        assert rows[0]["redelivered"] is True
        assert rows[1]["properties"] == {"delivery_mode": 2, "headers": {"n": 1}, "content_type": "text/plain"}
        assert (rows[3]["payload_encoding"], rows[3]["payload_bytes"]) == ("base64", 2)
        taken = await api.post("/queues/%2F/q/get", {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"})
        assert [row["payload"] for row in taken] == ["m0", "m1"]
        row = await api.get("/queues/%2F/q")
        assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (2, 2, 0)
        short = await api.post("/queues/%2F/q/get", {**look, "count": 1, "truncate": 1})
        assert (short[0]["payload"], short[0]["payload_bytes"]) == ("m", 2)
        for bad in ({"count": "x"}, {"count": 1, "ackmode": "no"}, {"count": 1, "encoding": "no"}, {}):
            await api.post("/queues/%2F/q/get", bad, status=400)
        for bad in (
            {"routing_key": "q", "payload": "x", "payload_encoding": "no"},
            {"routing_key": "q", "payload": "%", "payload_encoding": "base64"},
            _message("q", "x", nonsense=1),
            _message("q", "x", priority=300),
            {"payload": "x"},
        ):
            await api.post("/exchanges/%2F/amq.default/publish", bad, status=400)
        assert await api.get("/aliveness-test/%2F") == {"status": "ok"}


async def test_exchanges_and_bindings(tmp_path):
    async with serving(tmp_path) as api:
        await api.put("/exchanges/%2F/ex", {"type": "topic", "durable": True})
        await api.put("/exchanges/%2F/ex", {"type": "topic", "durable": True}, status=204)
        await api.put("/exchanges/%2F/ex", {"type": "fanout"}, status=400)
        await api.put("/exchanges/%2F/ex2", {}, status=400)
        await api.put("/queues/%2F/q")
        assert {"", "amq.topic", "ex"} <= {row["name"] for row in await api.get("/exchanges/%2F")}
        await api.post("/bindings/%2F/e/ex/q/q", {"routing_key": "a.#", "arguments": {}}, status=201)
        await api.post("/bindings/%2F/e/ex/q/q", {"routing_key": "b", "arguments": {"x": 1}}, status=201)
        await api.post("/bindings/%2F/e/amq.fanout/e/ex", {"routing_key": "k"}, status=201)
        await api.post("/bindings/%2F/e/none/q/q", {"routing_key": "b"}, status=404)
        rows = await api.get("/bindings/%2F/e/ex/q/q")
        assert sorted(row["routing_key"] for row in rows) == ["a.#", "b"]
        assert await api.post("/exchanges/%2F/ex/publish", _message("a.b.c", "x")) == {"routed": True}
        assert {row["source"] for row in await api.get("/queues/%2F/q/bindings")} == {"", "ex"}
        assert [row["destination"] for row in await api.get("/exchanges/%2F/amq.fanout/bindings/source")] == ["ex"]
        assert [row["source"] for row in await api.get("/exchanges/%2F/ex/bindings/destination")] == ["amq.fanout"]
        with_arguments = next(row for row in rows if row["arguments"])
        assert await api.get(f"/bindings/%2F/e/ex/q/q/{with_arguments['properties_key']}") == with_arguments
        await api.delete(f"/bindings/%2F/e/ex/q/q/{with_arguments['properties_key']}")
        await api.delete("/bindings/%2F/e/ex/q/q/a.%23")
        assert await api.get("/bindings/%2F/e/ex/q/q") == []
        await api.delete("/exchanges/%2F/amq.topic", status=403)
        await api.delete("/exchanges/%2F/ex")
        await api.delete("/exchanges/%2F/ex", status=404)


async def test_users_permissions_and_vhosts_survive_a_restart(tmp_path):
    async with serving(tmp_path) as api:
        await api.put("/vhosts/team%2Fa")
        await api.put("/vhosts/team%2Fa", status=204)
        await api.put("/users/ann", {"password": "secret", "tags": "monitoring"})
        await api.put("/permissions/team%2Fa/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        topic = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
        await api.put("/topic-permissions/team%2Fa/ann", topic)
        await api.put("/permissions/team%2Fa/nobody", {"configure": "", "write": "", "read": ""}, status=404)
        await api.put("/permissions/team%2Fa/ann", {"configure": "("}, status=400)
        policy = {"pattern": "^lazy", "definition": {"max-length": 3}, "apply-to": "queues", "priority": 2}
        await api.put("/policies/team%2Fa/short", policy)
        await api.put("/policies/team%2Fa/none", {"pattern": "x", "definition": {}}, status=400)
        await api.put("/queues/team%2Fa/lazy-1")
    async with serving(tmp_path) as api:
        assert (await api.get("/whoami", user="ann:secret"))["name"] == "ann"
        assert (await api.get("/permissions/team%2Fa/ann"))["configure"] == ".*"
        assert (await api.get("/topic-permissions/team%2Fa/ann"))[0]["write"] == "^a"
        row = await api.get("/queues/team%2Fa/lazy-1")
        assert (row["policy"], row["effective_policy_definition"]) == ("short", {"max-length": 3})
        assert (await api.get("/policies/team%2Fa/short"))["pattern"] == "^lazy"
        await api.delete("/policies/team%2Fa/short")
        assert (await api.get("/queues/team%2Fa/lazy-1"))["policy"] is None
        await api.delete("/topic-permissions/team%2Fa/ann")
        await api.delete("/permissions/team%2Fa/ann")
        await api.post("/users/bulk-delete", {"users": ["ann"]}, status=204)
        await api.get("/users/ann", status=404)
        await api.delete("/vhosts/team%2Fa")
        await api.get("/vhosts/team%2Fa", status=404)
        assert [row["name"] for row in await api.get("/vhosts")] == ["/"]


async def test_definitions_go_out_and_into_another_broker(tmp_path):
    async with serving(tmp_path / "one") as api:
        await api.put("/queues/%2F/q", {"arguments": {"x-max-length": 9}})
        await api.put("/exchanges/%2F/ex", {"type": "headers"})
        await api.post("/bindings/%2F/e/ex/q/q", {"arguments": {"x-match": "all", "a": "b"}}, status=201)
        await api.put("/users/ann", {"password": "secret", "tags": "administrator"})
        await api.put("/policies/%2F/p", {"pattern": ".*", "definition": {"expires": 1000000}})
        whole, part = await api.get("/definitions"), await api.get("/definitions/%2F")
    assert {row["name"] for row in whole["users"]} == {"guest", "ann"}
    assert [row["name"] for row in part["queues"]] == ["q"]
    assert "vhost" not in part["queues"][0]
    async with serving(tmp_path / "two") as api:
        await api.post("/definitions", whole, status=204)
        assert (await api.get("/whoami", user="ann:secret"))["name"] == "ann"
        assert (await api.get("/definitions"))["bindings"] == whole["bindings"]
        await api.put("/vhosts/other")
        await api.post("/definitions/other", part, status=204)
        assert [row["name"] for row in await api.get("/queues/other")] == ["q"]
        await api.post("/definitions", {"queues": [{"name": "x"}]}, status=400)
        await api.post("/definitions", [], status=400)


async def test_connections_are_shown_and_closed(tmp_path):
    async with serving(tmp_path) as api:
        connection = await aio_pika.connect(f"amqp://guest:guest@{api.server.addresses.amqp}/")
        gone = asyncio.get_running_loop().create_future()

        def closed(_: object, error: BaseException | None) -> None:
            if not gone.done():
                gone.set_result(error)

        connection.close_callbacks.add(closed)
        channel = await connection.channel()
        await channel.set_qos(7)
        queue = await channel.declare_queue("work")

        async def take(message: object) -> None:
            raise AssertionError("nothing was sent")

        await queue.consume(take, consumer_tag="me")
        (row,) = await api.get("/connections")
        assert (row["user"], row["vhost"], row["channels"], row["state"]) == ("guest", "/", 1, "running")
        assert row["client_properties"]["product"]
        assert (await api.get(f"/connections/{_quoted(row['name'])}"))["name"] == row["name"]
        (seen,) = await api.get("/channels")
        assert (seen["prefetch_count"], seen["consumer_count"]) == (7, 1)
        (consumer,) = await api.get("/consumers/%2F")
        assert (consumer["consumer_tag"], consumer["queue"]["name"], consumer["prefetch_count"]) == ("me", "work", 7)
        detail = await api.get("/queues/%2F/work")
        assert (detail["consumers"], detail["consumer_details"][0]["consumer_tag"]) == (1, "me")
        overview = await api.get("/overview")
        assert overview["object_totals"]["connections"] == 1
        assert overview["listeners"][0]["port"] == int(api.server.addresses.amqp.rpartition(":")[2])
        await api.delete(f"/connections/{_quoted(row['name'])}")
        error = await asyncio.wait_for(gone, 100)
        assert "Closed via management" in str(error)
        async with asyncio.timeout(100):
            while await api.get("/connections"):  # noqa: ASYNC110 (the client's last word may be on its way)
                await asyncio.sleep(0.01)
        await api.delete(f"/connections/{_quoted(row['name'])}", status=404)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


async def test_health_and_what_monitoring_reads(tmp_path):
    async with serving(tmp_path) as api:
        (node,) = await api.get("/nodes")
        assert (await api.get(f"/nodes/{_quoted(node['name'])}"))["running"] is True
        assert node["mem_used"] > 0
        assert node["disk_free"] > 0
        await api.get("/nodes/other", status=404)
        port = api.server.addresses.amqp.rpartition(":")[2]
        for path in ("alarms", "local-alarms", "virtual-hosts", "is-in-service", f"port-listener/{port}"):
            assert (await api.get(f"/health/checks/{path}"))["status"] == "ok"
        await api.get("/health/checks/port-listener/1", status=503)
        assert api.server._amqp is not None
        api.server._amqp.memory_limit = 1  # so that the broker's own look, at any moment, finds the same
        api.server._amqp.check_alarms()
        assert (await api.get("/health/checks/alarms", status=503))["alarms"][0]["resource"] == "memory"
        for path in ("feature-flags", "parameters", "vhost-limits", "extensions"):
            assert await api.get(f"/{path}") == []
        assert (await api.get("/nothing/here", status=404))["error"] == "Object Not Found"


async def test_without_amqp_it_says_so(tmp_path):
    server = Server(settings(tmp_path, server=replace(FREE, amqp_port=-1)))
    await server.start()
    async with aiohttp.ClientSession() as http:
        assert (await Api(server, http).get("/overview", status=503))["reason"].startswith("AMQP is off")
    await server.stop()


ROWS = [{"name": f"n{number:02}", "size": number % 3, "deep": {"rate": float(-number)}} for number in range(25)]


def test_lists_are_paged_sorted_and_cut():
    page = lists.arrange(ROWS, {"page": "2", "page_size": "10", "sort": "deep.rate"})
    assert [row["name"] for row in page["items"]] == [f"n{number:02}" for number in range(14, 4, -1)]
    assert (page["page_count"], page["item_count"], page["total_count"], page["filtered_count"]) == (3, 10, 25, 25)
    found = lists.arrange(ROWS, {"name": "n1", "columns": "name,deep.rate"})
    assert found[0] == {"name": "n10", "deep": {"rate": -10.0}}
    assert len(lists.arrange(ROWS, {"name": "^n0[1-3]$", "use_regex": "true"})) == 3
    for bad in ({"page": "9"}, {"page": "x"}, {"page": "1", "page_size": "9999"}, {"name": "(", "use_regex": "true"}):
        with pytest.raises(InvalidArgument):
            lists.arrange(ROWS, bad)


@given(
    st.lists(st.dictionaries(st.sampled_from(["name", "a", "b"]), st.none() | st.integers() | st.text(max_size=3))),
    st.integers(1, 5),
    st.sampled_from(["a", "b", "name", "none"]),
)
def test_pages_hold_every_row_once(rows, size, key):
    first = lists.arrange(rows, {"page": "1", "page_size": str(size), "sort": key})
    seen = []
    for number in range(1, first["page_count"] + 1):
        seen += lists.arrange(rows, {"page": str(number), "page_size": str(size), "sort": key})["items"]
    assert sorted(map(repr, seen)) == sorted(map(repr, rows))
