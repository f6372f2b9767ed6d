"""Ports and addresses: bind early with a clear error, find the address that clients can reach."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from stratamq.errors import StrataError

ANY_ADDRESS = "0.0.0.0"


class PortUnusable(StrataError):
    """A port cannot be listened on. Fields: host, port, the flag that sets it, and why not."""

    def __init__(self, host: str, port: int, flag: str, cause: OSError) -> None:
        super().__init__(host, port, flag, cause)
        self.host = host
        self.port = port
        self.flag = flag
        self.cause = cause

    def __str__(self) -> str:
        if self.cause.errno == errno.EADDRINUSE:
            return (
                f"port {self.port} on {self.host} is in use by another program; stop that one, "
                f"or give another port with {self.flag} (0 picks a free one)"
            )
        if self.cause.errno == errno.EADDRNOTAVAIL:
            return f"{self.host} is no address of this machine; give one with --host (0.0.0.0 means all)"
        return f"cannot listen on {self.host}:{self.port} ({self.flag}): {self.cause.strerror or self.cause}"


def bind(host: str, port: int, flag: str, *, listen: bool = False) -> socket.socket:
    """A TCP socket that holds a port but does not listen yet. Raises PortUnusable.

    Two programs may both bind a port on which neither listens, and the later one then fails to listen. ``listen``
    settles that here, for a port that the caller can do without; connections wait until somebody accepts them.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
        if listen:
            sock.listen()
    except OSError as error:
        sock.close()
        raise PortUnusable(host, port, flag, error) from error
    return sock


def port_of(sock: socket.socket) -> int:
    """The port a socket is bound to."""
    port: int = sock.getsockname()[1]
    return port


def advertised_host(listen_host: str, configured: str) -> str:
    """The address to tell clients: what is configured, else what is listened on, else this machine's own.

    Nothing is sent to find the latter: the system is only asked which of its addresses leads out.
    """
    if configured:
        return configured
    if listen_host != ANY_ADDRESS:
        return listen_host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        if address != ANY_ADDRESS:
            return address
    return "127.0.0.1"


def raise_file_limit() -> int:
    """Let this process open as many files and sockets as it may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft
