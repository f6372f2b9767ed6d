"""`stratamq queue-store`: read-only tools for the store of AMQP's durable queues, with or without a broker running on
it."""

from __future__ import annotations

import click

from stratamq.cli.main import Lazy, LazyGroup

COMMANDS = {
    "inspect": Lazy("stratamq.cli.queue_store_inspect:inspect", "Say what is in a queue store, queue by queue."),
    "check": Lazy("stratamq.cli.queue_store_check:check", "Compare every checksum and every reference."),
}


@click.group("queue-store", cls=LazyGroup, commands_lazy=COMMANDS)
def queue_store() -> None:
    """Look into the store of AMQP's durable queues. Changes nothing.

    DIRECTORY is a broker's data directory, its amqp directory, or the queue store itself.
    """
