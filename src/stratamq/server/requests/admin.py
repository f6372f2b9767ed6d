"""GET_BROKER_RUNTIME_INFO (28), VIEW_BROKER_STATS_DATA (315), and what a slave copies: 43, 45.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java, store/.../StoreStatsService.java.
"""

from __future__ import annotations

import os
from typing import Any, Final

from stratamq import __version__
from stratamq.broker.broker import Broker
from stratamq.broker.statistics import Window
from stratamq.broker.topics import SCHEDULE_TOPIC
from stratamq.errors import RemoteProtocolError
from stratamq.logstore.disk_usage import DiskProbe, LocalDiskProbe
from stratamq.logstore.log_paths import recorded_paths
from stratamq.protocols.remoting.admin_headers import StatsHeader
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import HeaderReader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.live_settings import property_text
from stratamq.server.requests.base import Peer, serves
from stratamq.server.requests.topics import store_time
from stratamq.units import format_bytes

_REQUEST_QUEUES: Final = ("send", "pull", "litePull", "query", "ack")
_read_stats: Final = HeaderReader(StatsHeader)


class AdminRequests:
    """Shows operators what a broker does. ``data_dir`` is where its store lies; without one, disks are not shown."""

    def __init__(self, broker: Broker, data_dir: str = "", *, probe: DiskProbe | None = None) -> None:
        self._broker = broker
        self._data_dir = data_dir
        self._probe = probe or LocalDiskProbe()

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the broker's counters, rates and positions."""
        table = {**runtime_table(self._broker), **self._disks()}
        texts = {name: property_text(value) for name, value in sorted(table.items())}
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"table": texts}).encode())

    def _disks(self) -> dict[str, Any]:
        if not self._data_dir:
            return {}
        logs = [self._probe.usage(path) for path in recorded_paths(self._data_dir).every]
        queues = self._probe.usage(os.path.join(self._data_dir, "consumequeue"))
        log = min(logs, key=lambda usage: usage.percent)  # the emptiest: new files go there
        several = {f"commitLogDiskRatio_{u.path}": u.percent / 100 if u.is_known else -1.0 for u in logs}
        total, free = format_bytes(log.total_bytes), format_bytes(log.usable_bytes)
        return {
            **(several if len(logs) > 1 else {}),
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "commitLogDiskRatio": log.percent / 100 if log.is_known else -1.0,
            "consumeQueueDiskRatio": queues.percent / 100 if queues.is_known else -1.0,
        }

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def statistics(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return what went through a topic, a group or the broker in the last minute, hour and day."""
        fields, broker = _read_stats(header), self._broker
        found = broker.statistics.windows(fields.stats_name, fields.stats_key, broker.clock.wall_ms())
        if found is None:
            raise RemoteProtocolError(
                f"The stats <{fields.stats_name}> <{fields.stats_key}> not exist", reply_hint=ResponseCode.SYSTEM_ERROR
            )
        minute, hour, day = map(_window, found)
        answer = {"statsDay": day, "statsHour": hour, "statsMinute": minute}
        return encode_response(header, ResponseCode.SUCCESS, body=dump(answer).encode())

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all consumer offsets."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.offsets.as_json()).encode())

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delays(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how far delivery has come in each delay level."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.delays.as_json()).encode())


def _window(window: Window) -> dict[str, float]:
    return {"avgpt": window.per_piece, "sum": window.total, "tps": window.per_second}


def runtime_table(broker: Broker) -> dict[str, Any]:
    """The broker's counters, rates and positions under RocketMQ's names."""
    counters, status = broker.counters, broker.store.status()
    average = counters.bytes_put / counters.messages_put if counters.messages_put else 0.0
    seconds = max(0, broker.clock.wall_ms() - counters.started_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    oldest = broker.store.record_at(status.min_physical_offset)
    return {
        "bootTimestamp": counters.started_ms,
        "brokerActive": broker.is_accepting,
        "brokerVersionDesc": f"StrataMQ {__version__}",
        "commitLogMaxOffset": status.max_physical_offset,
        "commitLogMinOffset": status.min_physical_offset,
        "earliestMessageTimeStamp": store_time(oldest) if oldest is not None else -1,
        "putMessageAverageSize": average,
        "putMessageFailedTimes": counters.puts_failed,
        "putMessageSizeTotal": counters.bytes_put,
        "putMessageTimesTotal": counters.messages_put,
        "remainHowManyDataToFlush": format_bytes(status.max_physical_offset - status.flushed_physical_offset),
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
        "startAcceptSendRequestTimeStamp": 0,
        **_rates(broker),
        **_delays(broker),
        **broker.timers.runtime_table(broker.clock.wall_ms()),
        **broker.replica.facts(),
        # Units and index follow in the turn in which a message is written, and a request is worked on in the turn it
        # arrives in: nothing of this ever waits.
        "dispatchBehindBytes": 0,
        "dispatchMaxBuffer": 0,
        "pageCacheLockTimeMills": 0,
        "remainTransientStoreBufferNumbs": 0,
        **{f"{kind}ThreadPoolQueueSize": 0 for kind in _REQUEST_QUEUES},
        **{f"{kind}ThreadPoolQueueHeadWaitTimeMills": 0 for kind in _REQUEST_QUEUES},
    }


def _rates(broker: Broker) -> dict[str, Any]:
    statistics, counters = broker.statistics, broker.counters
    now = broker.clock.wall_ms()
    kinds = {
        "putTps": statistics.rates(lambda totals: totals.puts, now),
        "getFoundTps": statistics.rates(lambda totals: totals.gets_found, now),
        "getMissTps": statistics.rates(lambda totals: totals.gets_missed, now),
        "getTotalTps": statistics.rates(lambda totals: totals.gets_found + totals.gets_missed, now),
        "getTransferredTps": statistics.rates(lambda totals: totals.messages_got, now),
    }
    return {
        **{name: " ".join(f"{rate:.4f}" for rate in rates) for name, rates in kinds.items()},
        "msgGetTotalTodayMorning": statistics.morning.messages_got,
        "msgGetTotalTodayNow": counters.messages_got,
        "msgGetTotalYesterdayMorning": statistics.morning_before.messages_got,
        "msgPutTotalTodayMorning": statistics.morning.puts,
        "msgPutTotalTodayNow": counters.messages_put,
        "msgPutTotalYesterdayMorning": statistics.morning_before.puts,
    }


def _delays(broker: Broker) -> dict[str, str]:
    """How far delivery has come in each level that holds something: "delivered,max"."""
    delivered = broker.delays.as_json()["offsetTable"]
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{broker.store.max_offset(SCHEDULE_TOPIC, int(level) - 1)}"
        for level, offset in delivered.items()
    }
