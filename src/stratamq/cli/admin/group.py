"""``stratamq group``: consumer groups (and producers) of a running cluster."""

from __future__ import annotations

from typing import Any, Final

import click

from stratamq.cli.admin.client import AdminClient
from stratamq.cli.admin.options import (
    FLAG,
    admin_command,
    broker_option,
    cluster_option,
    group_option,
    one_target_required,
    target_options,
    topic_option,
)
from stratamq.cli.admin.values import each_entry
from stratamq.cli.output import Item, Kind, Printer
from stratamq.errors import NothingFound, PeerRefused
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode

NOT_ONLINE: Final = 206
RETRY_PREFIX: Final = "%RETRY%"


@click.group()
def group() -> None:
    """Consumer groups of a running cluster: list, progress, members, settings."""


GROUPS: Final = (
    Item("broker", "broker"),
    Item("group", "group"),
    Item("consume", "may consume"),
    Item("broadcast", "may broadcast"),
    Item("orderly", "orderly"),
    Item("retry_queues", "retry queues", Kind.COUNT),
    Item("retry_max", "retries", Kind.COUNT),
)


@group.command("list")
@target_options
@admin_command
def list_groups(broker: str | None, cluster: str | None, admin: AdminClient, printer: Printer) -> None:
    """All groups with their settings."""
    rows = []
    for address in admin.targets(broker, cluster):
        table = admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).value
        for name, one in sorted((table.get("subscriptionGroupTable") or {}).items()):
            rows.append([address, name, *_settings(one)])
    printer.table("groups", "", GROUPS, rows)


def _settings(one: dict[str, Any]) -> list[Any]:
    names = ("consumeEnable", "consumeBroadcastEnable", "consumeMessageOrderly", "retryQueueNums", "retryMaxTimes")
    return [one.get(name) for name in names]


@group.command("show")
@group_option
@admin_command
def show(group: str, admin: AdminClient, printer: Printer) -> None:
    """The settings of one group on every broker that has it."""
    found = 0
    for broker in admin.brokers():
        table = admin.ask(broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).value
        one = (table.get("subscriptionGroupTable") or {}).get(group)
        if one is not None:
            found += 1
            items = [(Item(name, name), value) for name, value in sorted(one.items())]
            printer.facts(broker.name, f"{group} on {broker.name} ({broker.address})", items)
    if not found:
        raise NothingFound(f"no broker has a group {group}")


@group.command("update")
@group_option
@one_target_required
@click.option("-s", "--consumeEnable", "consume", type=FLAG, default=True)
@click.option("-m", "--consumeFromMinEnable", "from_min", type=FLAG, default=False)
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=FLAG, default=False)
@click.option("-o", "--consumeMessageOrderly", "orderly", type=FLAG, default=False)
@click.option("-q", "--retryQueueNums", "retry_queues", type=click.IntRange(0), default=1, show_default=True)
@click.option("-r", "--retryMaxTimes", "retry_max", type=click.IntRange(-1), default=16, show_default=True)
@click.option("-i", "--brokerId", "broker_id", type=click.IntRange(0), default=0, show_default=True)
@click.option("-w", "--whichBrokerWhenConsumeSlowly", "slow_broker", type=click.IntRange(0), default=1)
@click.option("-a", "--notifyConsumerIdsChanged", "notify", type=FLAG, default=True)
@admin_command
def update(
    group: str,
    broker: str | None,
    cluster: str | None,
    consume: bool,
    from_min: bool,
    broadcast: bool,
    orderly: bool,
    retry_queues: int,
    retry_max: int,
    broker_id: int,
    slow_broker: int,
    notify: bool,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Make a group, or change one. What is not given gets mqadmin's default, as with mqadmin."""
    config = {
        "groupName": group,
        "consumeEnable": consume,
        "consumeFromMinEnable": from_min,
        "consumeBroadcastEnable": broadcast,
        "consumeMessageOrderly": orderly,
        "retryQueueNums": retry_queues,
        "retryMaxTimes": retry_max,
        "brokerId": broker_id,
        "whichBrokerWhenConsumeSlowly": slow_broker,
        "notifyConsumerIdsChangedEnable": notify,
    }
    for address in admin.targets(broker, cluster):
        admin.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dump(config).encode())
        printer.remark(f"group {group} set on {address}")


