"""The other side of remoting: one connection to a name server or a broker, over which we ask.

Requests may be pipelined; each answer finds its request by number. When the connection ends, everybody who still waits
is told so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.protocols.remoting.command import FRAME_BYTES_MAX, CommandHeader
from stratamq.protocols.remoting.connection import RemotingConnection
from stratamq.units import KiB

CONNECT_TIMEOUT_S: Final = 3.0
"""RocketMQ's clients wait as long."""
RECEIVE_BYTES: Final = 256 * KiB
Reply = tuple[CommandHeader, bytes]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``. Raises RemoteProtocolError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RemoteProtocolError(f"{address!r} is no address; write it as host:port, such as 127.0.0.1:9876")
    return host, int(port)


class RemotingClient:
    """One connection to a remoting port. Made by `connect`."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._core = RemotingConnection(frame_bytes_max=limit)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._end: str | None = None
        self._task = asyncio.create_task(self._receive())

    @classmethod
    async def connect(
        cls, address: str, *, timeout_s: float = CONNECT_TIMEOUT_S, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> Self:
        """Connect to ``host:port``. Raises PeerUnreachable, RemoteProtocolError for what is no address."""
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise PeerUnreachable(address, f"no connection within {timeout_s:g} s") from None
        except OSError as error:
            raise PeerUnreachable(address, error.strerror or str(error)) from error
        return cls(address, reader, writer, frame_bytes_max)

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._end is not None

    async def request(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_s: float = 10.0
    ) -> Reply:
        """Ask and wait for the answer, whatever its code. Raises PeerUnreachable."""
        if self._end is not None:
            raise PeerUnreachable(self.address, self._end)
        opaque, frame = self._core.request(code, ext or {}, body)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = future
        self._writer.write(frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise PeerUnreachable(self.address, f"no answer to request {code} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(opaque, None)

    async def _receive(self) -> None:
        reason = "the connection was closed"
        try:
            while data := await self._reader.read(RECEIVE_BYTES):
                for header, body in self._core.receive_data(data):
                    future = self._waiting.get(header.opaque) if header.is_response else None
                    if future is not None and not future.done():
                        future.set_result((header, bytes(body)))
                if self._core.fault is not None:
                    reason = str(self._core.fault)
                    break
        except OSError as error:
            reason = error.strerror or str(error)
        finally:
            self._end = reason
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(PeerUnreachable(self.address, reason))
            self._writer.close()

    async def closed(self) -> None:
        """Wait until the connection has ended."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
