"""Verbs of ``stratamq broker``: look at running brokers, change their settings, clean them."""

from __future__ import annotations

from typing import Final

import click

from stratamq.cli.admin.client import AdminClient
from stratamq.cli.admin.options import FLAG, admin_command, broker_option, one_target_required, target_options
from stratamq.cli.admin.values import each_entry
from stratamq.cli.output import Item, Kind, Printer
from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.broker_conf import parse_properties


@click.command("status")
@target_options
@admin_command
def status(broker: str | None, cluster: str | None, admin: AdminClient, printer: Printer) -> None:
    """What brokers say of themselves: rates, totals, disk, threads."""
    for address in admin.targets(broker, cluster):
        table = admin.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO).value.get("table") or {}
        printer.facts(address, address, [(Item(name, name), value) for name, value in sorted(table.items())])


@click.command("config")
@target_options
@click.option("-k", "--key", help="Only this setting.")
@admin_command
def config(broker: str | None, cluster: str | None, key: str | None, admin: AdminClient, printer: Printer) -> None:
    """The settings of brokers, under RocketMQ's names."""
    for address in admin.targets(broker, cluster):
        found = settings_of(admin.ask(address, RequestCode.GET_BROKER_CONFIG).body)
        rows = [(Item(name, name), value) for name, value in sorted(found.items()) if key in (None, name)]
        printer.facts(address, address, rows)


def settings_of(body: bytes) -> dict[str, str]:
    """Settings from a properties body. Raises RemoteProtocolError."""
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"settings that are not UTF-8: {error}") from None


