"""What a store costs as it grows: written, checked, verified on Spark, uploaded and compacted at several sizes.

Messages are small (128 B of JSON, a key and a tag, over 16 queues of two topics), so there are many of them. Every job
is a process of its own; what it and its children hold in anonymous memory is looked at five times a second, and the
highest sum counts. The page cache does not count: it is the system's to give away.

    python -m bench.scale 3 10 30 --directory /big/disk --json bench-output/scale.json

Prints a Markdown table for docs/design/scale.md: seconds, MiB/s and highest memory of every job at every size, and how
the cost of a GiB at the largest size compares with that at the smallest (1.00 is exactly linear).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from stratamq.clock import SystemClock
from stratamq.config import StoreConfig, TieredConfig
from stratamq.formats.message import encode_host
from stratamq.logstore.store import LogStore
from stratamq.logstore.types import Message
from stratamq.units import GiB, MiB

HOST = encode_host("127.0.0.1", 10911)
QUEUES = [(topic, queue) for topic in ("orders", "events") for queue in range(8)]
BODY_BYTES = 128
BATCH = 4096
BROKER = "scale"
POLL_S = 0.2
CLI = [sys.executable, "-m", "stratamq.cli.main"]


def bodies(rng: random.Random, count: int) -> list[bytes]:
    """JSON of `BODY_BYTES` bytes that compresses about as applications' messages do."""
    made = []
    for _ in range(count):
        text = (
            f'{{"id":{rng.randrange(10**9)},"customer":{rng.randrange(10**5)},"status":"paid","sum":{rng.random():.4f}'
        )
        made.append(
            (text + ',"note":"' + "standard delivery, no further wishes; " * 3)[: BODY_BYTES - 2].encode() + b'"}'
        )
    return made


def write(store: Path, size: int) -> None:
    """Fill a store up to ``size`` bytes of log."""
    opened = LogStore.open(store, StoreConfig(), clock=SystemClock(), store_host=HOST)
    rng, number, synced = random.Random(11), 0, 0
    stock = [bodies(rng, BATCH) for _ in range(16)]
    while opened.max_physical_offset < size:
        topic, queue = QUEUES[number % len(QUEUES)]
        template = Message(topic=topic, queue_id=queue, body=b"", properties="", born_timestamp=1, born_host=HOST)
        first = number * BATCH
        texts = [f"KEYS\x01key-{n}\x02TAGS\x01tag{n % 10}\x02" for n in range(first, first + BATCH)]
        opened.append_many(template, stock[number % len(stock)], texts)
        opened.commit()
        number += 1
        if opened.max_physical_offset - synced > 256 * MiB:
            synced = opened.max_physical_offset
            sync(opened)
    sync(opened)
    opened.close()


def sync(store: LogStore) -> None:
    """Bring what was written to the disk."""
    token = store.unsynced()
    if token is not None:
        store.sync(token)
        store.synced(token)


def upload(store: Path, tier: Path) -> None:
    """Bring a whole store into a cold tier of flat segments, as a broker's uploads do."""
    from stratamq.tiered.folder import FolderBackend
    from stratamq.tiered.local import LogQueues
    from stratamq.tiered.owner import run_inline
    from stratamq.tiered.service import TierService, open_tier

    opened = LogStore.open(store, StoreConfig(), clock=SystemClock(), store_host=HOST)
    policy = TieredConfig(compact=False)
    clock = SystemClock()
    backend = FolderBackend(str(tier))
    service = TierService(
        open_tier(policy, str(tier.parent / "catalogue"), BROKER, clock, backend=backend),
        LogQueues(opened),
        policy,
        clock,
    )
    ends = {(topic, queue): opened.max_offset(topic, queue) for topic, queue in QUEUES}
    while any(service.manifests.get(key) is None or service.manifests[key].end < end for key, end in ends.items()):
        for work in service.due(drain=True):
            run_inline(work)
    service.close()
    opened.close()


