"""What every process that serves has in common: signals, the ready file, periodic work."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from stratamq.files.durable import replace_file

_log = logging.getLogger(__name__)


class Service(Protocol):
    """Something that is started, serves, and is stopped."""

    async def start(self) -> None:
        """Bring everything up, or take back what was begun and raise."""
        ...

    def ready(self) -> Mapping[str, Any]:
        """What the ready file says: where clients reach it."""
        ...

    async def stop(self) -> None:
        """Take everything down, in order."""
        ...


async def run(
    service: Service,
    *,
    ready_file: Path | None = None,
    ended: asyncio.Event | None = None,
    on_started: Callable[[], None] = lambda: None,
) -> None:
    """Run a service until SIGTERM or SIGINT, or until it has ``ended`` by itself, then stop it in order."""
    wanted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, wanted.set)
    await service.start()
    on_started()
    try:
        if ready_file is not None:
            write_ready_file(ready_file, service.ready())
        await first_of(wanted, *([] if ended is None else [ended]))
    finally:
        if ready_file is not None:
            remove_ready_file(ready_file)
        await service.stop()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def every(seconds: float, work: Callable[[], None]) -> None:
    """Do ``work`` again and again; an error is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except Exception:
            _log.exception("periodic work failed")


def spare_collections() -> None:
    """Let the cyclic collector run less often and look at less.

    Requests in work are many young objects without cycles; at the interpreter's defaults looking through them again
    and again takes a tenth of the time of a send.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def write_ready_file(path: Path, found: Mapping[str, Any]) -> None:
    """Say in one JSON object where clients reach the process. A reader sees the whole file or none."""
    replace_file(str(path), json.dumps(found).encode() + b"\n")


def remove_ready_file(path: Path) -> None:
    """Take the ready file away; clients may no longer connect."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