@click.command("set")
@one_target_required
@click.option("-k", "--key", required=True, help="Setting, under RocketMQ's name.")
@click.option("-v", "--value", required=True, help="Its new value.")
@click.option("-a", "--updateAllBroker", "everywhere", is_flag=True, help="Accepted for mqadmin's sake.")
@admin_command
def set_config(
    broker: str | None,
    cluster: str | None,
    key: str,
    value: str,
    everywhere: bool,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Change a setting of running brokers."""
    if any(mark in key + value for mark in "\r\n"):
        raise click.UsageError("a setting is one line")
    for address in admin.targets(broker, cluster):
        admin.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())
        printer.remark(f"{key}={value} on {address}")


def _write_perm(code: int, what: str, field: str, broker: str, admin: AdminClient, printer: Printer) -> None:
    for address, answer in zip(admin.namesrv, admin.tell_names(code, {"brokerName": broker}), strict=True):
        printer.remark(f"{address}: {what} {answer.ext.get(field, '0')} topics of {broker}")


@click.command("wipe-write")
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name.")
@admin_command
def wipe_write(broker: str, admin: AdminClient, printer: Printer) -> None:
    """Let name servers say that a broker takes no messages: producers leave it."""
    _write_perm(RequestCode.WIPE_WRITE_PERM_OF_BROKER, "no longer writable:", "wipeTopicCount", broker, admin, printer)


@click.command("add-write")
@click.option("-b", "--brokerName", "broker", required=True, help="Broker name.")
@admin_command
def add_write(broker: str, admin: AdminClient, printer: Printer) -> None:
    """Let name servers say that a broker takes messages again."""
    _write_perm(RequestCode.ADD_WRITE_PERM_OF_BROKER, "writable again:", "addTopicCount", broker, admin, printer)


def _cleaner(code: int, done: str, doc: str) -> click.Command:
    @target_options
    @click.option("-t", "--topic", help="Accepted for mqadmin's sake.")
    @admin_command
    def clean(broker: str | None, cluster: str | None, topic: str | None, admin: AdminClient, printer: Printer) -> None:
        for address in admin.targets(broker, cluster):
            admin.ask(address, code, timeout_s=60)
            printer.remark(f"{address}: {done}")

    return click.command(help=doc)(clean)


clean_queues: Final = _cleaner(
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "expired queue files are deleted",
    "Delete queue files whose messages are gone.",
)
clean_log: Final = _cleaner(
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    "expired log files will be deleted within minutes",
    "Delete expired log files now, whatever the hour.",
)
clean_topics: Final = _cleaner(
    RequestCode.CLEAN_UNUSED_TOPIC,
    "queues of topics that are gone are deleted",
    "Delete what is left of topics that no longer exist.",
)

BEHIND: Final = (
    Item("topic", "topic"),
    Item("group", "group"),
    Item("broker", "broker"),
    Item("queue", "queue", Kind.PLACE),
    Item("broker_offset", "broker offset", Kind.PLACE),
    Item("consumer_offset", "consumer offset", Kind.PLACE),
    Item("behind", "behind", Kind.COUNT),
    Item("last", "last consumed", Kind.TIME),
)


@click.command("consume-stats")
@broker_option
@click.option("-o", "--order", type=FLAG, default=False, help="Only groups that consume in order.")
@click.option("-l", "--level", type=int, default=0, show_default=True, help="Only queues so far behind.")
@click.option("-t", "--timeoutMillis", "timeout_ms", type=int, default=50_000, show_default=True)
@admin_command
def consume_stats(
    broker: str | None, order: bool, level: int, timeout_ms: int, admin: AdminClient, printer: Printer
) -> None:
    """How far every group on a broker has come."""
    for address in admin.targets(broker, None):
        ext = {"isOrder": order}
        value = admin.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, ext, timeout_s=timeout_ms / 1000).value
        rows = []
        for groups in value.get("consumeStatsList") or ():
            for group, stats in groups.items():
                for one in stats:
                    for key, entry in each_entry(one.get("offsetTable")):
                        behind = entry["brokerOffset"] - entry["consumerOffset"]
                        if behind >= level:
                            place = [key["topic"], group, key["brokerName"], key["queueId"]]
                            offsets = [entry["brokerOffset"], entry["consumerOffset"], behind]
                            rows.append([*place, *offsets, entry.get("lastTimestamp") or None])
        printer.table("queues", address, BEHIND, sorted(rows))
        printer.remark(f"{value.get('totalDiff', 0):,} messages behind on {address}")


@click.command("ha")
@broker_option
@click.option("-c", "--clusterName", "cluster", help="The masters of a cluster.")
@click.option("-i", "--interval", type=int, help="Accepted for mqadmin's sake: it is shown once.")
@admin_command
def ha(broker: str | None, cluster: str | None, interval: int | None, admin: AdminClient, printer: Printer) -> None:
    """How far the slaves of a master have come, or a slave itself."""
    columns = [
        Item("slave", "slave"),
        Item("offset", "has", Kind.PLACE),
        Item("behind", "bytes behind", Kind.COUNT),
        Item("in_sync", "in sync"),
        Item("rate", "bytes /s", Kind.COUNT),
    ]
    for address in admin.targets(broker, cluster):
        value = admin.ask(address, RequestCode.GET_BROKER_HA_STATUS).value
        end = value.get("masterCommitLogMaxOffset")
        printer.facts(
            address, address, [(Item("master", "master"), value.get("master")), (Item("end", "log ends at"), end)]
        )
        if value.get("master") is False:
            own = value.get("haClientRuntimeInfo") or {}
            facts = [
                (Item("master_address", "fetches from"), own.get("masterAddr")),
                (Item("offset", "has", Kind.PLACE), own.get("maxOffset")),
                (Item("following", "follows now"), own.get("isActivated")),
            ]
            printer.facts(f"{address} slave", "slave", facts)
            continue
        rows = [
            [
                one.get("addr"),
                one.get("slaveAckOffset"),
                one.get("diff"),
                one.get("inSync"),
                one.get("transferredByteInSecond"),
            ]
            for one in value.get("haConnectionInfo") or ()
        ]
        printer.table(f"{address} slaves", "slaves", columns, rows)