def measured(command: list[str]) -> tuple[float, int]:
    """Run a command; returns seconds and the highest anonymous memory of it and its children, in bytes."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    highest, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.wait(POLL_S):
            highest = max(highest, sum(map(anonymous_bytes, family(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output = process.communicate()[0]
    finally:
        ended.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output.decode()[-3000:]}")
    return time.perf_counter() - began, highest


def family(pid: int) -> Iterator[int]:
    """A process and all below it that are there now."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            if task.name != str(pid):
                children += (task / "children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def anonymous_bytes(pid: int) -> int:
    """What a process holds that is not backed by files; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def jobs(folder: Path, size: int) -> Iterator[tuple[str, list[str]]]:
    """Every job and its command, in order."""
    store, tier = folder / "store", folder / "tier"
    again = [sys.executable, "-m", "bench.scale", "--phase"]
    yield "write (embedded, 16 queues in turn)", [*again, "write", str(store), str(size)]
    yield "`stratamq store check`", [*CLI, "store", "check", str(store)]
    yield "`stratamq pipeline verify`", [*CLI, "pipeline", "verify", "--store", str(store)]
    yield "seal and upload to a folder", [*again, "upload", str(store), str(tier)]
    yield (
        "`stratamq pipeline compact --all`",
        [*CLI, "pipeline", "compact", f"file://{tier}", "--broker", BROKER, "--all"],
    )


def run_size(parent: Path, gib: float) -> dict[str, dict[str, float]]:
    """All jobs at one size."""
    found: dict[str, dict[str, float]] = {}
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-scale-", dir=parent))
    try:
        for job, command in jobs(folder, int(gib * GiB)):
            seconds, memory = measured(command)
            found[job] = {"seconds": seconds, "mib_per_s": gib * 1024 / seconds, "memory_mib": memory / MiB}
            print(f"{gib:g} GiB  {job}: {seconds:.1f} s, {memory / MiB:.0f} MiB", file=sys.stderr, flush=True)
        sizes = {name: sum(f.stat().st_size for f in (folder / name).rglob("*") if f.is_file()) for name in ("tier",)}
        found["stored in the tier"] = {"gib": sizes["tier"] / GiB}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def table(results: dict[float, dict[str, dict[str, float]]]) -> str:
    """The figures as a Markdown table; the last column is the cost of a GiB, largest size over smallest."""
    sizes = sorted(results)
    lines = ["| job | " + " | ".join(f"{size:g} GiB" for size in sizes) + " | cost of a GiB |"]
    lines.append("|---|" + "---|" * (len(sizes) + 1))
    for job in results[sizes[0]]:
        rows = [results[size][job] for size in sizes]
        if "seconds" in rows[0]:
            cells = [f"{r['seconds']:.0f} s, {r['mib_per_s']:.0f} MiB/s, {r['memory_mib']:.0f} MiB" for r in rows]
            cells.append(f"{rows[0]['mib_per_s'] / rows[-1]['mib_per_s']:.2f}")
        else:
            cells = [*(f"{r['gib']:.2f} GiB" for r in rows), ""]
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("sizes", nargs="*", help="sizes of the log in GiB")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--json", type=Path, default=Path("bench-output/scale.json"), help="where the figures go")
    parser.add_argument("--phase", nargs=3, metavar=("NAME", "STORE", "ARGUMENT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        name, store, argument = options.phase
        write(Path(store), int(argument)) if name == "write" else upload(Path(store), Path(argument))
        return
    results: dict[float, dict[str, dict[str, float]]] = {}
    for gib in map(float, options.sizes or ["3", "10", "30"]):
        free = shutil.disk_usage(options.directory).free / GiB
        if free < 2 * gib + 4:
            print(f"{gib:g} GiB left out: {free:.0f} GiB free, {2 * gib + 4:.0f} needed", file=sys.stderr)
            continue
        results[gib] = run_size(options.directory, gib)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({str(size): rows for size, rows in results.items()}, indent=1))
    if results:
        print(f"{os.cpu_count()} cores, CPython {sys.version.split()[0]}\n\n{table(results)}")


if __name__ == "__main__":
    main()
