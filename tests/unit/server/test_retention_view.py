"""Retention on the HTTP port: the plan, the request, the page, the metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.error
import urllib.request
from asyncio import to_thread
from typing import Any

import pytest

from stratamq.cli.main import main
from stratamq.server.lifecycle import Server
from stratamq.server.page import render_page
from stratamq.server.retention import run_round
from stratamq.server.retention_view import is_loopback, retention_view
from stratamq.server.settings import Settings
from tests.unit.logstore.stores import message, put, small_config
from tests.unit.server.test_lifecycle import FREE
from tests.unit.server.test_retention import Probe


async def ask(server: Server, path: str, *, post: str | None = None) -> tuple[int, str]:
    """Status and text of an answer; ``post`` is the content type of a POST."""
    host, port = server.addresses.http.rsplit(":", 1)
    url = f"http://{host}:{port}{path}"
    headers = {} if post is None else {"Content-Type": post}
    request = urllib.request.Request(url, headers=headers, data=None if post is None else b"{}")

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await to_thread(fetch)


@pytest.fixture
async def server(tmp_path):
    """A broker with five files of log, whose disk is as full as its probe says."""
    server = Server(Settings(data_dir=tmp_path, server=FREE, store=small_config()))
    await server.start()
    server.retention._probe = Probe()
    for number in range(18):
        put(server.retention._store, message(bytes(800), KEYS=f"k{number}"))
    yield server
    await server.stop()


async def view(server: Server, query: str = "") -> Any:
    status, text = await ask(server, f"/api/v1/retention{query}")
    assert status == 200
    return json.loads(text)


async def test_the_plan_is_shown_and_then_it_is_what_happens(server):
    server.broker.offsets.commit("g", "T", 0, 2)
    shown = await view(server)
    assert shown["goes"] == []
    assert "deleteWhen" in shown["trigger"] or "the hour is" in shown["trigger"]
    assert shown["stays"][-1]["cause"] == "newest"
    server.retention._probe.percent = 88
    shown = await view(server)
    first = shown["goes"][0]
    assert first["cause"] == "forced"
    assert "above the force mark of 85 %" in first["reason"]
    assert shown["losses"][0]["group"] == "g"
    assert shown["losses"][0]["messages"] > 0
    before = server.retention.state
    await view(server)
    assert server.retention.state == before, "looking changes nothing"
    await run_round(server.retention)
    assert server.retention._log.min_offset == shown["min_offset_after"]
    after = await view(server)
    assert after["deleted"]["forced"]["files"] == len(shown["goes"])
    assert after["last_round_ms"] > 0
    assert server.retention.lost["g", "T"][0] == shown["losses"][0]["messages"]


async def test_a_request_counts_from_this_machine_alone(server):
    assert (await ask(server, "/api/v1/retention", post="text/plain"))[0] == 415
    assert server.retention.state.manual_rounds == 0
    status, text = await ask(server, "/api/v1/retention", post="application/json")
    assert (status, json.loads(text)["rounds"]) == (202, 20)
    assert server.retention.state.manual_rounds == 20
    assert [is_loopback(a) for a in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")] == [True] * 4
    assert not any(is_loopback(a) for a in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "", None, "localhost"))


async def test_metrics_say_what_went_and_that_the_disk_is_full(server):
    server.retention._probe.percent = 91
    await run_round(server.retention)
    text = (await ask(server, "/metrics"))[1]
    names = 'cluster="DefaultCluster",node_id="broker-a"'
    gone = server.retention.deleted_files
    assert gone > 0
    assert f'stratamq_retention_deleted_files_total{{{names},reason="forced"}} {gone}.0' in text
    assert f"stratamq_retention_blocked{{{names}}} 1.0" in text
    assert f"stratamq_retention_blocked_times_total{{{names}}} 1.0" in text
    assert (await view(server))["blocked_since_ms"] > 0
    server.retention._probe.percent = 50
    server.retention.watch()
    text = (await ask(server, "/metrics"))[1]
    assert f"stratamq_retention_blocked{{{names}}} 0.0" in text
    assert f"stratamq_retention_blocked_since_seconds{{{names}}} 0.0" in text
    assert f"stratamq_retention_blocked_times_total{{{names}}} 1.0" in text


async def test_the_page_has_the_plan(server):
    server.retention._probe.percent = 91
    server.retention.watch()
    text = (await ask(server, "/"))[1]
    assert "<h2>Retention</h2>" in text
    assert "no messages are taken" in text
    assert f"<td>{0:020d}</td><td>goes</td>" in text
    shown = await retention_view(server.retention)
    shown["losses"] = [{"group": "<g>", "topic": "T", "messages": 1}]
    overview = json.loads((await ask(server, "/api/v1/overview"))[1])
    assert "&lt;g&gt;" in render_page(overview, [], [], shown)


async def store_clean(server: Server, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of ``stratamq store clean --broker`` in a thread."""
    command = ["store", "clean", "--broker", server.addresses.http, "--output", "json", *arguments]
    code = await to_thread(main, command)
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else None


async def test_clean_shows_the_plan_of_a_running_broker_and_lets_it_delete(server, capsys, tmp_path):
    service = server.retention
    service.policy = dataclasses.replace(service.policy, file_reserved_hours=0, delete_batch_max=1)
    code, told = await store_clean(server, capsys, "--dry-run")
    assert code == 0
    assert service.state.manual_rounds == 0
    command = ["store", "clean", str(tmp_path), "--dry-run", "--output", "json", "--reserved-hours", "0"]
    assert await to_thread(main, command) == 0
    offline = json.loads(capsys.readouterr().out)
    assert told["goes"] == [row for row in offline["goes"] if "commitlog" in row["file"]]
    assert len(told["goes"]) >= 3
    assert set(offline) - {"remarks"} <= set(told), "the same keys as for a directory"
    code, told = await store_clean(server, capsys, "--yes")
    assert (code, told["requested"]["rounds"]) == (0, 20)
    for _ in told["goes"]:
        await run_round(service)
    assert service._log.min_offset == told["disk"]["min_offset_after"]
    assert len(service._log.bases) == 1
    code, told = await store_clean(server, capsys, "--yes")
    assert (code, told["goes"], told["remarks"][-1]) == (0, [], "Nothing to delete.")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--broker", "127.0.0.1:1", "--dry-run"], 6),
        (["--broker", "nonsense", "--dry-run"], 1),
        (["--broker", "127.0.0.1:1", "--to-percent", "50"], 2),
        (["DIR", "--broker", "127.0.0.1:1"], 2),
        ([], 2),
    ],
)
def test_clean_without_a_broker_to_ask(arguments, code, capsys):
    assert main(["store", "clean", *arguments]) == code
    assert "stratamq" in capsys.readouterr().err.lower()


async def test_clean_refuses_an_answer_that_is_no_plan(capsys):
    for answer in (b"", b"[]", b"{}", b'{"goes": [1]}', b'{"goes": {}, "stays": 0}', b"[" * 100_000):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)

        async def reply(reader, writer, text=head + answer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(text)
            writer.close()

        peer = await asyncio.start_server(reply, "127.0.0.1", 0)
        port = peer.sockets[0].getsockname()[1]
        async with peer:
            code = await to_thread(main, ["store", "clean", "--broker", f"127.0.0.1:{port}", "--dry-run"])
        assert code == 1, answer[:20]
        assert "refused /api/v1/retention" in capsys.readouterr().err
