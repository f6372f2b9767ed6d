"""Connections between the members of a group: each member dials every other and sends on that connection only.

What cannot be sent (no connection, too much waiting) is dropped: the core sends again. The first frame of a connection
says which group its sender belongs to. A connection may carry requests of the command line instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.replication import wire
from stratamq.replication.messages import RaftMessage

_logger = logging.getLogger(__name__)
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""So much may wait for one member's socket before further messages to it are dropped."""
RECONNECT_S: Final = 0.2
CONNECT_S: Final = 2.0
ADMIN_S: Final = 30.0
Admin = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Transport:
    """See the module's text. ``receive`` is called with each message, ``lost`` with who is not heard any more, on the
    loop."""

    def __init__(
        self,
        node: str,
        group: str,
        addresses: dict[str, str],
        receive: Callable[[RaftMessage], None],
        admin: Admin,
        lost: Callable[[str], None] = lambda node: None,
    ) -> None:
        self.addresses = dict(addresses)
        self._node = node
        self._group = group
        self._receive = receive
        self._admin = admin
        self._lost = lost
        self._incoming: dict[str, asyncio.StreamReader] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._accepted: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def start(self, sock: Any) -> None:
        """Accept on a bound socket, and dial the others."""
        self._server = await asyncio.start_server(self._accept, sock=sock, limit=1 << 20)
        self._dial_new()

    def learn(self, addresses: dict[str, str]) -> None:
        """Members that are to be dialled too, or that have moved."""
        for node, address in addresses.items():
            if self.addresses.get(node) != address:
                self.addresses[node] = address
                old = self._tasks.pop(node, None)
                if old is not None:
                    old.cancel()
        if self._server is not None:
            self._dial_new()

    def _dial_new(self) -> None:
        for node in self.addresses:
            if node != self._node and node not in self._tasks:
                self._tasks[node] = asyncio.get_running_loop().create_task(self._dial(node))

    async def _dial(self, node: str) -> None:
        hello = wire.frame(bytes((wire.HELLO,)) + json.dumps({"group": self._group, "node": self._node}).encode())
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                host, _, port = self.addresses[node].rpartition(":")
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.writelines(hello)
                    self._writers[node] = writer
                    await reader.read(1)  # nothing comes back: this ends with the connection
                finally:
                    self._writers.pop(node, None)
                    writer.close()
            await asyncio.sleep(RECONNECT_S)

    def send(self, to: str, message: RaftMessage) -> None:
        """Send, or drop."""
        writer = self._writers.get(to)
        if writer is None or writer.transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            return
        writer.writelines(wire.encode_message(message))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepted.add(task)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            if not self._is_closed:  # asyncio's streams complain of a cancelled task
                raise
        except RemoteProtocolError as error:
            _logger.warning("connection from %s closed: %s", writer.get_extra_info("peername"), error)
        finally:
            self._accepted.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await read_frame(reader)
        if first[0] == wire.ADMIN:
            answer = await self._admin(_json(first))
            writer.writelines(wire.frame(bytes((wire.ADMIN,)) + json.dumps(answer).encode()))
            await writer.drain()
            return
        hello = _json(first)
        if first[0] != wire.HELLO or hello.get("group") != self._group:
            raise RemoteProtocolError(f"a member of group {hello.get('group')!r}, and this is {self._group!r}")
        sender = str(hello.get("node", ""))
        self._incoming[sender] = reader
        try:
            while True:
                self._receive(wire.decode_message(await read_frame(reader)))
        finally:
            if self._incoming.get(sender) is reader:  # and has not connected anew meanwhile
                del self._incoming[sender]
                self._lost(sender)

    async def close(self) -> None:
        """Close everything."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *self._accepted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> memoryview:
    """One frame's content, its length and checksum checked. Raises RemoteProtocolError, IncompleteReadError."""
    length, crc = wire.HEAD.unpack(await reader.readexactly(wire.HEAD.size))
    wire.check_frame(length)
    data = await reader.readexactly(length)
    wire.check_crc(data, crc)
    return memoryview(data)


def _json(data: memoryview) -> dict[str, Any]:
    try:
        value = json.loads(bytes(data[1:]))
    except ValueError as error:
        raise RemoteProtocolError(f"a member's greeting is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError("a member's greeting is no JSON object")
    return value


async def ask(address: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask a member something, as the command line does. Raises PeerUnreachable."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.writelines(wire.frame(bytes((wire.ADMIN,)) + json.dumps(request).encode()))
            async with asyncio.timeout(ADMIN_S):
                return _json(await read_frame(reader))
        finally:
            writer.close()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, RemoteProtocolError) as error:
        raise PeerUnreachable(address, str(error) or type(error).__name__) from error
