"""A TCP proxy in threads whose links can be cut, or fall silent."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to one address. Stop it with `close`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_cut = False
        self._is_closed = False
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def _spawn(self, call: object, *arguments: object) -> None:
        thread = threading.Thread(target=call, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut or self._is_closed:
                near.close()
                continue
            try:
                far = socket.create_connection(self._target, 2)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            self._spawn(self._forward, near, far)
            self._spawn(self._forward, far, near)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                sink.sendall(data)
        self._drop({source, sink})

    def _drop(self, sockets: set[socket.socket]) -> None:
        with self._lock:
            self._sockets -= sockets
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def cut(self) -> None:
        """Nothing passes any more: what is under way is lost, connections end, new ones are refused."""
        self._is_cut = True
        self._drop(set(self._sockets))

    def hold(self) -> None:
        """Nothing passes any more, and nobody is told: connections stay, and go on where they were when healed."""
        self._passes.clear()

    def heal(self) -> None:
        """Everything passes again."""
        self._is_cut = False
        self._passes.set()

    def close(self) -> None:
        """End everything."""
        self._is_closed = True
        self._passes.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop(set(self._sockets))
        for thread in self._threads:
            thread.join(5)
