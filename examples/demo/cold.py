"""The cold tier in the demo: wait until it has everything, then serve all of it from an empty data directory."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.demo import orders
from examples.demo.processes import DemoFailed, Processes

SECONDS_MAX = 120.0
SETTINGS = "tieredStoreGroupCommitTimeout=3000\n"
"""Upload what has waited three seconds, not thirty: the demo is in a hurry."""


def tier_options(out: Path) -> list[str]:
    """What ``stratamq serve`` is told about the tier: a folder beside the store."""
    config = out / "broker.conf"
    config.write_text(SETTINGS)
    return ["--tier", tier_url(out), "--config", str(config)]


def tier_url(out: Path) -> str:
    """The tier's address."""
    return f"file://{out / 'cold'}"


def wait_for_tier(http: str, events: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Wait until the tier has every event; returns what the broker says of it. Raises DemoFailed."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with urllib.request.urlopen(f"http://{http}/api/v1/tier", timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
        queues = [row for row in said["queues"] if row["topic"] in orders.TOPICS]
        have = sum(row["end"] - row["start"] for row in queues)
        progress(have)
        if have == events and not any(row["waiting_messages"] for row in queues):
            return said
        if time.monotonic() > deadline or said["problems"]:
            raise DemoFailed(f"the cold tier has {have:,} of {events:,} events: {said['problems'] or said['failure']}")
        time.sleep(0.2)


def go_to_the_start(processes: Processes, namesrv: str, broker: str, group: str) -> None:
    """Let a consumer group, which the new broker does not know, begin at each topic's first message.

    Raises DemoFailed.
    """
    commands = [["group", "update", "-g", group, "-b", broker]]
    commands += [["offset", "reset", "-g", group, "-t", topic, "-s", "0"] for topic in orders.TOPICS]
    for number, words in enumerate(commands):
        code, _ = processes.run_json(f"group-{number}", [*words, "-n", namesrv, "--output", "json"])
        if code:
            raise DemoFailed(f"{' '.join(words)} failed:\n{processes.last_lines(f'group-{number}')}")


def check_tier(processes: Processes, out: Path) -> None:
    """Read every record of the tier and compare every checksum. Raises DemoFailed."""
    code, _ = processes.run_json("tier-check", ["tier", "check", tier_url(out), "--deep", "--output", "json"])
    if code:
        raise DemoFailed(f"stratamq tier check found something wrong:\n{processes.last_lines('tier-check')}")
