"""``stratamq cluster``: brokers and name servers together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from stratamq.cli.admin.broker import settings_of
from stratamq.cli.admin.client import AdminClient
from stratamq.cli.admin.message import SENT, send_one
from stratamq.cli.admin.options import admin_command, cluster_option
from stratamq.cli.output import Item, Kind, Printer
from stratamq.errors import PeerUnreachable
from stratamq.protocols.remoting.codes import RequestCode

CLUSTER: Final = (
    Item("cluster", "cluster"),
    Item("broker", "broker"),
    Item("broker_id", "id"),
    Item("address", "address"),
    Item("version", "version"),
    Item("in_tps", "in /s"),
    Item("out_tps", "out /s"),
    Item("in_today", "in today", Kind.COUNT),
    Item("out_today", "out today", Kind.COUNT),
    Item("disk", "disk used"),
    Item("alive", "answers"),
)


@click.group()
def cluster() -> None:
    """Brokers and name servers of a running cluster."""


@cluster.command("list")
@cluster_option
@click.option("-m", "--moreStats", "more", is_flag=True, help="Accepted for mqadmin's sake: all is shown.")
@click.option("-i", "--interval", type=int, help="Accepted for mqadmin's sake: it is shown once.")
@admin_command
def list_brokers(cluster: str | None, more: bool, interval: int | None, admin: AdminClient, printer: Printer) -> None:
    """Every broker with its address and how busy it is."""
    rows = []
    for broker in admin.brokers():
        if cluster not in (None, broker.cluster):
            continue
        for number, address in sorted(broker.addresses.items(), key=lambda pair: int(pair[0])):
            rows.append([broker.cluster, broker.name, int(number), address, *_load(admin, address)])
    printer.table("brokers", "", CLUSTER, rows)


def _load(admin: AdminClient, address: str) -> list[Any]:
    try:
        table = admin.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=5).value.get("table") or {}
    except PeerUnreachable:
        return [None] * 6 + [False]
    rates = [(table.get(name) or "0").split(" ")[0] for name in ("putTps", "getTransferredTps")]
    today = [
        int(table.get(f"msg{what}TotalTodayNow") or 0) - int(table.get(f"msg{what}TotalTodayMorning") or 0)
        for what in ("Put", "Get")
    ]
    return [table.get("brokerVersionDesc"), *rates, *today, table.get("commitLogDiskRatio"), True]


@cluster.command("send-times")
@cluster_option
@click.option("-a", "--amount", type=click.IntRange(1), default=100, show_default=True, help="Messages a broker.")
@click.option("-s", "--size", type=click.IntRange(1), default=1024, show_default=True)
@click.option("-i", "--interval", type=int, help="Accepted for mqadmin's sake: it runs once.")
@click.option("-p", "--printLog", "log", help="Accepted for mqadmin's sake.")
@click.option("-m", "--machineRoom", "room", help="Accepted for mqadmin's sake.")
@admin_command
def send_times(
    cluster: str | None,
    amount: int,
    size: int,
    interval: int | None,
    log: str | None,
    room: str | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """How long sends to each broker's own topic take on average."""
    column = len(SENT) - 1
    columns = [Item("broker", "broker"), Item("messages", "messages", Kind.COUNT), Item("ms", "ms each")]
    rows = []
    for broker in admin.brokers():
        if cluster in (None, broker.cluster):
            sent = [send_one(admin, broker.name, bytes(size), "", broker.name, None) for _ in range(amount)]
            rows.append([broker.name, amount, round(sum(float(str(row[column])) for row in sent) / amount, 2)])
    printer.table("brokers", "", columns, rows)


@cluster.command("namesrv-config")
@click.option("-k", "--key", help="Only this setting.")
@admin_command
def namesrv_config(key: str | None, admin: AdminClient, printer: Printer) -> None:
    """The settings of every name server."""
    for address in admin.namesrv:
        found = settings_of(admin.ask(address, RequestCode.GET_NAMESRV_CONFIG).body)
        items = [(Item(name, name), value) for name, value in sorted(found.items()) if key in (None, name)]
        printer.facts(address, address, items)


