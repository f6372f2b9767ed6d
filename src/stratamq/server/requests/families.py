"""The families of handlers that serve operators, in one place for the broker and for tests."""

from __future__ import annotations

from typing import Final

from stratamq.broker.broker import Broker
from stratamq.server.requests.admin import AdminRequests
from stratamq.server.requests.groups import GroupRequests
from stratamq.server.requests.groups_changed import GroupAdminRequests
from stratamq.server.requests.pull import PullRequests
from stratamq.server.requests.queues import QueueRequests
from stratamq.server.requests.relays import RelayRequests
from stratamq.server.requests.resets import ResetRequests
from stratamq.server.requests.settings import SettingsRequests
from stratamq.server.requests.topics import TopicRequests
from stratamq.server.requests.topics_changed import TopicChangeRequests

ADMIN_FAMILIES: Final[tuple[type[object], ...]] = (
    TopicRequests,
    TopicChangeRequests,
    GroupRequests,
    GroupAdminRequests,
    ResetRequests,
    RelayRequests,
    QueueRequests,
    AdminRequests,
    SettingsRequests,
)


def admin_families(broker: Broker, pulls: PullRequests, data_dir: str) -> tuple[object, ...]:
    """All but `SettingsRequests`, which needs to know where settings are kept."""
    return (
        TopicRequests(broker),
        TopicChangeRequests(broker),
        GroupRequests(broker),
        GroupAdminRequests(broker),
        ResetRequests(broker, pulls.resume),
        RelayRequests(broker),
        QueueRequests(broker),
        AdminRequests(broker, data_dir),
    )
