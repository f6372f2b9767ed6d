"""``stratamq topic``: list, look at, make, change and delete topics of a running cluster."""

from __future__ import annotations

from typing import Any, Final

import click

from stratamq.cli.admin.client import AdminClient
from stratamq.cli.admin.options import (
    FLAG,
    admin_command,
    cluster_option,
    one_target_required,
    topic_option,
)
from stratamq.cli.admin.static_topic import static_topic
from stratamq.cli.admin.values import each_entry
from stratamq.cli.output import Item, Kind, Printer
from stratamq.errors import InvalidArgument
from stratamq.protocols.remoting.codes import RequestCode

TEMPLATE: Final = "TBW102"
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


@click.group()
def topic() -> None:
    """Topics of a running cluster: list, look at, make, change, delete."""


topic.add_command(static_topic)


@topic.command("list")
@click.option("-c", "--clusterModel", "with_groups", is_flag=True, help="With cluster and consumer groups.")
@admin_command
def list_topics(with_groups: bool, admin: AdminClient, printer: Printer) -> None:
    """All topics that the name server knows."""
    names = sorted(admin.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).value.get("topicList") or ())
    if not with_groups:
        printer.table("topics", "", [Item("topic", "topic")], [[name] for name in names])
        return
    rows = []
    for name in names:
        route = admin.find_route(name)
        if route is None or not route.brokers:
            continue
        cluster = route.brokers[0].cluster
        answer = admin.call(route.brokers[0].address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
        groups = answer.value.get("groupList") or [] if answer.code == 0 else []
        rows += [[cluster, name, group] for group in sorted(groups) or [None]]
    columns = [Item("cluster", "cluster"), Item("topic", "topic"), Item("group", "consumer group")]
    printer.table("topics", "", columns, rows)


@topic.command("route")
@topic_option
@click.option("-l", "--list", "as_list", is_flag=True, help="Accepted for mqadmin's sake: it is always a list.")
@admin_command
def show_route(topic: str, as_list: bool, admin: AdminClient, printer: Printer) -> None:
    """Which brokers hold a topic, with how many queues."""
    route = admin.route(topic)
    queues = {one.broker: one for one in route.queues}
    rows: list[list[Any]] = []
    for broker in route.brokers:
        has = queues.get(broker.name)
        for number, address in sorted(broker.addresses.items(), key=lambda pair: int(pair[0])):
            numbers = [has.reads, has.writes, has.perm] if has else [None] * 3
            rows.append([broker.cluster, broker.name, int(number), address, *numbers])
    printer.table("route", "", ROUTE, rows)


ROUTE: Final = (
    Item("cluster", "cluster"),
    Item("broker", "broker"),
    Item("broker_id", "id"),
    Item("address", "address"),
    Item("read_queues", "read queues", Kind.COUNT),
    Item("write_queues", "write queues", Kind.COUNT),
    Item("perm", "perm", Kind.COUNT),
)


@topic.command("clusters")
@topic_option
@admin_command
def clusters(topic: str, admin: AdminClient, printer: Printer) -> None:
    """The clusters that hold a topic."""
    found = sorted({broker.cluster for broker in admin.route(topic).brokers})
    printer.table("clusters", "", [Item("cluster", "cluster")], [[name] for name in found])


STATUS: Final = (
    Item("broker", "broker"),
    Item("queue", "queue", Kind.PLACE),
    Item("min_offset", "min offset", Kind.PLACE),
    Item("max_offset", "max offset", Kind.PLACE),
    Item("updated", "last update", Kind.TIME),
)


@topic.command("status")
@topic_option
@cluster_option
@admin_command
def status(topic: str, cluster: str | None, admin: AdminClient, printer: Printer) -> None:
    """Minimum and maximum offset of each queue of a topic, and when it was last written to."""
    rows = []
    for broker in admin.route(topic).brokers:
        if cluster not in (None, broker.cluster):
            continue
        value = admin.ask(broker.address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}).value
        for key, entry in each_entry(value.get("offsetTable")):
            updated = entry.get("lastUpdateTimestamp") or None
            rows.append([key["brokerName"], key["queueId"], entry["minOffset"], entry["maxOffset"], updated])
    printer.table("queues", "", STATUS, sorted(rows))


