"""What a record puts into consume queues and index: tags codes and keys. Pure functions.

Source: apache/rocketmq CommitLog.checkMessageAndReturnSize, IndexService.buildIndex.
"""

from __future__ import annotations

from typing import Final

from stratamq.errors import ConfigError
from stratamq.formats.java import tags_code
from stratamq.formats.properties import DELAY, KEYS, TAGS, UNIQ_KEY, find_property, split_keys

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS_DEFAULT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1_000


def decode_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of level 1, 2, ... from ``"1s 5s ..."``. Raises ConfigError."""
    levels = []
    for part in text.split():
        if part[-1] not in _UNIT_MS or not part[:-1].isdigit():
            raise ConfigError("messageDelayLevel", text, "numbers with unit s, m, h or d, separated by spaces")
        levels.append(int(part[:-1]) * _UNIT_MS[part[-1]])
    return tuple(levels)


def scheduled_tags_code(properties: str, store_timestamp: int, delay_levels: tuple[int, ...]) -> int | None:
    """Tags code of a record in the schedule topic: when it is to be delivered; None when it has no delay level."""
    text = find_property(properties, DELAY)
    if text is None:
        return None
    try:
        level = int(text)
    except ValueError:
        return None
    if level <= 0:
        return None
    level = min(level, len(delay_levels))
    return store_timestamp + (delay_levels[level - 1] if level else _UNKNOWN_LEVEL_MS)


def unit_tags_code(topic: str, properties: str, store_timestamp: int, delay_levels: tuple[int, ...]) -> int:
    """What the consume-queue unit of a record carries as tags code."""
    if topic == SCHEDULE_TOPIC:
        code = scheduled_tags_code(properties, store_timestamp, delay_levels)
        if code is not None:
            return code
    tags = find_property(properties, TAGS) if properties else None
    return tags_code(tags) if tags else 0


def index_keys(properties: str) -> list[str]:
    """Keys under which a record is indexed, in the index file's order: the unique key, then each of KEYS."""
    unique = find_property(properties, UNIQ_KEY)
    keys = find_property(properties, KEYS)
    if keys is None:
        return [] if unique is None else [unique]
    found = split_keys(keys) if " " in keys else [keys]
    return found if unique is None else [unique, *found]
