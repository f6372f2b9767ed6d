"""GET_BROKER_CONFIG (26), GET_BROKER_RUNTIME_INFO (28), and what a slave copies: 43, 45.

Source: apache/rocketmq broker/.../AdminBrokerProcessor.java.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from stratamq import __version__
from stratamq.broker.broker import Broker
from stratamq.config import BrokerConfig, StoreConfig, settings_of
from stratamq.protocols.remoting.bodies import dump
from stratamq.protocols.remoting.codes import RequestCode, ResponseCode
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.replies import encode_response
from stratamq.server.requests.base import Peer, serves

_REQUEST_QUEUES: Final = ("send", "pull", "litePull", "query", "ack")


class AdminRequests:
    """Shows operators what a broker is and does."""

    def __init__(self, broker: Broker, store_config: StoreConfig) -> None:
        self._broker = broker
        self._configs: tuple[BrokerConfig, StoreConfig] = (broker.config, store_config)

    @serves(RequestCode.GET_BROKER_CONFIG)
    def config(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the broker's settings as property lines."""
        lines = []
        for config in self._configs:
            for field, info in settings_of(type(config)):
                if info.rocketmq:
                    lines.append(f"{info.rocketmq}={property_text(getattr(config, field.name))}")
        ext = {"version": dump(self._broker.topics.version.as_json())}
        return encode_response(header, ResponseCode.SUCCESS, ext=ext, body=("\n".join(lines) + "\n").encode())

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return the broker's counters and positions."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump({"table": runtime_table(self._broker)}).encode())

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return all consumer offsets."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.offsets.as_json()).encode())

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delays(self, peer: Peer, header: CommandHeader, body: memoryview) -> bytes | None:
        """Return how far delivery has come in each delay level."""
        return encode_response(header, ResponseCode.SUCCESS, body=dump(self._broker.delays.as_json()).encode())


def property_text(value: object) -> str:
    """A setting's value as RocketMQ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, enum.Enum) else value)


def runtime_table(broker: Broker) -> dict[str, str]:
    """The broker's counters and positions under RocketMQ's names."""
    counters, status = broker.counters, broker.store.status()
    now = broker.clock.wall_ms()
    average = counters.bytes_put / counters.messages_put if counters.messages_put else 0.0
    seconds = max(1, (now - counters.started_ms) // 1000)
    table: dict[str, Any] = {
        "bootTimestamp": counters.started_ms,
        "brokerActive": broker.is_accepting,
        "brokerVersionDesc": f"StrataMQ {__version__}",
        "commitLogMaxOffset": status.max_physical_offset,
        "commitLogMinOffset": status.min_physical_offset,
        "getFoundTps": f"{counters.gets_found / seconds:.2f}",
        "getMissTps": f"{counters.gets_missed / seconds:.2f}",
        "getTransferredTps": f"{counters.messages_got / seconds:.2f}",
        "msgGetTotalTodayNow": counters.messages_got,
        "msgPutTotalTodayNow": counters.messages_put,
        "putMessageAverageSize": f"{average:.1f}",
        "putMessageFailedTimes": counters.puts_failed,
        "putMessageSizeTotal": counters.bytes_put,
        "putMessageTimesTotal": counters.messages_put,
        "putTps": f"{counters.messages_put / seconds:.2f}",
        "remainHowManyDataToFlush": status.max_physical_offset - status.flushed_physical_offset,
        "runtime": f"{seconds} s",
        "dispatchBehindBytes": 0,
        "pageCacheLockTimeMills": 0,
        # What mqadmin's clusterList shows as load. A request is worked on in the turn it arrives in: none waits.
        **{f"{kind}ThreadPoolQueueSize": 0 for kind in _REQUEST_QUEUES},
        **{f"{kind}ThreadPoolQueueHeadWaitTimeMills": 0 for kind in _REQUEST_QUEUES},
    }
    return {name: property_text(value) for name, value in table.items()}
