"""All families of handlers of a broker, put together in one place: for the server, and for tests without sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stratamq.broker.broker import Broker
from stratamq.logstore.retention_service import RetentionService
from stratamq.logstore.types import Arrival
from stratamq.server.live_settings import LiveSettings
from stratamq.server.requests.admin import AdminRequests
from stratamq.server.requests.assignment import AssignmentRequests
from stratamq.server.requests.base import Handler, Peer, collect
from stratamq.server.requests.groups import GroupRequests
from stratamq.server.requests.groups_changed import GroupAdminRequests
from stratamq.server.requests.ha import HaRequests
from stratamq.server.requests.members import MemberRequests
from stratamq.server.requests.messages import MessageRequests
from stratamq.server.requests.offsets import OffsetRequests
from stratamq.server.requests.pop import PopRequests
from stratamq.server.requests.pop_acks import PopAckRequests
from stratamq.server.requests.pull import PullRequests
from stratamq.server.requests.queues import QueueRequests
from stratamq.server.requests.relays import RelayRequests
from stratamq.server.requests.reply import ReplyRequests
from stratamq.server.requests.resets import ResetRequests
from stratamq.server.requests.retention import RetentionRequests
from stratamq.server.requests.send import SendRequests
from stratamq.server.requests.send_back import SendBackRequests
from stratamq.server.requests.settings import SettingsRequests
from stratamq.server.requests.timers import TimerRequests
from stratamq.server.requests.topics import TopicRequests
from stratamq.server.requests.topics_changed import TopicChangeRequests
from stratamq.server.requests.transactions import TransactionRequests


class BrokerFamilies:
    """The handlers of one broker, and what has to be told to those among them that keep requests waiting."""

    def __init__(
        self,
        broker: Broker,
        *,
        data_dir: Path,
        live: LiveSettings,
        retention: RetentionService | None = None,
        ha_status: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._broker = broker
        self.pulls = PullRequests(broker)
        self.pops = PopRequests(broker)
        self.members = MemberRequests(broker)
        self.families: tuple[object, ...] = (
            SendRequests(broker),
            self.pulls,
            MessageRequests(broker),
            self.members,
            OffsetRequests(broker),
            ReplyRequests(broker),
            SendBackRequests(broker),
            TimerRequests(broker),
            TransactionRequests(broker),
            self.pops,
            PopAckRequests(broker, self.pops.waiting.arrived),
            AssignmentRequests(broker),
            RetentionRequests(retention),
            HaRequests(ha_status),
            TopicRequests(broker),
            TopicChangeRequests(broker, self.pulls.resume),
            GroupRequests(broker),
            GroupAdminRequests(broker),
            ResetRequests(broker, self.pulls.resume),
            RelayRequests(broker),
            QueueRequests(broker),
            AdminRequests(broker, str(data_dir)),
            SettingsRequests(live, lambda: json.dumps(broker.topics.version.as_json())),
        )
        self.by_code: dict[int, Handler] = collect(*self.families)

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages can be read now: answer the pulls that wait for them."""
        self.pulls.arrived(arrivals)

    def expire(self) -> None:
        """Answer pulls and pops that have waited as long as they may. Called every tenth of a second."""
        self.pulls.expire()
        self.pops.waiting.expire()

    def check_behind(self) -> None:
        """Look for waiting pulls that somebody forgot to wake. Called every few seconds."""
        self.pulls.check_behind()

    def release_all(self) -> None:
        """Refuse whatever waits: the broker stops."""
        self.pulls.release_all()
        self.pops.waiting.release_all()

    def lost(self, peer: Peer) -> None:
        """A connection is gone, and its clients with it: tell the others of their groups."""
        self.members.notify_groups(self._broker.drop_connection(peer))

    def expire_clients(self) -> None:
        """Forget clients that have been silent too long, and tell the others of their groups."""
        self.members.notify_groups(self._broker.expire_clients())
