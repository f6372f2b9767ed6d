"""Settings of the process that serves clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, expect_ipv4, setting
from stratamq.units import KiB, MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Section):
    """Settings of the process that serves clients: addresses and bounds of its ports."""

    TITLE: ClassVar[str] = "Ports and connections"

    host: str = setting("127.0.0.1", rocketmq="bindAddress", doc="IPv4 address that all ports listen on.")
    namesrv_port: int = setting(
        9876, at_least=-1, at_most=65535, doc="Port of the name server; 0 picks a free one, -1 leaves it out."
    )
    namesrv_addresses: str = setting(
        "",
        rocketmq="namesrvAddr",
        doc="Name servers elsewhere that the broker registers with, host:port joined by semicolons.",
    )
    broker_port: int = setting(
        10911, at_least=0, at_most=65535, rocketmq="listenPort", doc="Port of the broker; 0 picks a free one."
    )
    http_port: int = setting(
        8161, at_least=0, at_most=65535, doc="Port of the page, the API and the metrics; 0 picks a free one."
    )
    amqp_port: int = setting(
        5672,
        at_least=-1,
        at_most=65535,
        doc="Port for AMQP 0-9-1; 0 picks a free one, -1 leaves AMQP out. Where the default is in use by another "
        "program, the broker starts without AMQP and says so.",
    )
    amqps_port: int = setting(
        -1,
        at_least=-1,
        at_most=65535,
        doc="Port for AMQP over TLS (RabbitMQ's is 5671); 0 picks a free one, -1: none. Needs a certificate.",
    )
    https_port: int = setting(
        -1,
        at_least=-1,
        at_most=65535,
        doc="Port of the page, the API and the metrics over TLS (RabbitMQ's is 15671); 0 picks a free one, -1: none.",
    )
    vip_port: bool = setting(
        False,
        doc="Whether the broker also listens on its port minus 2, as RocketMQ does for clients with "
        "vipChannelEnabled=true. Off, because that port may be another broker's.",
    )
    order_topics: bool = setting(
        False,
        rocketmq="orderMessageEnable",
        doc="Whether routes carry the order settings of their topics (mqadmin updateOrderConf): clients then send to "
        "and read from the queues named there only.",
    )
    connections_max: int = setting(
        20_000, at_least=1, doc="Most connections of each remoting port; further ones are closed at once."
    )
    idle_timeout_ms: int = setting(
        120_000,
        at_least=1_000,
        rocketmq="serverChannelMaxIdleTimeSeconds",
        doc="Silence in both directions after which a connection is closed. (Seconds under RocketMQ's name.)",
    )
    stall_timeout_ms: int = setting(
        60_000,
        at_least=1_000,
        doc="How long a peer may take to finish sending a request, or to take what was written to it.",
    )
    frame_bytes_max: int = setting(
        16 * MiB, at_least=64 * KiB, at_most=512 * MiB, doc="Longest request taken; a longer one ends its connection."
    )
    receive_bytes_max: int = setting(
        256 * MiB,
        at_least=16 * MiB,
        doc="Bytes of unfinished requests held for all connections together; who goes beyond is disconnected.",
    )
    write_buffer_bytes: int = setting(
        256 * KiB,
        at_least=4 * KiB,
        rocketmq="writeBufferHighWaterMark",
        doc="Unsent bytes of one connection above which nothing more is read from it.",
    )
    requests_unanswered_max: int = setting(
        8_192,
        at_least=1,
        doc="Sends of one connection that may wait for the disk; no more is read from it until some are answered.",
    )
    fast_failure: bool = setting(
        True,
        rocketmq="brokerFastFailureEnable",
        doc="Whether sends that are held back longer than waitTimeMillsInSendQueue are refused; else they wait on.",
    )
    send_wait_ms: int = setting(
        1_000,
        at_least=10,
        at_most=600_000,
        rocketmq="waitTimeMillsInSendQueue",
        doc="How long a send is held back while the disk cannot follow, before it is answered SYSTEM_BUSY. (200 in "
        "RocketMQ.)",
    )
    stop_timeout_ms: int = setting(
        10_000, at_least=100, doc="How long a stop waits for requests in work and for peers to take their answers."
    )

    def check(self) -> None:
        """Check the address listened on. Raises ConfigError."""
        expect_ipv4("bindAddress", self.host, "127.0.0.1 or 0.0.0.0")
