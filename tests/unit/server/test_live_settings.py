"""Settings that operators change: what holds after a restart, and the file in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.config import BrokerConfig, RetentionConfig, ServerConfig, StoreConfig
from stratamq.errors import AccessDenied, ConfigError, InvalidArgument
from stratamq.server import live_settings
from stratamq.server.broker_conf import parse_properties
from stratamq.server.live_settings import LIVE_NAMES, LiveSettings, live_keys, property_lines, read_kept, with_kept


def configs():
    return {BrokerConfig: BrokerConfig(), RetentionConfig: RetentionConfig(), StoreConfig: StoreConfig()}


def test_a_restart_keeps_what_was_changed(tmp_path):
    path = tmp_path / "config" / "broker.properties"
    applied = []
    live = LiveSettings(configs(), path, apply=applied.append)
    live.update("brokerPermission=4\ndeleteWhen=05\\;17\n")
    live.update("brokerPermission=2")
    assert applied[-1][BrokerConfig].permission == 2
    kept = with_kept(configs(), path)
    assert (kept[BrokerConfig].permission, kept[RetentionConfig].delete_hours) == (2, (5, 17))
    assert kept[StoreConfig] == StoreConfig()
    assert with_kept(configs(), tmp_path / "none") == configs()


def test_nothing_changes_when_it_cannot_be_kept(tmp_path):
    path = tmp_path / "config"
    path.write_text("a file where the folder should be")
    live = LiveSettings(configs(), path / "broker.properties", apply=lambda configs: pytest.fail("applied"))
    with pytest.raises(OSError, match="config"):
        live.update("brokerPermission=4")
    assert live.configs == configs()


def test_a_spoilt_file_is_named(tmp_path):
    path = tmp_path / "broker.properties"
    path.write_text("brokerPermission=many\n")
    with pytest.raises(ConfigError, match=r"broker\.properties"):
        with_kept(configs(), path)
    path.write_text("brokerName=taken\nunheard=of\n")
    assert with_kept(configs(), path) == configs()


def test_blacklists(tmp_path):
    live = LiveSettings(configs(), tmp_path / "p", blacklist="brokerPermission; x")
    for key in ("brokerPermission", "x", "configBlackList", "brokerConfigPath"):
        with pytest.raises(AccessDenied, match="black list"):
            live.update(f"{key}=4")
    with pytest.raises(InvalidArgument, match="65537 characters"):
        live.update("deleteWhen=" + "0" * 65537)


def test_name_server_settings_are_its_own(tmp_path):
    live = LiveSettings({ServerConfig: ServerConfig()}, tmp_path / "p", live=LIVE_NAMES)
    live.update("serverChannelMaxIdleTimeSeconds=60")
    assert live.configs[ServerConfig].idle_timeout_ms == 60_000
    assert "serverChannelMaxIdleTimeSeconds=60" in property_lines(live.configs.values()).splitlines()
    with pytest.raises(InvalidArgument, match="no setting"):
        live.update("brokerPermission=4")


def test_every_live_key_is_a_setting_that_is_shown():
    shown = parse_properties(property_lines(configs().values()))
    assert set(live_keys()) <= set(shown)


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=12), max_size=4))
def test_what_is_written_is_read_back(properties):
    properties = {key: value for key, value in properties.items() if key.isprintable() and value.isprintable()}
    assert parse_properties(live_settings._render(properties)) == properties


def test_nothing_kept_is_nothing(tmp_path):
    assert read_kept(tmp_path / "none") == {}
