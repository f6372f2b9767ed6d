"""RocketMQ's broker.conf, and the page that is made from the settings."""

from __future__ import annotations

import pytest

from stratamq.config import (
    BrokerConfig,
    FlushMode,
    QueueStoreConfig,
    RetentionConfig,
    ServerConfig,
    StoreConfig,
    TieredConfig,
    parse_delay_levels,
)
from stratamq.errors import ConfigError
from stratamq.server.broker_conf import build, interpret, parse_properties, read_broker_conf, render_settings
from tests.tidy.tree import ROOT

REAL = """\
# Licensed to the Apache Software Foundation (ASF) under one or more
#  limitations under the License.
brokerClusterName = DefaultCluster
brokerName = broker-b
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
listenPort=10931
autoCreateTopicEnable=false
mapedFileSizeCommitLog=1
storePathRootDir=/var/lib/broker
serverChannelMaxIdleTimeSeconds=60
vip_port=true
"""


def test_a_real_file():
    conf = interpret(parse_properties(REAL))
    server = build(ServerConfig, conf.values[ServerConfig])
    broker = build(BrokerConfig, conf.values[BrokerConfig])
    store = build(StoreConfig, conf.values[StoreConfig])
    assert (server.broker_port, server.idle_timeout_ms, server.vip_port) == (10931, 60_000, True)
    assert (broker.broker_name, broker.auto_create_topics) == ("broker-b", False)
    assert store.flush_mode is FlushMode.SYNC
    assert conf.data_dir == "/var/lib/broker"
    assert conf.unknown == ["mapedFileSizeCommitLog"]
    assert conf.values[RetentionConfig] == {"delete_when": "04", "file_reserved_hours": 48}


def test_java_properties():
    text = "a=1\n b : 2 \nc 3\n! comment\n#d=4\ne=one \\\n   two\nf=\\u00e4\\t\\\\\ng\n=x\n\nh=a=b:c\na=9\n"
    assert parse_properties(text) == {
        "a": "9",
        "b": "2 ",
        "c": "3",
        "e": "one two",
        "f": "ä\t\\",
        "g": "",
        "": "x",
        "h": "a=b:c",
    }
    assert parse_properties("k=v\\") == {"k": "v"}
    assert parse_properties("") == {}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("listenPort=x", "listenPort='x' .* allowed: a whole number"),
        ("listenPort=", "a whole number"),
        ("flushDiskType=FAST", "allowed: SYNC_FLUSH or ASYNC_FLUSH"),
        ("autoCreateTopicEnable=1", "allowed: true or false"),
        ("brokerRole=MASTER", "allowed: ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ("aclEnable=true", "allowed: false"),
        ("enablePropertyFilter=maybe", "allowed: true or false"),
        ("maxMessageSize=99999999999999999999", "a whole number"),
    ],
)
def test_values_that_are_not_usable(line, text):
    with pytest.raises(ConfigError, match=text) as caught:
        interpret(parse_properties(line), where="broker.conf")
    assert "broker.conf" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("config_class", "values"),
    [
        (ServerConfig, {"broker_port": 70_000}),
        (ServerConfig, {"host": "localhost"}),
        (ServerConfig, {"host": "::1"}),
        (BrokerConfig, {"advertised_host": "example.org"}),
        (BrokerConfig, {"broker_name": "a b"}),
        (BrokerConfig, {"cluster_name": ""}),
        (BrokerConfig, {"delay_levels": "soon"}),
        (BrokerConfig, {"default_topic_queues": 0}),
    ],
)
def test_bounds(config_class, values):
    with pytest.raises(ConfigError, match="allowed"):
        build(config_class, values)


@pytest.mark.parametrize(
    ("config_class", "values", "key"),
    [
        (QueueStoreConfig, {"gc_files_min": 0}, "amqp_gc_files_min"),
        (TieredConfig, {"uploads_max": 0}, "tier_uploads_max"),
        (TieredConfig, {"compact_format": "text"}, "tier_compact_format"),
        (ServerConfig, {"host": "::1"}, "bindAddress"),
    ],
)
def test_an_error_names_the_setting_as_the_file_does(config_class, values, key):
    with pytest.raises(ConfigError) as caught:
        build(config_class, values)
    assert caught.value.key == key


def test_flags_stand_over_the_file_and_none_is_not_given():
    assert build(ServerConfig, {"broker_port": 1}, {"broker_port": 2, "host": None}).broker_port == 2
    assert build(ServerConfig, {"broker_port": 1}, {"broker_port": None}).broker_port == 1


def test_delay_levels():
    assert parse_delay_levels("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    for bad in ("", "s", "0s", "1", "1w", "-1s"):
        with pytest.raises(ConfigError):
            parse_delay_levels(bad)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="readable file"):
        read_broker_conf(tmp_path / "none")
    path = tmp_path / "latin.conf"
    path.write_bytes(b"# caf\xe9\nbrokerName=b\n")
    assert read_broker_conf(path).values[BrokerConfig] == {"broker_name": "b"}


def test_the_page_of_settings_is_fresh():
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == render_settings(), (
        "stale; run: python -m stratamq.cli.configuration > docs/configuration.md"
    )


def test_settings_of_the_queue_store_stand_in_the_file_under_their_prefix():
    found = interpret({"amqp_queue_index_segment_entry_count": "256", "amqp_gc_files_min": "4", "gc_files_min": "5"})
    config = build(QueueStoreConfig, found.values[QueueStoreConfig])
    assert (config.queue_index_segment_entry_count, config.gc_files_min) == (256, 4)
    assert found.unknown == ["gc_files_min"]


def test_directories_of_the_commit_log_are_read():
    found = interpret({"storePathCommitLog": "/a,/b", "readOnlyCommitLogStorePaths": "/c"})
    config = build(StoreConfig, found.values[StoreConfig])
    assert (config.commit_log_paths, config.commit_log_read_only_paths) == ("/a,/b", "/c")
    assert not found.unknown
