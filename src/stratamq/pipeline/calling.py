"""A small blocking client of remoting for Spark tasks: one connection a peer, several requests under way on it.

Never used by a broker. Answers that nobody has asked for are dropped; what an answer may hold is bounded by the largest
frame (`command.FRAME_BYTES_MAX`), so memory is bounded by that and by how many requests its user has under way.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from stratamq.errors import PeerUnreachable, PipelineError, RemoteProtocolError
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.connection import RemotingConnection
from stratamq.protocols.remoting.headers import text_fields
from stratamq.units import Buffer

RECEIVE_BYTES: Final = 256 * 1024
TIMEOUT_SECONDS: Final = 10.0


class Answer(NamedTuple):
    """What a peer answered."""

    code: int
    remark: str
    header: CommandHeader
    body: Buffer

    def numbers(self, *names: str) -> list[int]:
        """Whole numbers out of the header's fields. Raises RemoteProtocolError."""
        fields = text_fields(self.header)
        try:
            return [int(fields[name]) for name in names]
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"an answer lacks the number {error}; it has {sorted(fields)}") from error


class _Link:
    """A connection, and the answers that arrived on it."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.core = RemotingConnection()
        self.asked: set[int] = set()
        self.answers: dict[int, Answer] = {}

    def receive(self) -> None:
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise ConnectionError("it closed the connection")
        for header, body in self.core.receive_data(chunk):
            if header.is_response and header.opaque in self.asked:
                self.asked.discard(header.opaque)
                self.answers[header.opaque] = Answer(header.code, header.remark or "", header, body)
        if self.core.fault is not None:
            raise self.core.fault


class Calls:
    """Connections to peers, made when they are needed. A context manager; every wait ends after ``timeout_s``."""

    def __init__(self, *, timeout_s: float = TIMEOUT_SECONDS) -> None:
        self._timeout_s = timeout_s
        self._links: dict[str, _Link] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        for address in list(self._links):
            self.drop(address)

    def drop(self, address: str) -> None:
        """End the connection to a peer; what was asked on it stays without answer."""
        link = self._links.pop(address, None)
        if link is not None:
            link.socket.close()

    def call(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Answer:
        """Ask and wait for the answer. A connection that failed is dropped, so the next call makes a new one.

        Raises:
            PeerUnreachable: No answer came. The request may have been carried out.
            RemoteProtocolError: What came is no remoting.
            PipelineError: The address is none.
        """
        return self.answer(address, self.ask(address, code, ext, body))

    def ask(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request, and return the number to wait for its answer by. Raises as `call` does."""
        link = self._links.get(address)
        try:
            if link is None:
                link = self._links[address] = _Link(self._connect(address))
            opaque, frame = link.core.request(code, ext, body)
            link.asked.add(opaque)
            link.socket.sendall(frame)
        except OSError as error:
            self.drop(address)
            raise PeerUnreachable(address, str(error) or type(error).__name__) from error
        return opaque

    def answer(self, address: str, opaque: int) -> Answer:
        """Wait for the answer to a request. Raises as `call` does; then all others on this connection are lost too."""
        link = self._links.get(address)
        try:
            if link is None or (opaque not in link.asked and opaque not in link.answers):
                raise ConnectionError("the connection ended before the answer came")
            while opaque not in link.answers:
                link.receive()
        except OSError as error:
            self.drop(address)
            raise PeerUnreachable(address, str(error) or type(error).__name__) from error
        except RemoteProtocolError:
            self.drop(address)
            raise
        return link.answers.pop(opaque)

    def _connect(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise PipelineError(f"{address!r} is no address; it has to be HOST:PORT")
        link = socket.create_connection((host.strip("[]"), int(port)), self._timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
