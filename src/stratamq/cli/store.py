"""`stratamq store`: read-only tools for a store directory, ours or RocketMQ's, with or without a broker running on
it."""

from __future__ import annotations

import click

from stratamq.cli.main import Lazy, LazyGroup

COMMANDS = {
    "inspect": Lazy("stratamq.cli.store_inspect:inspect", "Say what is in a store, and in what state it is."),
    "check": Lazy("stratamq.cli.store_check:check", "Compare every checksum and every cross reference."),
    "dump": Lazy("stratamq.cli.store_dump:dump", "Explain one record, unit or entry byte by byte."),
    "clean": Lazy("stratamq.cli.clean:clean", "Delete expired files, or say which and who loses what."),
    "forecast": Lazy("stratamq.cli.clean:forecast", "Say when the disk reaches each mark."),
    "query": Lazy("stratamq.cli.store_query:query", "Find messages by key, id or time."),
}


@click.group(cls=LazyGroup, commands_lazy=COMMANDS)
def store() -> None:
    """Look into a store directory, ours or RocketMQ's. Only clean writes.

    A broker may be running on it: then what is there at the beginning is looked at.
    """
