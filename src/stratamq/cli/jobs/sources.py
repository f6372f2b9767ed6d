"""Options that say where a job reads messages: a store directory, a broker, a cold tier, or these joined."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stratamq.cli.store_query import Time


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what names its source; it gets ``source``, options of the source ``stratamq`` by their names."""

    @click.option("--store", type=click.Path(path_type=Path), help="Read a store directory; a broker may be running.")
    @click.option("--from-namesrv", metavar="HOST:PORT", help="Read a broker over the network.")
    @click.option("--tier", help="Read the cold tier at this URL: alone, or behind --store or --from-namesrv.")
    @click.option("--broker", help="The broker to read, or whose part of the tier.")
    @click.option("--topics", help="Topics, separated by commas.  [default: all]")
    @click.option("--topic-pattern", help="Regular expression that a whole topic name must match.")
    @click.option("--from", "from_ms", type=Time(), help="Stored at or after: ISO 8601 (UTC) or milliseconds.")
    @click.option("--to", "until_ms", type=Time(), help="Stored before.")
    @click.option("--skip-lost", is_flag=True, help="Go on where messages are gone, and count them.")
    @functools.wraps(command)
    def wrapped(
        store: Path | None,
        from_namesrv: str | None,
        tier: str | None,
        broker: str | None,
        topics: str | None,
        topic_pattern: str | None,
        from_ms: int | None,
        until_ms: int | None,
        skip_lost: bool,
        **options: Any,
    ) -> Any:
        given = {
            "path": None if store is None else str(store.absolute()),
            "namesrv": from_namesrv,
            "tier": tier,
            "broker": broker,
            "topics": topics,
            "subscribePattern": topic_pattern,
            "startingTimestamp": None if from_ms is None else str(from_ms),
            "endingTimestamp": None if until_ms is None else str(until_ms),
            "failOnDataLoss": "false" if skip_lost else "true",
        }
        return command(source={name: value for name, value in given.items() if value is not None}, **options)

    return wrapped
