"""docs/protocols/remoting.md lists exactly what is served."""

from __future__ import annotations

import re

from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.requests.base import served_codes
from stratamq.server.requests.namesrv_brokers import BrokerRequests
from stratamq.server.requests.namesrv_kv import KvRequests
from stratamq.server.requests.namesrv_routes import RouteRequests
from stratamq.server.requests.settings import NameSettingsRequests
from tests.tidy.tree import ROOT
from tests.unit.server.harness import Harness

NAME_SERVER: tuple[type[object], ...] = (RouteRequests, BrokerRequests, KvRequests, NameSettingsRequests)


def rows(families: tuple[type[object], ...]) -> list[str]:
    served: dict[RequestCode, str] = {}
    for family in families:
        served |= served_codes(family)
    return [f"| {code.value} {code.name} | {served[code]} |" for code in sorted(served)]


def test_the_tables_are_fresh(tmp_path):
    harness = Harness(tmp_path)
    broker = tuple(type(family) for family in harness.requests.families)
    harness.close()
    page = (ROOT / "docs" / "protocols" / "remoting.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \d+ .*\|$", page, re.MULTILINE) == rows(broker) + rows(NAME_SERVER)
