"""The demo's child processes: started in a group of their own, watched over a pipe, and never left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STRATAMQ = [sys.executable, "-c", "import sys; from stratamq.cli.main import main; sys.exit(main())"]
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


class DemoFailed(Exception):
    """Something did not happen as it must; the text says what."""


class Processes:
    """Every process the demo starts. Leaving the ``with`` ends those that still run."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, command: Sequence[str], *, pass_fd: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command with what it prints going to ``NAME.log``."""
        home = self.logs / "home"  # the C++ client writes its log below HOME, and cannot do without one
        home.mkdir(parents=True, exist_ok=True)
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
                pass_fds=() if pass_fd is None else (pass_fd,),
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the others in order
            )
        self._running.append(process)
        return process

    def start_broker(self, data: Path, *more: str) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        """Start ``stratamq serve`` on free ports. Returns the process and its addresses."""
        ready = self.logs / "ready.json"
        ready.unlink(missing_ok=True)
        ports = [word for name in ("namesrv", "broker", "http", "amqp") for word in (f"--{name}-port", "0")]
        command = [*STRATAMQ, "serve", "--data-dir", str(data), *ports, "--ready-file", str(ready), *more]
        process = self.start("broker", command)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise DemoFailed(f"the broker did not start; it said:\n{self.last_lines('broker')}")
            time.sleep(0.05)
        addresses: dict[str, str] = json.loads(ready.read_text())
        return process, addresses

    def start_client(self, name: str, arguments: Sequence[str]) -> Client:
        """Start `examples.demo.clients`."""
        read, write = os.pipe()
        command = [sys.executable, "-m", "examples.demo.clients", *arguments, "--report-fd", str(write)]
        try:
            return Client(name, self.start(name, command, pass_fd=write), read)
        finally:
            os.close(write)

    def last_lines(self, name: str, count: int = 15) -> str:
        """The end of a process's log."""
        return "\n".join((self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-count:])

    def run_json(self, name: str, arguments: Sequence[str]) -> tuple[int, list[Any]]:
        """Run a ``stratamq`` command that prints JSON, one object a line; its exit code and the objects."""
        done = subprocess.run(
            [*STRATAMQ, *arguments], capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, check=False
        )
        (self.logs / f"{name}.log").write_text(done.stdout + done.stderr)
        try:
            return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]
        except ValueError:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise DemoFailed(
                f"stratamq {' '.join(arguments)} printed no JSON (exit code {done.returncode}):\n{said}"
            ) from None


class Client:
    """A client process and the pipe it reports over."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.name = name
        self.process = process
        self.done = 0
        self.seconds = 0.0
        self.error = ""
        self._pipe = os.fdopen(descriptor, "rb", buffering=0)
        self._rest = b""

    def fileno(self) -> int:
        """The pipe, for a selector."""
        return self._pipe.fileno()

    def close(self) -> None:
        """Let go of the pipe."""
        self._pipe.close()

    def read(self) -> bool:
        """Take what has been reported. False when the client has closed its end."""
        piece = self._pipe.read(65536)
        if not piece:
            return False
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.done = said.get("done", self.done)
            self.seconds = said.get("seconds", self.seconds)
            self.error = said.get("error", self.error)
        return True


def watch(clients: Sequence[Client], progress: Callable[[int], None], processes: Processes) -> None:
    """Wait for clients to end, telling ``progress`` what all have done together. Raises DemoFailed when one fails."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.close()
            progress(sum(client.done for client in clients))
    for client in clients:
        code = client.process.wait(STOP_SECONDS_MAX)
        if code or client.error:
            said = client.error or processes.last_lines(client.name)
            raise DemoFailed(f"the client {client.name} failed (exit code {code}): {said}")


def stop_broker(process: subprocess.Popen[bytes], processes: Processes) -> None:
    """SIGTERM, and an orderly end with exit code 0."""
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the broker did not stop within {STOP_SECONDS_MAX:.0f} s of SIGTERM") from None
    if code:
        raise DemoFailed(f"the broker ended with exit code {code}; it said:\n{processes.last_lines('broker')}")
