"""How long a group of three brokers stands still when its leader is killed, as several clients see it.

    python -m bench.failover [ROUNDS] [--shared-port] [--clients own,java-1s,java,cpp]

Each round kills the serving leader with SIGKILL while the clients send without a pause, and takes the time from the
kill to the first message of each client that is acknowledged afterwards. The killed broker is started again and follows
before the next round. Prints one JSON object: for each client every time in seconds, median, 99th percentile, largest.

``own`` asks the name server before each attempt: what it sees is the broker side alone. ``java`` is RocketMQ's client
5.5.0 as it comes (it asks the name server every 30 s), ``java-1s`` the same with pollNameServerInterval 1 s, ``cpp``
the C++ client as it comes, which has no such setting. ``--shared-port``: all members have one broker port, as
``stratamq serve --replicas 3`` gives them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from stratamq.errors import PeerUnreachable, RemoteProtocolError
from stratamq.protocols.remoting.bodies import load_object
from stratamq.protocols.remoting.codes import RequestCode
from stratamq.server.remoting_client import RemotingClient
from tests.interop.cpp_world import Client
from tests.interop.replica_group import ReplicaGroup, wait_for
from tests.interop.rocketmq_java.runner import CallFailed, JavaClient

TOPIC = "failover"
WARM = 30
Times = Callable[[], list[float]]
PAUSE_S = 0.005
FOLLOWS_S = 180.0


@contextmanager
def own(group: ReplicaGroup, folder: Path) -> Iterator[Times]:
    """Our own remoting client: route, connect, send; after a failure all of that again."""
    acked: list[float] = []
    loop = asyncio.new_event_loop()

    async def send_on() -> None:
        while True:
            try:
                async with await RemotingClient.connect(await leader_address(group.namesrv), timeout_s=1) as client:
                    while True:
                        header, _ = await client.request(RequestCode.SEND_MESSAGE_V2, SEND, b"x" * 64, timeout_s=2)
                        if header.code != 0:
                            raise RemoteProtocolError(header.remark or "refused")
                        acked.append(time.monotonic())
                        await asyncio.sleep(PAUSE_S)
            except (PeerUnreachable, RemoteProtocolError, LookupError, OSError):
                await asyncio.sleep(PAUSE_S)

    task = loop.create_task(send_on())

    def run() -> None:
        ended = loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        if not isinstance(ended[0], asyncio.CancelledError):
            sys.stderr.write(f"the client ended: {ended[0]!r}\n")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: acked
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


SEND = {"a": "own", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1767225600000", "h": "0", "i": ""}


async def leader_address(namesrv: str) -> str:
    """Where the name server says the leader is. Raises LookupError when it knows none."""
    async with await RemotingClient.connect(namesrv, timeout_s=1) as client:
        header, body = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}, timeout_s=1)
    if header.code != 0:
        raise LookupError(header.remark)
    return str(load_object(body)["brokerDatas"][0]["brokerAddrs"]["0"])


@contextmanager
def cpp(group: ReplicaGroup, folder: Path) -> Iterator[Times]:
    """The C++ client, in a process of its own."""
    client = Client(folder, "stream", namesrv=group.namesrv, topic=TOPIC, pause=PAUSE_S)
    try:
        yield lambda: [line["at"] for line in client.lines if line.get("status") == 0]
    finally:
        client.kill()


def java(poll_ms: int) -> Callable[[ReplicaGroup, Path], AbstractContextManager[Times]]:
    """RocketMQ's Java client, with so much time between two questions to the name server."""

    @contextmanager
    def run(group: ReplicaGroup, folder: Path) -> Iterator[Times]:
        acked: list[float] = []
        ended = threading.Event()
        work = folder / f"java-{poll_ms}"
        work.mkdir()
        with JavaClient(work, version="5.5.0", heap="128m") as client:
            client.producer(group.namesrv, id="p", group=f"g{poll_ms}", pollMs=poll_ms)

            def send_on() -> None:
                while not ended.wait(PAUSE_S):
                    try:
                        row = client.send([{"topic": TOPIC, "text": "x"}])[0]
                    except CallFailed:
                        continue
                    if row.get("status") == "SEND_OK":
                        acked.append(time.monotonic())

            thread = threading.Thread(target=send_on)
            thread.start()
            try:
                yield lambda: acked
            finally:
                ended.set()
                thread.join()

    return run


CLIENTS: dict[str, Callable[[ReplicaGroup, Path], AbstractContextManager[Times]]] = {
    "own": own,
    "java-1s": java(1_000),
    "java": java(30_000),
    "cpp": cpp,
}


def measure(rounds: int, names: list[str], *, shares_port: bool) -> dict[str, list[float]]:
    """Seconds without an acknowledgement, one a round, for each client."""
    gaps: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(ReplicaGroup(folder, shares_port=shares_port))
        group.leader()
        times: dict[str, Times] = {name: stack.enter_context(CLIENTS[name](group, folder)) for name in names}
        for _ in range(rounds):
            for name in names:
                started = len(times[name]())
                wait_for(lambda: len(times[name]()) >= started + WARM, f"{name} sends", FOLLOWS_S)  # noqa: B023
            leader = group.leader()
            killed = time.monotonic()
            group.signal(leader, signal.SIGKILL)
            dead = time.monotonic()
            for name in names:
                wait_for(lambda: times[name]()[-1] > dead + 0.1, f"{name} sends again", FOLLOWS_S)  # noqa: B023
                gaps[name].append(min(at for at in times[name]() if at > dead + 0.1) - killed)
            group.start(leader)
            wait_for(lambda: group.status(leader).get("leader"), "the old leader follows")  # noqa: B023
            sys.stderr.write(" ".join(f"{name} {gaps[name][-1]:.2f}" for name in names) + "\n")
    return gaps


def figures(gaps: list[float]) -> dict[str, object]:
    """The distribution of one client's times."""
    ordered = sorted(round(gap, 2) for gap in gaps)
    return {
        "median": round(statistics.median(ordered), 2),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "largest": ordered[-1],
        "all": ordered,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.failover", description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    parser.add_argument("--shared-port", action="store_true")
    parser.add_argument("--clients", default="own")
    options = parser.parse_args()
    gaps = measure(options.rounds, options.clients.split(","), shares_port=options.shared_port)
    found = {
        "what": "seconds from the leader's kill to the next acknowledged send",
        "rounds": options.rounds,
        "shared port": options.shared_port,
        "clients": {name: figures(found) for name, found in gaps.items()},
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