@topic.command("update")
@topic_option
@one_target_required
@click.option("-r", "--readQueueNums", "reads", type=click.IntRange(1), default=8, show_default=True)
@click.option("-w", "--writeQueueNums", "writes", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "-p", "--perm", type=click.Choice(["2", "4", "6"]), default="6", show_default=True, help="2 W, 4 R, 6 RW."
)
@click.option("-o", "--order", type=FLAG, default=False, help="Whether its queues must stay in order.")
@click.option("-u", "--unit", type=FLAG, default=False, help="Whether it is a unit topic.")
@click.option("-s", "--hasUnitSub", "has_unit_sub", type=FLAG, default=False, help="Whether it has unit subscribers.")
@click.option("-a", "--attributes", help="Such as +message.type=FIFO,-other.")
@admin_command
def update(
    topic: str,
    broker: str | None,
    cluster: str | None,
    reads: int,
    writes: int,
    perm: str,
    order: bool,
    unit: bool,
    has_unit_sub: bool,
    attributes: str | None,
    admin: AdminClient,
    printer: Printer,
) -> None:
    """Make a topic, or change one."""
    ext = {
        "topic": topic,
        "defaultTopic": TEMPLATE,
        "readQueueNums": reads,
        "writeQueueNums": writes,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": int(unit) | int(has_unit_sub) << 1,
        "order": order,
        "attributes": attributes,
    }
    addresses = admin.targets(broker, cluster)
    for address in addresses:
        admin.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        printer.remark(f"topic {topic} on {address}: {reads} read queues, {writes} write queues, perm {perm}")
    if order and cluster is not None:
        names = {one.address: one.name for one in admin.brokers()}
        conf = ";".join(f"{names[address]}:{writes}" for address in addresses if address in names)
        admin.tell_names(RequestCode.PUT_KV_CONFIG, {"namespace": ORDER_NAMESPACE, "key": topic, "value": conf})
        printer.remark(f"its order is set to {conf}")


@topic.command("perm")
@topic_option
@one_target_required
@click.option("-p", "--perm", type=click.Choice(["2", "4", "6"]), required=True, help="2 write, 4 read, 6 both.")
@admin_command
def permission(
    topic: str, broker: str | None, cluster: str | None, perm: str, admin: AdminClient, printer: Printer
) -> None:
    """Change who may do what with a topic; its queues stay."""
    route = admin.route(topic)
    addresses = {one.name: one.address for one in route.brokers}
    wanted = set(admin.targets(broker, cluster))
    changed = 0
    for queues in route.queues:
        address = addresses.get(queues.broker)
        if address is None or address not in wanted:
            continue
        ext = {
            "topic": topic,
            "defaultTopic": TEMPLATE,
            "readQueueNums": queues.reads,
            "writeQueueNums": queues.writes,
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        admin.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        printer.remark(f"topic {topic} on {address}: perm {queues.perm} became {perm}")
        changed += 1
    if not changed:
        raise InvalidArgument(f"none of {', '.join(sorted(wanted))} holds topic {topic}")


@topic.command("delete")
@topic_option
@click.option("-c", "--cluster", "--clusterName", "cluster", required=True, help="Where.")
@admin_command
def delete(topic: str, cluster: str, admin: AdminClient, printer: Printer) -> None:
    """Delete a topic from the brokers of a cluster and from the name servers."""
    for address in admin.targets(None, cluster):
        admin.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        printer.remark(f"topic {topic} deleted on {address}")
    admin.tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, "clusterName": cluster})
    admin.tell_names(RequestCode.DELETE_KV_CONFIG, {"namespace": ORDER_NAMESPACE, "key": topic})


