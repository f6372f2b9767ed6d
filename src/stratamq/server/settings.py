"""All settings of one process, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratamq.config import (
    BrokerConfig,
    HaConfig,
    QueueStoreConfig,
    RetentionConfig,
    ServerConfig,
    StoreConfig,
    TieredConfig,
    TlsConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sections of a broker's process, and where its data is."""

    data_dir: Path
    server: ServerConfig = field(default_factory=ServerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    tiered: TieredConfig = field(default_factory=TieredConfig)
    queues: QueueStoreConfig = field(default_factory=QueueStoreConfig)
    ha: HaConfig = field(default_factory=HaConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)

    @property
    def config_dir(self) -> Path:
        """Where the broker's tables are, and what operators changed."""
        return self.data_dir / "config"

    def shown(self) -> dict[type[Any], Any]:
        """The sections that operators see, and of which they may change some settings, by class."""
        return {type(part): part for part in (self.server, self.broker, self.store, self.retention)}

    def changed(self, sections: Mapping[type[Any], Any]) -> Settings:
        """These settings with the sections of which a part may change while the broker runs."""
        return replace(self, broker=sections[BrokerConfig], retention=sections[RetentionConfig])
