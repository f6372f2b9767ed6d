"""What a leader takes from clients: nothing for the topics that belong to the group itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stratamq.logstore.types import Message, PutResult, PutStatus
from stratamq.replication.committer import GROUP_TOPICS, MemberCommitter


@pytest.mark.parametrize("topic", sorted(GROUP_TOPICS))
async def test_clients_cannot_put_into_the_groups_own_topics(topic: str) -> None:
    store: Any = SimpleNamespace(config=SimpleNamespace(sync_flush_timeout_ms=1))
    core: Any = SimpleNamespace(term=1, may_append=True)
    results: list[PutResult] = []
    message = Message(topic=topic, queue_id=0, body=b"", properties="", born_timestamp=1, born_host=bytes(8))
    MemberCommitter(store, core, lambda: None).put([message], results.append)
    assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL]