@topic.command("order")
@topic_option
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True)
@click.option("-v", "--orderConf", "value", help="broker-a:8;broker-b:4, for put.")
@admin_command
def order(topic: str, method: str, value: str | None, admin: AdminClient, printer: Printer) -> None:
    """The order setting of a topic in the name servers: which broker has how many queues."""
    fields = {"namespace": ORDER_NAMESPACE, "key": topic}
    if method == "put":
        if not value:
            raise click.UsageError("put needs -v, such as broker-a:8;broker-b:4")
        admin.tell_names(RequestCode.PUT_KV_CONFIG, {**fields, "value": value})
        printer.remark(f"order of {topic} is {value}")
    elif method == "delete":
        admin.tell_names(RequestCode.DELETE_KV_CONFIG, fields)
        printer.remark(f"order of {topic} deleted")
    else:
        found = admin.ask_names(RequestCode.GET_KV_CONFIG, fields).ext.get("value")
        printer.facts("order", "", [(Item("topic", "topic"), topic), (Item("order", "order"), found)])


@topic.command("allocate")
@topic_option
@click.option("-i", "--ipList", "clients", required=True, help="Client ids, joined by commas.")
@admin_command
def allocate(topic: str, clients: str, admin: AdminClient, printer: Printer) -> None:
    """How consumers with these ids would share a topic's queues."""
    queues = [(broker.name, number) for broker, number in admin.read_queues(topic)]
    members = sorted(client.strip() for client in clients.split(",") if client.strip())
    if not members:
        raise click.UsageError("-i names no client")
    share, more = divmod(len(queues), len(members))
    rows: list[list[Any]] = []
    at = 0
    for place, member in enumerate(members):
        count = share + (place < more)
        rows += [[member, topic, *queue] for queue in queues[at : at + count]]
        at += count
    columns = [Item("client", "client"), Item("topic", "topic"), Item("broker", "broker"), Item("queue", "queue")]
    printer.table("queues", "", columns, rows)


RATES: Final = (
    Item("topic", "topic"),
    Item("group", "consumer group"),
    Item("behind", "behind", Kind.COUNT),
    Item("put_tps", "in /s"),
    Item("get_tps", "out /s"),
    Item("put_day", "in today", Kind.COUNT),
    Item("get_day", "out today", Kind.COUNT),
)


@topic.command("stats")
@click.option("-t", "--topic", help="Only this one.")
@click.option("-a", "--activeTopic", "only_active", is_flag=True, help="Only topics with traffic.")
@admin_command
def stats(topic: str | None, only_active: bool, admin: AdminClient, printer: Printer) -> None:
    """Rates of topics and of the groups that read them."""
    names = [topic] if topic else admin.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).value["topicList"]
    rows: list[list[Any]] = []
    for name in sorted(names):
        if not topic and name.startswith(("%RETRY%", "%DLQ%")):
            continue
        route = admin.find_route(name)
        if route is None:
            continue
        addresses = [broker.address for broker in route.brokers]
        put_tps, put_day = _rates(admin, addresses, "TOPIC_PUT_NUMS", name)
        groups: set[str] = set()
        for address in addresses:
            answer = admin.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
            groups |= set(answer.value.get("groupList") or ()) if answer.code == 0 else set()
        for group in sorted(groups):
            get_tps, get_day = _rates(admin, addresses, "GROUP_GET_NUMS", f"{name}@{group}")
            rows.append([name, group, _behind(admin, addresses, group, name), put_tps, get_tps, put_day, get_day])
        if not groups:
            rows.append([name, None, None, put_tps, None, put_day, None])
    if only_active:
        rows = [row for row in rows if row[3] or row[4] or row[5] or row[6]]
    printer.table("stats", "", RATES, rows)


def _rates(admin: AdminClient, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    per_second, today = 0.0, 0
    for address in addresses:
        answer = admin.call(address, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        if answer.code == 0:
            per_second += float((answer.value.get("statsMinute") or {}).get("tps") or 0)
            today += int((answer.value.get("statsDay") or {}).get("sum") or 0)
    return round(per_second, 2), today


def _behind(admin: AdminClient, addresses: list[str], group: str, name: str) -> int:
    behind = 0
    for address in addresses:
        answer = admin.call(address, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": name})
        if answer.code == 0:
            for _, entry in each_entry(answer.value.get("offsetTable")):
                behind += max(0, int(entry["brokerOffset"]) - int(entry["consumerOffset"]))
    return behind
