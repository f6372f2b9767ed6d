"""Which topics have queues of batches: as the broker's ``config/topics.json`` says, when nobody has been asked yet."""

from __future__ import annotations

import os
from typing import Any, Final

from stratamq.errors import CorruptionError
from stratamq.files.durable import ConfigFile
from stratamq.files.filesystem import FileSystem
from stratamq.logstore import layout

QUEUE_TYPE: Final = "queue.type"
BATCH_TYPE: Final = "BatchCQ"
_TOPICS_FILE: Final = "topics.json"


def batch_topics(directory: str, *, filesystem: FileSystem | None = None) -> set[str]:
    """Topics of the store in ``directory`` whose attribute says BatchCQ. A file that cannot be used names none.

    Raises OSError.
    """
    try:
        document = ConfigFile(os.path.join(directory, layout.CONFIG, _TOPICS_FILE), filesystem).load()
    except CorruptionError:
        return set()  # whoever reads topics says so
    table = document.get("topicConfigTable") if isinstance(document, dict) else None
    return {str(name) for name, topic in (table if isinstance(table, dict) else {}).items() if is_batch_topic(topic)}


def is_batch_topic(topic: Any) -> bool:
    """Whether an entry of ``topics.json`` is one of a topic with queues of batches."""
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH_TYPE
