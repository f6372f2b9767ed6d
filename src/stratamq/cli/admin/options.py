"""Options that many commands share. Short forms are mqadmin's, so that its command lines work as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from stratamq.cli.admin.client import AdminClient
from stratamq.cli.output import output_options

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
Command = Callable[..., Any]


def admin_command(function: Command) -> Command:
    """Give a command ``-n``, ``--timeout`` and ``--output``; it gets an ``admin`` client and a ``printer``."""

    @click.option(
        "-n",
        "--namesrv",
        "--namesrvAddr",
        "namesrv",
        envvar="NAMESRV_ADDR",
        default=DEFAULT_NAMESRV,
        show_default=True,
        help="Name servers, host:port joined by semicolons; also from NAMESRV_ADDR.",
    )
    @click.option("--timeout", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds an answer.")
    @output_options
    @functools.wraps(function)
    def wrapped(*arguments: Any, namesrv: str, timeout: float, quiet: bool, **options: Any) -> Any:
        addresses = [address.strip() for address in namesrv.split(";") if address.strip()]
        with AdminClient(addresses, timeout_s=timeout) as admin:
            return function(*arguments, admin=admin, **options)

    return wrapped


def topic_option(function: Command) -> Command:
    """``-t``, required."""
    return click.option("-t", "--topic", "--topicName", "topic", required=True, help="Topic.")(function)


def group_option(function: Command) -> Command:
    """``-g``, required."""
    return click.option("-g", "--group", "--groupName", "--consumerGroup", "group", required=True, help="Group.")(
        function
    )


def broker_option(function: Command) -> Command:
    """``-b``."""
    return click.option("-b", "--broker", "--brokerAddr", "broker", help="One broker: host:port, or its name.")(
        function
    )


def cluster_option(function: Command) -> Command:
    """``-c``."""
    return click.option("-c", "--cluster", "--clusterName", "cluster", help="The masters of a cluster.")(function)


def target_options(function: Command) -> Command:
    """``-b`` or ``-c``; every broker when neither is given."""
    return broker_option(cluster_option(function))


def one_target_required(function: Command) -> Command:
    """``-b`` or ``-c``, one of them: for commands that change something."""

    @broker_option
    @cluster_option
    @functools.wraps(function)
    def wrapped(*arguments: Any, broker: str | None, cluster: str | None, **options: Any) -> Any:
        if (broker is None) == (cluster is None):
            raise click.UsageError("say where: either -b BROKER or -c CLUSTER")
        return function(*arguments, broker=broker, cluster=cluster, **options)

    return wrapped


class Flag(click.ParamType):  # type: ignore[type-arg]
    """``true`` or ``false`` as mqadmin writes them."""

    name = "true|false"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Read it."""
        if isinstance(value, bool):
            return value
        if str(value).lower() not in ("true", "false"):
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return str(value).lower() == "true"


FLAG: Final = Flag()
