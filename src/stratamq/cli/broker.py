"""``stratamq broker``: without a verb, run a broker; with one, look at running brokers and change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from stratamq.cli.main import Lazy, LazyGroup
from stratamq.cli.member import run_member
from stratamq.cli.serve import broker_options, process_options, run, set_up_logging

_PLACE: Final = "stratamq.cli.admin.broker"
VERBS: Final = {
    "status": Lazy(f"{_PLACE}:status", "What brokers say of themselves."),
    "config": Lazy(f"{_PLACE}:config", "The settings of brokers."),
    "set": Lazy(f"{_PLACE}:set_config", "Change a setting of running brokers."),
    "wipe-write": Lazy(f"{_PLACE}:wipe_write", "Let producers leave a broker."),
    "add-write": Lazy(f"{_PLACE}:add_write", "Let producers come back."),
    "clean-queues": Lazy(f"{_PLACE}:clean_queues", "Delete queue files whose messages are gone."),
    "clean-log": Lazy(f"{_PLACE}:clean_log", "Delete expired log files now."),
    "clean-topics": Lazy(f"{_PLACE}:clean_topics", "Delete what is left of topics that are gone."),
    "consume-stats": Lazy(f"{_PLACE}:consume_stats", "How far every group on a broker has come."),
    "ha": Lazy(f"{_PLACE}:ha", "How far the slaves of a master have come."),
}


@click.group(cls=LazyGroup, commands_lazy=VERBS, invoke_without_command=True)
@process_options
@click.option(
    "--namesrv",
    "namesrv_addresses",
    help="Name servers to register with: host:port, several joined by semicolons (namesrvAddr in --config).",
)
@broker_options
@click.option("--group", help="Be a member of this replication group; it is the broker's name to clients.")
@click.option("--node", help="Which of the group's members this is.")
@click.option("--peers", help="All members: n1=host:port,n2=host:port,n3=host:port, ports of their own.")
@click.pass_context
def broker(
    context: click.Context,
    /,
    data_dir: Path | None,
    ready_file: Path | None,
    config_file: Path | None,
    log_level: str,
    group: str | None,
    node: str | None,
    peers: str | None,
    **flags: Any,
) -> None:
    """Run a broker without a name server of its own until SIGTERM or Ctrl-C.

    It registers with every name server given, again every 30 seconds and whenever a topic changes, and takes itself
    away when it stops. Clients connect to a name server (stratamq nameserver, or RocketMQ's).

    With --group, --node and --peers it is a member of a group that elects its leader; the leader serves.
    """
    if context.invoked_subcommand is not None:
        return
    set_up_logging(log_level)
    flags["namesrv_port"] = -1
    if group or node or peers:
        run_member(group, node, peers, flags, data_dir=data_dir, ready_file=ready_file, config_file=config_file)
        return
    run("broker", flags, data_dir=data_dir, ready_file=ready_file, config_file=config_file)
