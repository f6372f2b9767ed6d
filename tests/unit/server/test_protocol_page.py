"""docs/protocols/remoting.md lists exactly what is served."""

from __future__ import annotations

import re

from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.requests.assignment import AssignmentRequests
from stratamq.server.requests.base import served_codes
from stratamq.server.requests.families import ADMIN_FAMILIES
from stratamq.server.requests.ha import HaRequests
from stratamq.server.requests.members import MemberRequests
from stratamq.server.requests.messages import MessageRequests
from stratamq.server.requests.namesrv_brokers import BrokerRequests
from stratamq.server.requests.namesrv_kv import KvRequests
from stratamq.server.requests.namesrv_routes import RouteRequests
from stratamq.server.requests.offsets import OffsetRequests
from stratamq.server.requests.pop import PopRequests
from stratamq.server.requests.pop_acks import PopAckRequests
from stratamq.server.requests.pull import PullRequests
from stratamq.server.requests.reply import ReplyRequests
from stratamq.server.requests.retention import RetentionRequests
from stratamq.server.requests.send import SendRequests
from stratamq.server.requests.send_back import SendBackRequests
from stratamq.server.requests.settings import NameSettingsRequests
from stratamq.server.requests.timers import TimerRequests
from stratamq.server.requests.transactions import TransactionRequests
from tests.tidy.tree import ROOT

BROKER: tuple[type[object], ...] = (
    SendRequests,
    SendBackRequests,
    TransactionRequests,
    PullRequests,
    PopRequests,
    PopAckRequests,
    AssignmentRequests,
    MessageRequests,
    MemberRequests,
    OffsetRequests,
    ReplyRequests,
    RetentionRequests,
    TimerRequests,
    HaRequests,
    *ADMIN_FAMILIES,
)
NAME_SERVER: tuple[type[object], ...] = (RouteRequests, BrokerRequests, KvRequests, NameSettingsRequests)


def rows(families: tuple[type[object], ...]) -> list[str]:
    served: dict[RequestCode, str] = {}
    for family in families:
        served |= served_codes(family)
    return [f"| {code.value} {code.name} | {served[code]} |" for code in sorted(served)]


def test_the_tables_are_fresh():
    page = (ROOT / "docs" / "protocols" / "remoting.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \d+ .*\|$", page, re.MULTILINE) == rows(BROKER) + rows(NAME_SERVER)
