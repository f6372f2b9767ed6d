"""``stratamq broker``: without a verb, run a broker that registers with name servers elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from stratamq.cli.main import Lazy, LazyGroup
from stratamq.cli.serve import broker_options, process_options, run, set_up_logging

VERBS: Final[dict[str, Lazy]] = {}


@click.group(cls=LazyGroup, commands_lazy=VERBS, invoke_without_command=True)
@process_options
@click.option(
    "--namesrv",
    "namesrv_addresses",
    help="Name servers to register with: host:port, several joined by semicolons (namesrvAddr in --config).",
)
@broker_options
@click.pass_context
def broker(
    context: click.Context,
    /,
    data_dir: Path | None,
    ready_file: Path | None,
    config_file: Path | None,
    log_level: str,
    **flags: Any,
) -> None:
    """Run a broker without a name server of its own until SIGTERM or Ctrl-C.

    It registers with every name server given, again every 30 seconds and whenever a topic changes, and takes itself
    away when it stops. Clients connect to a name server (stratamq nameserver, or RocketMQ's).
    """
    if context.invoked_subcommand is not None:
        return
    set_up_logging(log_level)
    flags["namesrv_port"] = -1
    run("broker", flags, data_dir=data_dir, ready_file=ready_file, config_file=config_file)