@group.command("delete")
@group_option
@one_target_required
@click.option("-r", "--removeOffset", "remove_offset", type=FLAG, default=False, help="Its offsets too.")
@admin_command
def delete(
    group: str, broker: str | None, cluster: str | None, remove_offset: bool, admin: AdminClient, printer: Printer
) -> None:
    """Delete a group."""
    for address in admin.targets(broker, cluster):
        ext = {"groupName": group, "cleanOffset": remove_offset}
        admin.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
        printer.remark(f"group {group} deleted on {address}")


PROGRESS: Final = (
    Item("topic", "topic"),
    Item("broker", "broker"),
    Item("queue", "queue", Kind.PLACE),
    Item("broker_offset", "broker offset", Kind.PLACE),
    Item("consumer_offset", "consumer offset", Kind.PLACE),
    Item("behind", "behind", Kind.COUNT),
    Item("last", "last consumed", Kind.TIME),
)
SUMMARY: Final = (
    Item("group", "group"),
    Item("members", "members", Kind.COUNT),
    Item("model", "model"),
    Item("behind", "behind", Kind.COUNT),
    Item("tps", "out /s"),
)


@group.command("progress")
@click.option("-g", "--group", "--groupName", "group", help="Only this one, queue by queue.")
@click.option("-t", "--topic", "--topicName", "topic", help="Only its queues of this topic.")
@click.option("-s", "--showClientIP", "show_clients", is_flag=True, help="Accepted for mqadmin's sake.")
@cluster_option
@admin_command
def progress(
    group: str | None, topic: str | None, show_clients: bool, cluster: str | None, admin: AdminClient, printer: Printer
) -> None:
    """How far consumer groups have come: all in a line each, or one queue by queue."""
    if group is None:
        rows = [_summary(admin, name) for name in _group_names(admin, cluster)]
        printer.table("groups", "", SUMMARY, [row for row in rows if row is not None])
        return
    rows_found = sorted(_progress(admin, group, topic))
    if not rows_found:
        raise NothingFound(f"group {group} has consumed nothing" + (f" of topic {topic}" if topic else ""))
    printer.table("queues", "", PROGRESS, rows_found)
    printer.remark(f"{sum(row[5] for row in rows_found):,} messages behind")


def _group_names(admin: AdminClient, cluster: str | None) -> list[str]:
    names = admin.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).value.get("topicList") or ()
    return sorted(name[len(RETRY_PREFIX) :] for name in names if name.startswith(RETRY_PREFIX))


def _summary(admin: AdminClient, group: str) -> list[Any] | None:
    route = admin.find_route(RETRY_PREFIX + group)
    if route is None:
        return None
    members, model = 0, None
    for broker in route.brokers:
        answer = admin.call(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        if answer.code == 0:
            members = max(members, len(answer.value.get("connectionSet") or ()))
            model = answer.value.get("messageModel")
    behind, tps = 0, 0.0
    for broker in route.brokers:
        answer = admin.call(broker.address, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
        if answer.code == 0:
            tps += float(answer.value.get("consumeTps") or 0)
            entries = each_entry(answer.value.get("offsetTable"))
            behind += sum(max(0, one["brokerOffset"] - one["consumerOffset"]) for _, one in entries)
    return [group, members, model, behind, round(tps, 2)]


def _progress(admin: AdminClient, group: str, topic: str | None) -> list[list[Any]]:
    rows = []
    route = admin.find_route(RETRY_PREFIX + group)
    brokers = route.brokers if route is not None else admin.brokers()
    for broker in brokers:
        ext = {"consumerGroup": group, "topic": topic}
        answer = admin.call(broker.address, RequestCode.GET_CONSUME_STATS, ext)
        if answer.code != 0:
            continue
        for key, one in each_entry(answer.value.get("offsetTable")):
            behind = max(0, one["brokerOffset"] - one["consumerOffset"])
            last = one.get("lastTimestamp") or None
            queue = [key["topic"], key["brokerName"], key["queueId"]]
            rows.append([*queue, one["brokerOffset"], one["consumerOffset"], behind, last])
    return rows


CONNECTION: Final = (
    Item("client", "client id"),
    Item("address", "address"),
    Item("language", "language"),
    Item("version", "version"),
)


@group.command("connections")
@group_option
@broker_option
@admin_command
def connections(group: str, broker: str | None, admin: AdminClient, printer: Printer) -> None:
    """Who consumes as this group, and what they subscribe to."""
    refused: PeerRefused | None = None
    for address in admin.targets(broker, None):
        try:
            value = admin.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}).value
        except PeerRefused as error:
            if error.code != NOT_ONLINE:
                raise
            refused = error
            continue
        printer.table("connections", f"{group} on {address}", CONNECTION, _connections(value))
        columns = [Item("topic", "topic"), Item("expression", "expression"), Item("type", "type")]
        table = value.get("subscriptionTable") or {}
        rows = [[name, one.get("subString"), one.get("expressionType")] for name, one in sorted(table.items())]
        printer.table("subscriptions", "subscriptions", columns, rows)
        names = ("consumeType", "messageModel", "consumeFromWhere")
        printer.facts("group", "", [(Item(name, name), value.get(name)) for name in names])
        return
    raise NothingFound(f"nobody consumes as group {group}") from refused


