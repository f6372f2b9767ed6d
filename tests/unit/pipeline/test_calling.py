"""The small client: several requests under way on a connection, answers in any order, connections that end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.pipeline.calling import Calls
from stratamq.protocols.remoting.codes import FLAG_RESPONSE
from stratamq.protocols.remoting.command import encode_frame
from stratamq.protocols.remoting.connection import RemotingConnection


@contextmanager
def peer(serve: Callable[[socket.socket], None], connections: int = 1) -> Iterator[str]:
    """A peer that serves one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def run() -> None:
            for _ in range(connections):
                link, _ = server.accept()
                with link:
                    serve(link)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(60)
        assert not thread.is_alive()


def answer(opaque: int, body: bytes, **ext: str) -> bytes:
    return encode_frame(code=0, opaque=opaque, flag=FLAG_RESPONSE, ext=ext, body=body)


def receive(link: socket.socket, count: int) -> list[int]:
    """The numbers of the next requests."""
    core, found = RemotingConnection(), []
    while len(found) < count:
        found += [header.opaque for header, _ in core.receive_data(link.recv(65536))]
    return found


def test_answers_come_in_any_order_and_strange_ones_are_dropped():
    def serve(link: socket.socket) -> None:
        first, second, third = receive(link, 3)
        frames = [answer(n, b"%d" % n, offset="7") for n in (99, third, first, second)]
        data = b"".join(frames)
        link.sendall(data[:11])
        link.sendall(data[11:])

    with peer(serve) as address, Calls(timeout_s=60) as calls:
        asked = [calls.ask(address, 11, {}) for _ in range(3)]
        for opaque in asked:
            found = calls.answer(address, opaque)
            assert bytes(found.body) == b"%d" % opaque
            assert found.numbers("offset") == [7]
            with pytest.raises(RemoteProtocolError, match="lacks the number"):
                found.numbers("maxOffset")
        with pytest.raises(PeerUnreachable, match="ended before"):
            calls.answer(address, 99)


def test_a_connection_that_ends_takes_all_its_requests_with_it_and_a_new_one_is_made():
    served: list[int] = []

    def serve(link: socket.socket) -> None:
        served.append(1)
        numbers = receive(link, 2 if len(served) == 1 else 1)
        if len(served) == 2:
            link.sendall(answer(numbers[0], b"x"))

    with peer(serve, connections=2) as address, Calls(timeout_s=60) as calls:
        asked = [calls.ask(address, 11, {}) for _ in range(2)]
        for opaque in asked:
            with pytest.raises(PeerUnreachable):
                calls.answer(address, opaque)
        assert bytes(calls.call(address, 11, {}).body) == b"x"


def test_a_peer_that_says_nothing_is_given_up():
    done = threading.Event()

    def serve(link: socket.socket) -> None:
        done.wait(60)

    with peer(serve) as address, Calls(timeout_s=0.05) as calls:
        with pytest.raises(PeerUnreachable, match="timed out"):
            calls.call(address, 11, {})
        done.set()
