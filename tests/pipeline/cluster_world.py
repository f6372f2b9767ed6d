"""Drivers and clusters as processes that a test may kill, a standalone master with a worker among them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
EXECUTOR = b"CoarseGrainedExecutorBackend"
WAIT_S = 240.0


def wait_for(what: str, condition: Callable[[], Any], *, log: Path | None = None) -> Any:
    """Wait until a condition holds, and return what it gave."""
    until = time.monotonic() + WAIT_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > until:
            said = log.read_text(errors="replace")[-3000:] if log is not None else ""
            raise AssertionError(f"not within {WAIT_S:g} s: {what}\n{said}")
        time.sleep(0.1)


def descendants(pid: int) -> set[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def executors(pid: int) -> list[int]:
    """The executors below a process."""
    found = []
    for one in sorted(descendants(pid)):
        with contextlib.suppress(OSError):
            if EXECUTOR in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found


class Processes:
    """Processes in groups of their own. Leaving the ``with`` kills what still runs."""

    def __init__(self, work: Path) -> None:
        self.work = work
        # Short, because sockets lie in it; and what killed processes leave in it goes with it.
        self.temporary = tempfile.mkdtemp(prefix="smq-")
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._running):
            self.kill(process)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command; what it prints goes to ``NAME.log``."""
        from stratamq.pipeline.java import find_java

        environment = {
            **os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(find_java().home), "SPARK_WORKER_DIR": str(self.work / "worker"),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.work / "local"), "TMPDIR": self.temporary,
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self.temporary} -XX:-UsePerfData",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }  # fmt: skip
        with (self.work / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.work, env=environment, start_new_session=True
            )
        self._running.append(process)
        return process

    def script(self, name: str, text: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python script."""
        path = self.work / f"{name}.py"
        path.write_text(text)
        return self.start(name, [sys.executable, str(path), *arguments])

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, its group and all that came from it."""
        below = descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
        for one in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def finish(self, name: str, process: subprocess.Popen[bytes]) -> str:
        """Wait until a process has ended well; the last line of its log that is JSON."""
        wait_for(f"the end of {name}", lambda: process.poll() is not None, log=self.work / f"{name}.log")
        said = (self.work / f"{name}.log").read_text(errors="replace")
        assert process.returncode == 0, said[-4000:]
        return [line for line in said.splitlines() if line.startswith("{")][-1]

    def start_cluster(self) -> tuple[str, subprocess.Popen[bytes]]:
        """A standalone master and a worker with two cores, out of the installed pyspark. Returns URL and worker."""
        import pyspark

        spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        port, master_ui, worker_ui = free_ports(3)
        url = f"spark://127.0.0.1:{port}"
        place, deploy = ["--host", "127.0.0.1"], "org.apache.spark.deploy"
        ports = ["--port", str(port), "--webui-port", str(master_ui)]
        self.start("master", [spark_class, f"{deploy}.master.Master", *place, *ports])
        worker = self.start(
            "worker",
            [
                spark_class,
                f"{deploy}.worker.Worker",
                *place,
                "--webui-port",
                str(worker_ui),
                "-c",
                "2",
                "-m",
                "2g",
                url,
            ],
        )
        log = self.work / "worker.log"
        wait_for("the worker's registration", lambda: b"Successfully registered" in log.read_bytes(), log=log)
        return url, worker
