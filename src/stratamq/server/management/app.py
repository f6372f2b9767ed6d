"""The management API as aiohttp routes: logging in, errors as JSON, and the handlers of all families.

A handler gets the call and returns a JSON value, or a `Reply` with a status. What it changes takes effect in the
broker's own turn, which has ended, and written definitions, before the answer leaves.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from stratamq.broker.amqp.broker import AmqpBroker
from stratamq.broker.amqp.vhost import VirtualHost
from stratamq.errors import InvalidArgument
from stratamq.protocols.amqp.replies import ACCESS_REFUSED, NOT_FOUND, AmqpError
from stratamq.server.amqp_front import AmqpFront
from stratamq.server.management import lists
from stratamq.server.management.access import Caller, Refused, log_in
from stratamq.units import MiB

_log = logging.getLogger(__name__)
BODY_BYTES_MAX: Final = 16 * MiB
_REALM: Final = {"WWW-Authenticate": 'Basic realm="StrataMQ Management"'}


class Missing(Exception):
    """What a path names is not there."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status of its own."""

    status: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who asks, of which broker, the parts of the path, the query, the JSON body."""

    caller: Caller
    service: AmqpFront
    parts: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def broker(self) -> AmqpBroker:
        """The AMQP side of this process."""
        return self.service.broker

    def part(self, name: str) -> str:
        """One part of the path."""
        return self.parts[name]

    def vhost(self) -> VirtualHost:
        """The virtual host that the path names. Raises Missing, Refused."""
        found = self.broker.vhosts.get(self.part("vhost"))
        if found is None:
            raise Missing
        self.caller.need_vhost(found.name)
        return found

    def listed(self, rows: list[dict[str, Any]]) -> Any:
        """Rows as the query wants them."""
        return lists.arrange(rows, self.query)


Handler = Callable[[Call], Any]
Routes = list[tuple[str, str, Handler]]


class ManagementApi:
    """All routes; ``service`` gives the AMQP side, None while there is none."""

    def __init__(self, service: Callable[[], AmqpFront | None]) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to an application. GET routes answer HEAD as well; a slash at the end changes nothing."""
        from stratamq.server.management import definitions, messages, people, status, topology

        families: tuple[Routes, ...] = (
            status.ROUTES,
            topology.ROUTES,
            people.ROUTES,
            messages.ROUTES,
            definitions.ROUTES,
        )
        found = [
            web.route(verb, f"/api{path}{end}", self._wrap(handler))
            for one in families
            for verb, path, handler in one
            for end in ("", "/")
        ]
        return [*found, web.route("*", "/api/{rest:.*}", self._no_such)]

    def _wrap(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            service = self._service()
            if service is None:
                return _answer(503, {"error": "Service Unavailable", "reason": "AMQP is off in this process"})
            try:
                return await self._run(service, handler, request)
            except Refused as error:
                headers = _REALM if error.status == 401 else {}
                return _answer(error.status, {"error": "not_authorized", "reason": error.reason}, headers)
            except Missing:
                return _not_found()
            except AmqpError as error:
                if error.code == NOT_FOUND:
                    return _not_found()
                status = 403 if error.code == ACCESS_REFUSED else 400
                return _answer(status, {"error": "bad_request", "reason": str(error)})
            except (InvalidArgument, KeyError, TypeError, ValueError) as error:
                reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                return _answer(400, {"error": "bad_request", "reason": reason})

        return handle

    async def _run(self, service: AmqpFront, handler: Handler, request: web.Request) -> web.StreamResponse:
        remote = request.remote or ""
        authorization = request.headers.get("Authorization")
        caller = log_in(service.broker, authorization, is_loopback=remote.startswith("127.") or remote == "::1")
        body: Any = {}
        if request.can_read_body:
            raw = await request.read()
            body = json.loads(raw) if raw.strip() else {}
            if not isinstance(body, dict):
                raise InvalidArgument("the body must be a JSON object")
        result = handler(Call(caller, service, request.match_info, request.query, body, request.headers))
        if asyncio.iscoroutine(result):
            result = await result
        if request.method not in ("GET", "HEAD"):
            await service.turn_ended()
        if isinstance(result, Reply):
            return _answer(result.status, result.value)
        return _answer(200, result)

    async def _no_such(self, request: web.Request) -> web.StreamResponse:
        return _not_found()


def _answer(status: int, value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    if status == 204 or (status == 201 and value is None):
        return web.Response(status=status, headers=headers)
    return web.json_response(value, status=status, headers=headers)


def _not_found() -> web.Response:
    return _answer(404, {"error": "Object Not Found", "reason": "Not Found"})
