"""Every setting, typed, once: default, bounds, unit and text; a module for each section.

A setting that RocketMQ also has carries RocketMQ's property name; `broker.conf` is read by those names. A part of the
program receives the section that it needs, never a global. Sizes are bytes, durations milliseconds.
"""

from __future__ import annotations

from stratamq.config.broker import DELAY_LEVELS_DEFAULT, BrokerConfig, parse_delay_levels
from stratamq.config.declare import Section, SettingInfo, key_of, own_name, setting, settings_of
from stratamq.config.ha import BrokerRole, HaConfig
from stratamq.config.queue_store import QueueStoreConfig
from stratamq.config.retention import RetentionConfig
from stratamq.config.server import ServerConfig
from stratamq.config.store import FlushMode, StoreConfig
from stratamq.config.tiered import TieredConfig, TieredLevel
from stratamq.config.tls import ClientAuth, LoginFrom, TlsConfig, TlsMode

__all__ = [
    "DELAY_LEVELS_DEFAULT",
    "SECTIONS",
    "BrokerConfig",
    "BrokerRole",
    "ClientAuth",
    "FlushMode",
    "HaConfig",
    "LoginFrom",
    "QueueStoreConfig",
    "RetentionConfig",
    "Section",
    "ServerConfig",
    "SettingInfo",
    "StoreConfig",
    "TieredConfig",
    "TieredLevel",
    "TlsConfig",
    "TlsMode",
    "key_of",
    "own_name",
    "parse_delay_levels",
    "setting",
    "settings_of",
]

SECTIONS: tuple[type[Section], ...] = (
    ServerConfig,
    BrokerConfig,
    QueueStoreConfig,
    StoreConfig,
    RetentionConfig,
    TieredConfig,
    HaConfig,
    TlsConfig,
)
"""All sections, in the order of docs/configuration.md."""
