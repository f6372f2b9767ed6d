"""``stratamq topic static``: make a static topic, or give one more queues. Moving queues is mqadmin's."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from stratamq.broker.static_planning import Share, plan_queues
from stratamq.broker.static_topics import decode_mapping
from stratamq.broker.topics import QUEUES_MAX
from stratamq.cli.admin.client import AdminClient, Broker
from stratamq.cli.admin.options import admin_command, topic_option
from stratamq.cli.output import Item, Kind, Printer
from stratamq.clock import SystemClock
from stratamq.errors import InvalidArgument, NothingFound, PeerRefused
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode, request_name

STATIC: Final = (
    Item("broker", "broker"),
    Item("queue", "logical queue", Kind.PLACE),
    Item("physical_queue", "physical queue", Kind.PLACE),
)


@click.command("static")
@topic_option
@click.option("-qn", "--totalQueueNum", "total", type=click.IntRange(1, QUEUES_MAX), required=True, help="Queues.")
@click.option("-b", "--brokers", help="Names of the brokers for new queues, joined by commas.")
@click.option("-c", "--clusters", help="Or clusters, joined by commas: all their brokers.")
@admin_command
def static_topic(
    topic: str, total: int, brokers: str | None, clusters: str | None, admin: AdminClient, printer: Printer
) -> None:
    """Make a topic of a fixed number of queues, or give it more."""
    if (brokers is None) == (clusters is None):
        raise click.UsageError("say where: either -b BROKER,... or -c CLUSTER,...")
    everyone = admin.brokers()
    wanted = [name.strip() for name in (brokers or clusters or "").split(",") if name.strip()]
    targets = [one.name for one in everyone if (one.cluster if brokers is None else one.name) in wanted]
    missing = set(wanted) - {one.cluster if brokers is None else one.name for one in everyone}
    if missing or not targets:
        raise NothingFound(f"not registered with {admin.namesrv[0]}: {', '.join(sorted(missing)) or 'any broker'}")
    near = {one.cluster for one in everyone if one.name in targets}
    known = {one.name: share for one in everyone if (share := _share(admin, one, topic)) is not None}
    others = [one.name for one in everyone if one.cluster in near]
    plan = plan_queues(topic, total, targets, others, known, now_ms=SystemClock().wall_ms())
    addresses = {one.name: one.address for one in everyone}
    for name, share in sorted(plan.items()):
        _give(admin, addresses[name], topic, share)
    rows = [
        [name, number, queue_id] for name, share in plan.items() for number, queue_id in share.mapping.led().items()
    ]
    printer.table("queues", "", STATIC, sorted(rows, key=lambda row: row[1]))


def _share(admin: AdminClient, broker: Broker, topic: str) -> Share | None:
    """What a broker has of the topic; None when that is nothing. Raises InvalidArgument for an ordinary topic."""
    answer = admin.call(broker.address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise PeerRefused(broker.address, request_name(RequestCode.GET_TOPIC_CONFIG), answer.code, answer.remark)
    mapping = answer.value.get("mappingDetail")
    if mapping is None:
        raise InvalidArgument(
            f"topic {topic} is on broker {broker.name} and not static; its queues cannot be fixed now"
        )
    return Share(int(answer.value["writeQueueNums"]), decode_mapping(mapping))


def _give(admin: AdminClient, address: str, topic: str, share: Share) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": share.queues,
        "writeQueueNums": share.queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "force": False,
    }
    body = msgspec.json.encode(share.mapping.as_json())
    admin.ask(address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, ext, body)
