"""``stratamq offset``: move what consumer groups have consumed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from stratamq.cli.admin.client import AdminClient
from stratamq.cli.admin.options import FLAG, admin_command, broker_option, cluster_option, group_option, topic_option
from stratamq.cli.admin.values import each_entry
from stratamq.cli.output import Item, Kind, Printer
from stratamq.cli.store_query import Time
from stratamq.errors import InvalidArgument
from stratamq.protocols.remoting.codes import RequestCode

RESULT: Final = (
    Item("broker", "broker"),
    Item("queue", "queue", Kind.PLACE),
    Item("offset", "offset", Kind.PLACE),
)
_MQADMIN_TIME: Final = "%Y-%m-%d#%H:%M:%S:%f"


class ResetTime(Time):
    """``now`` (the end), ``-1`` (the end), or a time; mqadmin's form ``2026-11-21#03:34:12:000`` is local time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds, or -1 for the end."""
        text = str(value)
        if text in ("now", "-1", "currentTimeMillis"):
            return -1
        if "#" in text:
            try:
                return round(datetime.strptime(text, _MQADMIN_TIME).astimezone().timestamp() * 1000)
            except ValueError:
                self.fail(f"{text!r} is not of the form 2026-11-21#03:34:12:000", param, ctx)
        return super().convert(value, param, ctx)


@click.group()
def offset() -> None:
    """Offsets of consumer groups: reset, skip, copy."""


@offset.command("reset")
@group_option
@topic_option
@click.option("-s", "--timestamp", "when", type=ResetTime(), required=True, help="Time to go back to, or now.")
@click.option("-f", "--force", type=FLAG, default=True, help="Also forwards.")
@click.option("-c", "--cplus", is_flag=True, help="Accepted for mqadmin's sake.")
@broker_option
@click.option("-q", "--queue", "queue", type=click.IntRange(0), help="Only this queue; with -b.")
@click.option("-o", "--offset", "to", type=click.IntRange(0), help="To this offset; with -q and -b.")
@admin_command
def reset(
    group: str,
    topic: str,
    when: int,
    force: bool,
    cplus: bool,
    broker: str | None,
    queue: int | None,
    to: int | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Set a group back (or forwards) to a time, on every broker that holds the topic."""
    if (queue is not None and broker is None) or (to is not None and queue is None):
        raise click.UsageError("-q goes with -b, and -o with -q")
    _reset(admin, printer, group=group, topic=topic, when=when, force=force, broker=broker, queue=queue, to=to)


def _reset(
    admin: AdminClient,
    printer: Printer,
    *,
    group: str,
    topic: str,
    when: int,
    force: bool,
    broker: str | None = None,
    queue: int | None = None,
    to: int | None = None,
) -> None:
    addresses = admin.targets(broker, None) if broker else [one.address for one in admin.route(topic).brokers]
    rows = []
    for address in addresses:
        ext = {
            "topic": topic,
            "group": group,
            "timestamp": when,
            "isForce": force,
            "queueId": -1 if queue is None else queue,
        }
        answer = admin.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**ext, "offset": to})
        entries = each_entry(answer.value.get("offsetTable")) if answer.body else ()
        rows += [[key["brokerName"], key["queueId"], value] for key, value in entries]
    printer.table("offsets", f"{group} on {topic}", RESULT, sorted(rows))
    if not rows:
        printer.remark(f"no queue of {topic} was changed for {group}")


@offset.command("skip")
@group_option
@topic_option
@cluster_option
@click.option("-f", "--force", type=FLAG, default=True, help="Accepted for mqadmin's sake.")
@admin_command
def skip(group: str, topic: str, cluster: str | None, force: bool, admin: AdminClient, printer: Printer) -> None:
    """Leave the backlog of a group unread: go on with what comes from now on."""
    _reset(admin, printer, group=group, topic=topic, when=-1, force=force)


@offset.command("clone")
@click.option("-s", "--srcGroup", "source", required=True, help="Group to copy from.")
@click.option("-d", "--destGroup", "target", required=True, help="Group to copy to; it must not be connected.")
@topic_option
@click.option("-o", "--offline", type=FLAG, default=True, help="Accepted for mqadmin's sake.")
@admin_command
def clone(source: str, target: str, topic: str, offline: bool, admin: AdminClient, printer: Printer) -> None:
    """Give one group the offsets of another."""
    if source == target:
        raise InvalidArgument(f"source and target are both {source}")
    for broker in admin.route(topic).brokers:
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": offline}
        admin.ask(broker.address, RequestCode.CLONE_GROUP_OFFSET, ext)
        printer.remark(f"offsets of {source} on {topic} copied to {target} on {broker.name}")
