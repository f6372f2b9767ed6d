"""Settings of master/slave replication, under RocketMQ's names where it has them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from stratamq.config.declare import Section, setting
from stratamq.errors import ConfigError
from stratamq.units import KiB, MiB


class BrokerRole(enum.Enum):
    """What a broker is to the others of its name."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaConfig(Section):
    """Master and slaves: brokers of one `brokerName`, of which one takes messages and the others copy its log."""

    TITLE: ClassVar[str] = "Master and slaves"
    PREFIX: ClassVar[str] = "ha_"

    role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        rocketmq="brokerRole",
        doc="ASYNC_MASTER answers sends when it has stored them itself, SYNC_MASTER waits for slaves, SLAVE copies.",
    )
    broker_id: int = setting(
        0, at_least=0, at_most=1_000, rocketmq="brokerId", doc="0 for a master; a slave has a number of its own above."
    )
    port: int = setting(
        0,
        at_least=-1,
        at_most=65535,
        rocketmq="haListenPort",
        doc="Port where slaves fetch the log; 0: the broker's port plus 1, -1: none. With 0 `stratamq serve` opens it "
        "for a SYNC_MASTER only, and `stratamq broker` does without it, and says so, where the port is in use.",
    )
    advertised_host: str = setting(
        "", rocketmq="brokerIP2", doc="Address at which slaves reach `haListenPort`; empty: brokerIP1."
    )
    master_address: str = setting(
        "",
        rocketmq="haMasterAddress",
        doc="Where a slave fetches the log: host:haListenPort of the master; empty: what name servers say.",
    )
    from_first_file: bool = setting(
        False, doc="Whether an empty slave gets the master's whole log; else its last file only, as in RocketMQ."
    )
    batch_bytes: int = setting(
        32 * KiB, at_least=KiB, at_most=4 * MiB, rocketmq="haTransferBatchSize", doc="Longest piece of the log sent."
    )
    heartbeat_ms: int = setting(
        5_000,
        at_least=10,
        at_most=600_000,
        rocketmq="haSendHeartbeatInterval",
        doc="Silence after which either side says where it is.",
    )
    housekeeping_ms: int = setting(
        20_000,
        at_least=100,
        at_most=3_600_000,
        rocketmq="haHousekeepingInterval",
        doc="Silence of the other side after which the connection is closed. Keep it above two heartbeats.",
    )
    flow_control: bool = setting(
        False, rocketmq="haFlowControlEnable", doc="Whether a slave gets no more than maxHaTransferByteInSecond."
    )
    bytes_per_second: int = setting(
        100 * MiB,
        at_least=KiB,
        rocketmq="maxHaTransferByteInSecond",
        doc="Most bytes a second for one slave, with haFlowControlEnable.",
    )
    gap_max: int = setting(
        256 * MiB,
        at_least=1,
        rocketmq="haMaxGapNotInSync",
        doc="A slave that is so many bytes behind is not waited for. (haSlaveFallbehindMax in RocketMQ 4.)",
    )
    in_sync_replicas: int = setting(
        2,
        at_least=1,
        at_most=16,
        rocketmq="inSyncReplicas",
        doc="Copies that a SYNC_MASTER waits for, its own among them. (1 in RocketMQ 5: it waits for nobody.)",
    )
    min_in_sync_replicas: int = setting(
        1,
        at_least=1,
        at_most=16,
        rocketmq="minInSyncReplicas",
        doc="Copies, the master's among them, without which a SYNC_MASTER takes no message.",
    )
    slave_timeout_ms: int = setting(
        3_000,
        at_least=1,
        at_most=600_000,
        rocketmq="slaveTimeout",
        doc="How long a send waits for slaves before it is answered with FLUSH_SLAVE_TIMEOUT.",
    )
    slaves_max: int = setting(16, at_least=1, at_most=1_000, doc="Most slaves that may be connected.")
    slave_reads: bool = setting(
        False,
        rocketmq="slaveReadEnable",
        doc="On a slave: whether it answers pulls. On a master: whether it sends consumers that are far behind to one.",
    )
    compare_bytes: int = setting(
        64 * KiB,
        at_least=KiB,
        at_most=64 * MiB,
        doc="How many of its last bytes a slave compares with the master's on each connection.",
    )
    retry_ms: int = setting(
        1_000, at_least=10, at_most=600_000, doc="Pause before a slave tries again to reach its master."
    )
    tables_interval_ms: int = setting(
        10_000,
        at_least=100,
        at_most=600_000,
        doc="How often a slave copies topics, groups, consumer offsets and progress of delays from its master.",
    )

    def check(self) -> None:
        """Check role against broker id, the numbers of copies, and the address. Raises ConfigError."""
        if self.role is BrokerRole.SLAVE and not self.broker_id:
            raise ConfigError("brokerId", 0, "1 or more for brokerRole=SLAVE")
        if self.role is not BrokerRole.SLAVE and self.broker_id:
            raise ConfigError("brokerId", self.broker_id, f"0 for brokerRole={self.role.value}")
        if self.min_in_sync_replicas > self.in_sync_replicas:
            raise ConfigError("minInSyncReplicas", self.min_in_sync_replicas, "at most inSyncReplicas")
        host, _, port = self.master_address.rpartition(":")
        if self.master_address and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError("haMasterAddress", self.master_address, "host:port, such as 192.0.2.7:10912")

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies another one's log."""
        return self.role is BrokerRole.SLAVE
