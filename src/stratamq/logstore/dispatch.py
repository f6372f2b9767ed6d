"""What a record puts into consume queues and index: tags codes and keys. Pure functions.

Source: apache/rocketmq CommitLog.checkMessageAndReturnSize, IndexService.buildIndex.
"""

from __future__ import annotations

from typing import Final

from stratamq.formats.java import tags_code
from stratamq.formats.properties import DELAY, KEYS, TAGS, UNIQ_KEY, find_property, split_keys

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_UNKNOWN_LEVEL_MS: Final = 1_000


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
