"""What a slave copies from its master besides the log: topics, groups, offsets, modes, progress of delays and timer.

Every table is asked for again and again with the requests that RocketMQ's slaves send, so the master may be RocketMQ.
The master's tables replace the slave's own; consumer offsets of groups that the master does not know are kept.

Source: apache/rocketmq broker/.../slave/SlaveSynchronize.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from stratamq.broker.broker import Broker
from stratamq.errors import PeerUnreachable, RemoteProtocolError, StrataError
from stratamq.logstore.timer_copy import keep_checkpoint
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.server.remoting_client import RemotingClient

_log = logging.getLogger(__name__)
ANSWER_S: Final = 10.0
TABLE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Longest table that is taken."""


class MasterTables:
    """Copies the tables of a master, whose remoting address `learn` says. ``directory`` is the slave's store."""

    def __init__(self, broker: Broker, interval_ms: int, directory: str) -> None:
        self._broker = broker
        self._interval_s = interval_ms / 1000
        self._address = ""
        self._directory = directory
        self._timer = b""
        self._reason = ""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble: dict[RequestCode, str] = {}
        self.rounds = 0
        """How often all tables were copied."""
        self._steps: dict[RequestCode, Callable[[dict[str, Any]], object]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: broker.adopt_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: broker.adopt_groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: broker.offsets.adopt,
            RequestCode.GET_ALL_DELAY_OFFSET: broker.delays.adopt,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: broker.request_modes.adopt,
            RequestCode.GET_TIMER_METRICS: broker.timers.metrics.adopt,
        }

    def start(self) -> None:
        """Begin to copy."""
        self._task = asyncio.create_task(self._run())

    def learn(self, address: str) -> None:
        """Name servers say where the master is; empty when they know none: then it is where it was."""
        if address and address != self._address:
            self._address = address
            self._wanted.set()

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            if self._address:
                try:
                    await self.copy(self._address)
                    self._reason = ""
                except StrataError as error:
                    if str(error) != self._reason:
                        _log.warning("the tables of master %s are not copied: %s", self._address, error)
                    self._reason = str(error)
                except Exception:
                    _log.exception("copying the tables of master %s failed", self._address)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def copy(self, address: str) -> None:
        """Copy every table once. One that the master does not give is logged and left as it is.

        Raises PeerUnreachable.
        """
        whole = True
        async with await RemotingClient.connect(address, frame_bytes_max=TABLE_BYTES_MAX) as client:
            for code, adopt in self._steps.items():
                trouble = await self._copy_one(client, code, adopt)
                if trouble and trouble != self._trouble.get(code):
                    _log.warning("master %s does not give %s: %s", address, code.name, trouble)
                self._trouble[code] = trouble
                whole = whole and not trouble
            await self._copy_timer(client)
        self.rounds += whole

    async def _copy_one(
        self, client: RemotingClient, code: RequestCode, adopt: Callable[[dict[str, Any]], object]
    ) -> str:
        """Copy one table; returns why it could not be."""
        try:
            header, body = await client.request(code, timeout_s=ANSWER_S)
            if header.code != ResponseCode.SUCCESS:
                return f"code {header.code}, {header.remark or 'without a remark'}"
            table = fastjson.loads(body)
            if not isinstance(table, dict):
                return "the answer is no JSON object"
            adopt(table)
        except PeerUnreachable:
            raise
        except (RemoteProtocolError, ValueError, TypeError) as error:
            return str(error)
        return ""

    async def _copy_timer(self, client: RemotingClient) -> None:
        """Keep how far the master's timer is; a master without a timer says nothing."""
        header, body = await client.request(RequestCode.GET_TIMER_CHECK_POINT, timeout_s=ANSWER_S)
        if header.code == ResponseCode.SUCCESS and body != self._timer:
            await asyncio.to_thread(keep_checkpoint, self._directory, body)
            self._timer = body

    async def close(self) -> None:
        """Copy no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
