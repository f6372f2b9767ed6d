"""Loopback ports for processes that must be told theirs, or keep it over a restart.

They lie below the range from which the system gives ports to outgoing connections (from 32768 on Linux): between the
look and the use, none of those can take one. Where a process can bind port 0 itself, that is better still.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence

LOWEST, HIGHEST = 12_000, 32_000
TRIES = 500
_given: set[int] = set()
_random = random.SystemRandom()


def free_ports(count: int = 1, offsets: Sequence[int] = (0,)) -> list[int]:
    """So many ports, each free at all ``offsets`` from it, and none given out before by this process. OSError: none."""
    found: list[int] = []
    for _ in range(TRIES):
        port = _random.randint(LOWEST, HIGHEST)
        wanted = {port + offset for offset in offsets}
        if not wanted & _given and _are_free(wanted):
            _given.update(wanted)
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports on the loopback address")


def _are_free(ports: set[int]) -> bool:
    with contextlib.ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
