"""Settings of one broker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from stratamq.config.declare import Section, expect_ipv4, expect_match, setting
from stratamq.errors import ConfigError
from stratamq.units import KiB, MiB

DELAY_LEVELS_DEFAULT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_DELAY_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Section):
    """Settings of one broker."""

    TITLE: ClassVar[str] = "Broker"

    cluster_name: str = setting(
        "DefaultCluster", rocketmq="brokerClusterName", doc="Cluster that the broker says it belongs to."
    )
    broker_name: str = setting(
        "broker-a",
        rocketmq="brokerName",
        doc="Name of the broker in routes. Consumers keep offsets by it, so it should never change.",
    )
    advertised_host: str = setting(
        "",
        rocketmq="brokerIP1",
        doc="IPv4 address at which clients reach the broker, told to them in routes and message ids. Empty: the "
        "address listened on, or this machine's own where that is 0.0.0.0.",
    )
    auto_create_topics: bool = setting(
        True, rocketmq="autoCreateTopicEnable", doc="Whether the first message to an unknown topic creates it."
    )
    auto_create_groups: bool = setting(
        True, rocketmq="autoCreateSubscriptionGroup", doc="Whether an unknown consumer group is created on first use."
    )
    default_topic_queues: int = setting(
        8,
        at_least=1,
        at_most=1024,
        rocketmq="defaultTopicQueueNums",
        doc="Queues of the template topic TBW102, and so the most that an automatically created topic gets.",
    )
    permission: int = setting(
        6, at_least=0, at_most=7, rocketmq="brokerPermission", doc="What clients may do: 4 read, 2 write, 6 both."
    )
    region: str = setting("DefaultRegion", rocketmq="regionId", doc="Region that is noted in every message.")
    trace_on: bool = setting(True, rocketmq="traceOn", doc="Whether clients are told that they may trace messages.")
    long_polling: bool = setting(
        True,
        rocketmq="longPollingEnable",
        doc="Whether a pull that finds nothing waits as long as the client asks; else for shortPollingTimeMills.",
    )
    short_polling_ms: int = setting(
        1_000,
        at_least=1,
        at_most=60_000,
        rocketmq="shortPollingTimeMills",
        doc="How long a pull waits when long polling is off.",
    )
    forward_timeout_ms: int = setting(
        3_000,
        at_least=1,
        at_most=60_000,
        rocketmq="forwardTimeout",
        doc="How long the leader of a static topic's queue waits for the broker of an older part of it.",
    )
    property_filters: bool = setting(
        True,
        rocketmq="enablePropertyFilter",
        doc="Whether consumers may filter by properties (SQL92). Off by default in RocketMQ.",
    )
    store_reply_messages: bool = setting(
        True,
        rocketmq="storeReplyMessageEnable",
        doc="Whether replies (request-reply) are stored in CLUSTER_REPLY_TOPIC besides being pushed to who asked.",
    )
    pop_checkpoints_max: int = setting(
        100_000,
        at_least=1,
        doc="Check-points of popped messages (up to 32 messages each) that may be open; beyond, pops are refused.",
    )
    pop_waiting_max: int = setting(
        100_000, at_least=1, rocketmq="maxPopPollingSize", doc="Pops that may wait for messages at the same time."
    )
    pop_retry_percent: int = setting(
        20,
        at_least=0,
        at_most=100,
        rocketmq="popFromRetryProbability",
        doc="Of a hundred pops, how many look at the group's retry topic before the topic itself.",
    )
    waiting_pulls_max: int = setting(
        100_000,
        at_least=1,
        doc="Most pulls that may wait for messages at one time; further ones are told to come again.",
    )
    server_side_reset: bool = setting(
        True,
        rocketmq="useServerSideResetOffset",
        doc="Whether an operator's reset of offsets is carried out here and consumers learn of it with their next "
        "pull; else it is sent to the consumers.",
    )
    config_blacklist: str = setting(
        "configBlackList;brokerConfigPath",
        rocketmq="configBlackList",
        doc="Settings that nobody may change while the broker runs, besides these two; joined by semicolons.",
    )
    query_messages_max: int = setting(
        32, at_least=1, at_most=10_000, rocketmq="defaultQueryMaxNum", doc="Most messages that a query by key returns."
    )
    offsets_flush_interval_ms: int = setting(
        5_000,
        at_least=100,
        at_most=600_000,
        rocketmq="flushConsumerOffsetInterval",
        doc="Pause between two writes of the consumer offsets to disk.",
    )
    delay_levels: str = setting(
        DELAY_LEVELS_DEFAULT,
        rocketmq="messageDelayLevel",
        doc="Delays by level, level 1 first: a number with s, m, h or d each, separated by blanks.",
    )
    timer_wheel: bool = setting(
        True, rocketmq="timerWheelEnable", doc="Whether messages for any time are taken; else they are refused."
    )
    timer_precision_ms: int = setting(
        1_000,
        at_least=100,
        at_most=60_000,
        rocketmq="timerPrecisionMs",
        doc="Step of the timer wheel. Fixed for the life of a store.",
    )
    timer_max_delay_s: int = setting(
        259_200,
        at_least=1,
        at_most=315_360_000,
        rocketmq="timerMaxDelaySec",
        doc="How far off the time of a message may be, in seconds.",
    )
    timer_roll_window_slots: int = setting(
        172_800,
        at_least=2,
        at_most=1_209_000,
        rocketmq="timerRollWindowSlot",
        doc="A message further off than so many steps is stored anew when they are over, so that the commit log may be "
        "cleaned behind it. Keep it below fileReservedTime.",
    )
    timer_congest_per_slot: int = setting(
        2**31 - 1,
        at_least=1,
        at_most=2**31 - 1,
        rocketmq="timerCongestNumEachSlot",
        doc="Messages for one step above which further ones are refused, some of them up to twice as many.",
    )
    timer_log_file_bytes: int = setting(
        100 * MiB,
        at_least=KiB,
        at_most=2**31 - 1,
        rocketmq="mappedFileSizeTimerLog",
        doc="Length of one timer-log file. Fixed for the life of a store.",
    )
    timer_stop_enqueue: bool = setting(
        False, rocketmq="timerStopEnqueue", doc="Whether messages for a time are stored, but not put into the wheel."
    )
    timer_stop_dequeue: bool = setting(
        False, rocketmq="timerStopDequeue", doc="Whether the wheel stands still and nothing of it is delivered."
    )
    timer_messages_per_step: int = setting(
        1_000,
        at_least=1,
        at_most=100_000,
        doc="Most messages that the timer reads, and most that it delivers, in one go: every tenth of a second.",
    )
    reject_transactions: bool = setting(
        False, rocketmq="rejectTransactionMessage", doc="Whether transactional messages are refused."
    )
    transaction_timeout_ms: int = setting(
        6_000,
        at_least=0,
        at_most=86_400_000,
        rocketmq="transactionTimeOut",
        doc="How old a half message is before its producer is asked about it, unless it says a time itself.",
    )
    transaction_check_max: int = setting(
        15,
        at_least=1,
        at_most=1_000,
        rocketmq="transactionCheckMax",
        doc="How often a producer is asked about a half message before that goes to TRANS_CHECK_MAX_TIME_TOPIC.",
    )
    transaction_check_interval_ms: int = setting(
        30_000,
        at_least=100,
        at_most=86_400_000,
        rocketmq="transactionCheckInterval",
        doc="Pause between two rounds through the half messages.",
    )
    transaction_op_bytes_max: int = setting(
        4_096,
        at_least=64,
        at_most=65_536,
        rocketmq="transactionOpMsgMaxSize",
        doc="Size of a mark for finished transactions at which it is written at once.",
    )
    transaction_op_interval_ms: int = setting(
        3_000,
        at_least=0,
        at_most=60_000,
        rocketmq="transactionOpBatchInterval",
        doc="How long a mark waits for further finished transactions.",
    )
    pop_retry_v2: bool = setting(
        False,
        rocketmq="enableRetryTopicV2",
        doc="Whether popped messages that nobody acknowledged go to %RETRY%group+topic instead of %RETRY%group_topic. "
        "Both are read, whatever this says.",
    )
    transaction_halves_max: int = setting(
        200_000,
        at_least=100,
        at_most=100_000_000,
        doc="How many finished transactions may lie behind an open one before that is moved out of their way (half of "
        "this) and before ends of transactions are refused (all of it); about 200 bytes of memory each.",
    )
    recall_messages: bool = setting(
        False,
        rocketmq="recallMessageEnable",
        doc="Whether a message for a time may be recalled by the handle that its send was answered with.",
    )

    def check(self) -> None:
        """Check names, address and delay levels. Raises ConfigError."""
        for key, value in (("brokerClusterName", self.cluster_name), ("brokerName", self.broker_name)):
            expect_match(key, value, r"[%|a-zA-Z0-9_-]{1,120}", "1 to 120 characters out of % | a-z A-Z 0-9 _ -")
        if self.advertised_host:
            expect_ipv4("brokerIP1", self.advertised_host, "192.0.2.7")
        parse_delay_levels(self.delay_levels)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays of levels 1, 2, ... in milliseconds. Raises ConfigError."""
    words = text.split()
    if not 1 <= len(words) <= 100 or not all(re.fullmatch(r"[1-9][0-9]{0,8}[smhd]", word) for word in words):
        raise ConfigError("messageDelayLevel", text, "1 to 100 of a number with s, m, h or d, such as: 1s 30s 5m 2h")
    return tuple(int(word[:-1]) * _DELAY_UNITS_MS[word[-1]] for word in words)