def _connections(value: Any) -> list[list[Any]]:
    found = value.get("connectionSet") or ()
    return sorted(
        [one.get("clientId"), one.get("clientAddr"), one.get("language"), one.get("version")] for one in found
    )


@group.command("producers")
@click.option("-g", "--group", "--producerGroup", "group", required=True, help="Producer group.")
@click.option("-t", "--topic", required=True, help="Topic that they send to.")
@admin_command
def producers(group: str, topic: str, admin: AdminClient, printer: Printer) -> None:
    """Who sends as this producer group."""
    for broker in admin.route(topic).brokers:
        answer = admin.call(broker.address, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
        if answer.code == 0:
            printer.table("connections", f"{group} on {broker.name}", CONNECTION, _connections(answer.value))
            return
    raise NothingFound(f"nobody sends to {topic} as group {group}")


@group.command("all-producers")
@broker_option
@admin_command
def all_producers(broker: str | None, admin: AdminClient, printer: Printer) -> None:
    """Every producer that a broker knows."""
    columns = [Item("group", "group"), *CONNECTION, Item("updated", "last heard", Kind.TIME)]
    rows = []
    for address in admin.targets(broker, None):
        for name, members in sorted(
            (admin.ask(address, RequestCode.GET_ALL_PRODUCER_INFO).value["data"] or {}).items()
        ):
            for one in members:
                who = [one.get(key) for key in ("clientId", "remoteIP", "language", "version", "lastUpdateTimestamp")]
                rows.append([name, *who])
    printer.table("producers", "", columns, rows)


@group.command("status")
@group_option
@broker_option
@click.option("-i", "--clientId", "client", help="Only this member.")
@click.option("-s", "--jstack", "with_stack", is_flag=True, help="With the stacks of its threads.")
@admin_command
def status(
    group: str, broker: str | None, client: str | None, with_stack: bool, admin: AdminClient, printer: Printer
) -> None:
    """What the members of a group say of themselves: settings, queues, rates."""
    found = 0
    for address in admin.targets(broker, None):
        answer = admin.call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        for one in (answer.value.get("connectionSet") or ()) if answer.code == 0 else ():
            name = one["clientId"]
            if client not in (None, name):
                continue
            ext = {"consumerGroup": group, "clientId": name, "jstackEnable": with_stack}
            value = admin.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext, timeout_s=15).value
            _print_member(name, value, printer)
            found += 1
        if found:
            return
    raise NothingFound(f"no member of group {group}" + (f" is called {client}" if client else " is connected"))


def _print_member(name: str, value: dict[str, Any], printer: Printer) -> None:
    settings = [(Item(key, key), text) for key, text in sorted((value.get("properties") or {}).items())]
    printer.facts(name, name, settings)
    columns = [
        Item("topic", "topic"),
        Item("broker", "broker"),
        Item("queue", "queue", Kind.PLACE),
        Item("committed", "committed", Kind.PLACE),
        Item("cached", "cached", Kind.COUNT),
        Item("locked", "locked"),
    ]
    rows = [
        [
            key["topic"],
            key["brokerName"],
            key["queueId"],
            one.get("commitOffset"),
            one.get("cachedMsgCount"),
            one.get("locked"),
        ]
        for key, one in each_entry(value.get("mqTable"))
    ]
    printer.table(f"{name} queues", "queues", columns, sorted(rows))
    if value.get("jstack"):
        printer.remark(str(value["jstack"]))


@group.command("mode")
@topic_option
@group_option
@one_target_required
@click.option("-m", "--mode", type=click.Choice(["PULL", "POP"]), required=True, help="How its members get messages.")
@click.option("-q", "--popShareQueueNum", "share", type=int, default=0, show_default=True, help="0: all queues.")
@admin_command
def mode(
    topic: str,
    group: str,
    broker: str | None,
    cluster: str | None,
    mode: str,
    share: int,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Whether members of a group pull a topic's queues or pop from all of them."""
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    for address in admin.targets(broker, cluster):
        admin.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=dump(body).encode())
        printer.remark(f"{group} on {topic}: {mode} on {address}")