@cluster.command("set-namesrv")
@click.option("-k", "--key", required=True)
@click.option("-v", "--value", required=True)
@admin_command
def set_namesrv(key: str, value: str, admin: AdminClient, printer: Printer) -> None:
    """Change a setting of every name server."""
    if any(mark in key + value for mark in "\r\n"):
        raise click.UsageError("a setting is one line")
    admin.tell_names(RequestCode.UPDATE_NAMESRV_CONFIG, body=f"{key}={value}\n".encode())
    printer.remark(f"{key}={value} on {', '.join(admin.namesrv)}")


@cluster.command("set-kv")
@click.option("-s", "--namespace", required=True)
@click.option("-k", "--key", required=True)
@click.option("-v", "--value", required=True)
@admin_command
def set_kv(namespace: str, key: str, value: str, admin: AdminClient, printer: Printer) -> None:
    """Put a key-value setting into every name server."""
    admin.tell_names(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})
    printer.remark(f"{namespace}/{key}={value}")


@cluster.command("delete-kv")
@click.option("-s", "--namespace", required=True)
@click.option("-k", "--key", required=True)
@admin_command
def delete_kv(namespace: str, key: str, admin: AdminClient, printer: Printer) -> None:
    """Take a key-value setting out of every name server."""
    admin.tell_names(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})
    printer.remark(f"{namespace}/{key} deleted")


export_options = click.option(
    "-f", "--filePath", "path", type=click.Path(path_type=Path, file_okay=False), default=Path("export"),
    show_default=True, help="Folder to write to.",
)  # fmt: skip


@cluster.command("export-metadata")
@click.option("-c", "--cluster", "--clusterName", "cluster", required=True, help="Which one.")
@export_options
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Only topics.")
@click.option("-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Only groups.")
@admin_command
def export_metadata(
    cluster: str, path: Path, only_topics: bool, only_groups: bool, admin: AdminClient, printer: Printer
) -> None:
    """Write the topics and groups of a cluster to metadata.json."""
    topics: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for address in admin.targets(None, cluster):
        if not only_groups:
            topics |= admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG).value.get("topicConfigTable") or {}
        if not only_topics:
            value = admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).value
            groups |= value.get("subscriptionGroupTable") or {}
    _write(path / "metadata.json", {"topicConfigTable": topics, "subscriptionGroupTable": groups}, printer)


@cluster.command("export-configs")
@click.option("-c", "--cluster", "--clusterName", "cluster", required=True, help="Which one.")
@export_options
@admin_command
def export_configs(cluster: str, path: Path, admin: AdminClient, printer: Printer) -> None:
    """Write the settings of a cluster's brokers to configs.json."""
    brokers = {
        broker.name: settings_of(admin.ask(broker.address, RequestCode.GET_BROKER_CONFIG).body)
        for broker in admin.brokers()
        if broker.cluster == cluster
    }
    _write(path / "configs.json", {"brokerConfigs": brokers, "nameServers": admin.namesrv}, printer)


@cluster.command("export-metrics")
@click.option("-c", "--cluster", "--clusterName", "cluster", required=True, help="Which one.")
@export_options
@admin_command
def export_metrics(cluster: str, path: Path, admin: AdminClient, printer: Printer) -> None:
    """Write what a cluster's brokers say of themselves to metrics.json."""
    brokers = {
        broker.name: admin.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO).value.get("table") or {}
        for broker in admin.brokers()
        if broker.cluster == cluster
    }
    _write(path / "metrics.json", {"evaluateReport": brokers}, printer)


def _write(path: Path, document: dict[str, Any], printer: Printer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    printer.remark(f"written to {path}")
