"""How long a group of three brokers stands still when its leader is killed, as an unmodified C++ client sees it.

    python -m bench.failover [ROUNDS]

Each round kills the serving leader with SIGKILL while the client sends without a pause, and takes the time from the
kill to the first message that is acknowledged afterwards. The killed broker is started again and follows before the
next round. Prints one JSON object: every time in seconds, median and the largest.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.interop.cpp_world import Client
from tests.interop.replica_group import ReplicaGroup, wait_for


def measure(rounds: int) -> list[float]:
    """Seconds without an acknowledgement, one a round."""
    gaps = []
    with tempfile.TemporaryDirectory() as folder, ReplicaGroup(Path(folder)) as group:
        group.leader()
        client = Client(Path(folder), "stream", namesrv=group.namesrv, topic="failover", pause=0.005)
        try:
            client.wait_until(lambda: len(acked_at(client)) > 50, "a first message")
            for _ in range(rounds):
                leader = group.leader()
                killed = time.monotonic()
                group.signal(leader, signal.SIGKILL)
                client.wait_until(lambda: any(at > killed + 0.2 for at in acked_at(client)), "a message")  # noqa: B023
                gaps.append(min(at for at in acked_at(client) if at > killed + 0.2) - killed)
                group.start(leader)
                wait_for(lambda: group.status(leader).get("leader"), "the old leader follows")  # noqa: B023
        finally:
            client.kill()
    return gaps


def acked_at(client: Client) -> list[float]:
    """When messages were acknowledged. Monotonic time is the same in all processes of a Linux machine."""
    return [line["at"] for line in client.lines if line.get("status") == 0]


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    gaps = measure(rounds)
    found = {
        "what": "seconds from the leader's kill to the next acknowledged send",
        "rounds": rounds,
        "median": round(statistics.median(gaps), 2),
        "largest": round(max(gaps), 2),
        "all": [round(gap, 2) for gap in gaps],
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
