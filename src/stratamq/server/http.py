"""The HTTP port: a page for people, JSON for programs, metrics for Prometheus.

======================= =====================================================================
path                    answer
======================= =====================================================================
/                       the page: store, topics, consumer groups with their lag
/healthz                200 "ok" while messages are taken, 503 and why otherwise
/metrics                Prometheus text
/api/v1/overview        name, addresses, store positions, counters
/api/v1/topics          topics with their queues; ``?own=1`` with the broker's own
/api/v1/groups          consumer groups with members and lag
/api/v1/tier            the cold tier: what it holds, what waits, what is wrong; 404 without one
/api/v1/retention       what is deleted next, why, and who loses what; ``?requested=1``: after a request
                        POST, from this machine only: let expired files go now, as the remoting request 329
/api/...                RabbitMQ's management API over the AMQP side (`management`); it also changes
======================= =====================================================================
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from stratamq.broker.broker import Broker
from stratamq.logstore.retention_service import RetentionService
from stratamq.nameserver.routes import RouteTable
from stratamq.server import views
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.management.app import BODY_BYTES_MAX, ManagementApi
from stratamq.server.metrics import BrokerCollector
from stratamq.server.page import render_page
from stratamq.server.remoting import RemotingListener
from stratamq.server.retention_view import RetentionCollector, is_loopback, request_deletion, retention_view
from stratamq.server.tier_metrics import TierCollector, tier_view
from stratamq.server.tls import Port, Tls, open_port
from stratamq.tiered.store import TieredStore

_NO_RETENTION: Final = {"error": "this broker keeps no files"}


class HttpServer:
    """Serves the page, the API and the metrics of one broker."""

    def __init__(
        self,
        broker: Broker,
        routes: RouteTable,
        listeners: Sequence[RemotingListener],
        *,
        amqp: Callable[[], AmqpFront | None] = lambda: None,
        retention: RetentionService | None = None,
    ) -> None:
        self._broker = broker
        self._routes = routes
        self._listeners = listeners
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(broker, listeners))
        if isinstance(broker.store, TieredStore):
            names = (broker.config.cluster_name, broker.config.broker_name)
            self._registry.register(TierCollector(broker.store, names))
        self._retention_service = retention
        if retention is not None:
            names = (broker.config.cluster_name, broker.config.broker_name)
            self._registry.register(RetentionCollector(retention, names))
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/healthz", self._health),
                web.get("/metrics", self._metrics),
                web.get("/api/v1/overview", self._overview),
                web.get("/api/v1/topics", self._topics),
                web.get("/api/v1/groups", self._groups),
                web.get("/api/v1/tier", self._tier),
                web.get("/api/v1/retention", self._retention),
                web.post("/api/v1/retention", self._delete_expired),
                *ManagementApi(amqp).routes(),
            ]
        )
        self._port: Port | None = None
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def listen_tls(self, sock: socket.socket, tls: Tls) -> None:
        """Accept connections on another bound socket, over TLS; after `listen`."""
        assert self._runner.server is not None
        self._port = await open_port(sock, self._runner.server, tls)

    async def close(self) -> None:
        """Stop serving."""
        if self._port is not None:
            self._port.close()
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        text = render_page(
            views.overview(self._broker, self._routes, self._listeners),
            views.topics(self._broker),
            views.groups(self._broker),
            None if self._retention_service is None else await retention_view(self._retention_service),
        )
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        status = self._broker.store.status()
        if self._broker.is_accepting and status.is_writable:
            return web.Response(text="ok\n")
        reason = status.failure or ("the broker is stopping" if not self._broker.is_accepting else "not writable")
        return web.Response(text=reason + "\n", status=503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _overview(self, request: web.Request) -> web.Response:
        return web.json_response(views.overview(self._broker, self._routes, self._listeners))

    async def _topics(self, request: web.Request) -> web.Response:
        with_own = request.query.get("own") in ("1", "true")
        return web.json_response({"topics": views.topics(self._broker, with_own=with_own)})

    async def _tier(self, request: web.Request) -> web.Response:
        store = self._broker.store
        if not isinstance(store, TieredStore):
            return web.json_response({"error": "this broker has no cold tier (--tier)"}, status=404)
        return web.json_response(tier_view(store))

    async def _retention(self, request: web.Request) -> web.Response:
        if self._retention_service is None:
            return web.json_response(_NO_RETENTION, status=404)
        requested = request.query.get("requested") in ("1", "true")
        return web.json_response(await retention_view(self._retention_service, requested=requested))

    async def _delete_expired(self, request: web.Request) -> web.Response:
        if self._retention_service is None:
            return web.json_response(_NO_RETENTION, status=404)
        if not is_loopback(request.remote):
            return web.json_response({"error": "only from the machine that the broker runs on"}, status=403)
        if request.content_type != "application/json":  # a page of somebody else's in a browser cannot send that
            return web.json_response({"error": "Content-Type must be application/json"}, status=415)
        return web.json_response(request_deletion(self._retention_service), status=202)

    async def _groups(self, request: web.Request) -> web.Response:
        return web.json_response({"groups": views.groups(self._broker)})
