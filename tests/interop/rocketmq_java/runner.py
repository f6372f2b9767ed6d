"""Run Apache RocketMQ and its Java client beside the tests.

Jars come from Maven Central through ``pom.xml`` into a cache folder outside the repository
(``$STRATAMQ_INTEROP_CACHE``, else ``$XDG_CACHE_HOME/stratamq-interop``, else ``~/.cache/stratamq-interop``); the Java
sources in ``java/`` are compiled against each version there. Two kinds of process:

* `RocketServer`: RocketMQ's name server and broker in one JVM, on free loopback ports, over a store directory.
* `JavaClient`: RocketMQ's client in a JVM of its own, driven by JSON lines, against any name server.

Both JVMs halt when their standard input ends, so they never outlive the process that started them. Where ``mvn``,
``java``, ``javac`` or the network is missing, `Unavailable` says which; tests turn that into a skip.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.ports import free_ports

HERE = Path(__file__).resolve().parent

# The newest releases whose artifacts are all on Maven Central: of 5.3.4 and 5.5.1 only some modules are there.
SERVER_VERSIONS = ("5.3.3", "5.5.0")
CLIENT_VERSIONS = ("5.3.3", "5.5.0", "4.9.7")
DEFAULT_VERSION = "5.3.3"

# Drivers that need the broker's jars.
SERVER_SOURCES = ("Server.java", "Special.java", "Filter.java")

RESOLVE_TIMEOUT_S = 300
START_TIMEOUT_S = 150
STOP_TIMEOUT_S = 150
CALL_TIMEOUT_S = 120

# RocketMQ reads and writes Netty's and its own internals by reflection; Java 17 and later refuse that without these.
OPENED = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/java.lang",
    "java.base/java.util",
)

Row = dict[str, Any]


class Unavailable(Exception):
    """RocketMQ cannot be run on this machine; the text says what is missing."""


class CallFailed(Exception):
    """The client threw; ``exception``, ``code`` and the text are the client's own."""

    def __init__(self, command: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{command}: {error.get('exception')} {error.get('code', '')} {error.get('message')}")
        self.exception = str(error.get("exception"))
        self.code = error.get("code")
        self.message = str(error.get("message"))


def cache_dir() -> Path:
    """The folder for jars and classes; made when missing."""
    named = os.environ.get("STRATAMQ_INTEROP_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else base / "stratamq-interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def java_tool(name: str) -> str:
    """Path of ``java``, ``javac`` or ``mvn``: from ``$JAVA_HOME`` first, then ``$PATH``."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


def java_major() -> int:
    """The major version of ``java``: 8, 11, 17 and so on."""
    text = subprocess.run([java_tool("java"), "-version"], capture_output=True, text=True, timeout=120).stderr
    version = text.split('"')[1] if text.count('"') >= 2 else "0"
    parts = version.split(".")
    return int(parts[1] if parts[0] == "1" else parts[0].split("-")[0])


def classpath(version: str = DEFAULT_VERSION, *, kind: str = "server") -> str:
    """Class path with RocketMQ ``version`` and the compiled drivers; resolves and compiles what is not cached yet.

    Args:
        version: A release, see `SERVER_VERSIONS` and `CLIENT_VERSIONS`.
        kind: ``server`` (broker, name server, tools, client) or ``client`` (client and tools only).

    Raises:
        Unavailable: No Java 8, no Maven, or Maven Central did not give the jars.
    """
    java_tool("javac")
    if java_major() < 8:
        raise Unavailable("java is older than 8")
    folder = cache_dir() / f"rocketmq-{kind}-{version}"
    sources = sorted((HERE / "java").glob("*.java"))
    if kind == "client":
        sources = [source for source in sources if source.name not in SERVER_SOURCES]
    inputs = [*sources, HERE / "java" / "rmq.logback.xml"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in inputs)).hexdigest()[:16]
    classes = folder / f"classes-{digest}"
    with (cache_dir() / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = folder / "jars"
        if not jars.exists():
            _resolve(version, kind, jars)
        if not classes.exists():
            _compile(sources, jars, classes)
    return f"{classes}{os.pathsep}{jars}/*"


def _resolve(version: str, kind: str, jars: Path) -> None:
    partial = jars.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [java_tool("mvn"), "-q", "-B", "-U", "-f", str(HERE / "pom.xml"), "-P", kind]
    command += [f"-Drocketmq.version={version}", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"Maven Central gave no RocketMQ {version} within {RESOLVE_TIMEOUT_S} s") from late
    if done.returncode != 0 or not partial.is_dir():
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no jars")
        raise Unavailable(f"Maven Central gave no RocketMQ {version}: {reason[:300]}")
    partial.rename(jars)


def _compile(sources: Sequence[Path], jars: Path, classes: Path) -> None:
    partial = classes.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    release = ["--release", "8"] if java_major() >= 9 else []
    command = [java_tool("javac"), *release, "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(partial)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise RuntimeError(f"the drivers do not compile:\n{done.stderr}")
    shutil.copy(HERE / "java" / "rmq.logback.xml", partial)
    partial.rename(classes)


def free_port() -> int:
    """A loopback port that is free now."""
    return free_ports()[0]


def free_broker_port() -> int:
    """A port whose neighbours -2 (fast listener) and +1 (replication) are free as well."""
    return free_ports(offsets=(-2, 0, 1))[0]


def jvm_command(*, heap: str, work: Path) -> list[str]:
    """``java`` with the options that every JVM here gets."""
    opened = [f"--add-opens={module}=ALL-UNNAMED" for module in OPENED] if java_major() >= 9 else []
    command = [java_tool("java"), f"-Xmx{heap}", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    # Logs, local offsets and anything else that RocketMQ puts into the home folder go to the work folder.
    command += ["-XX:MaxDirectMemorySize=512m", *opened, f"-Duser.home={work}", "-Dfile.encoding=UTF-8"]
    return [*command, f"-Dinterop.log.level={os.environ.get('STRATAMQ_INTEROP_LOG', 'WARN')}"]


def run_java(main: str, *arguments: str, version: str = DEFAULT_VERSION, work: Path | None = None) -> str:
    """Run a driver to its end on the server's jars and return what it printed."""
    command = [*jvm_command(heap="512m", work=work or cache_dir()), "-cp", classpath(version, kind="server")]
    done = subprocess.run([*command, main, *arguments], capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise RuntimeError(f"{main} failed:\n{done.stderr[-3000:]}")
    return done.stdout


class _Jvm:
    """A child JVM that speaks JSON lines; its own process group, its log in the work folder."""

    def __init__(self, arguments: Sequence[str], *, class_path: str, work: Path, heap: str, name: str) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.log_path = work / f"{name}.log"
        command = [*jvm_command(heap=heap, work=work), "-Djava.net.preferIPv4Stack=true"]
        environment = {**os.environ, "ROCKETMQ_HOME": str(work)}
        environment.pop("NAMESRV_ADDR", None)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-cp", class_path, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                start_new_session=True,
                env=environment,
                cwd=work,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """True while the JVM runs."""
        return self.process.poll() is None

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill -9 the process group and reap it."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=STOP_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def log_tail(self, lines: int = 30) -> str:
        """The end of what the JVM printed, for messages."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""


def properties(values: Mapping[str, object]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{key}={str(value).replace(chr(92), chr(92) * 2)}\n" for key, value in values.items())


class RocketServer:
    """RocketMQ's name server and broker over ``store``, in one JVM.

    As a context manager it starts on entry and is stopped in order on a clean exit, killed otherwise. ``start`` may be
    called again after ``stop`` or ``kill``: ports stay the same, so offset message ids stay valid.

    Args:
        store: ``storePathRootDir``; made when missing.
        work: Folder for configuration, logs and RocketMQ's own home.
        version: RocketMQ release.
        settings: Properties for ``broker.conf`` over the defaults in `broker_settings`.
        namesrv: True for a name server of its own; an address to register with one elsewhere.
        heap: ``-Xmx`` of the JVM.
    """

    def __init__(
        self,
        store: Path,
        work: Path,
        *,
        version: str = DEFAULT_VERSION,
        settings: Mapping[str, object] | None = None,
        namesrv: bool | str = True,
        heap: str = "512m",
    ) -> None:
        self.store = store
        self.work = work
        self.version = version
        self.heap = heap
        self.broker_port = free_broker_port()
        self.own_namesrv = namesrv is True
        self.namesrv_port = free_port() if self.own_namesrv else 0
        self.namesrv = f"127.0.0.1:{self.namesrv_port}" if namesrv is True else str(namesrv)
        self.settings = {**self.broker_settings(), **(settings or {})}
        self._jvm: _Jvm | None = None

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def pid(self) -> int:
        assert self._jvm is not None
        return self._jvm.pid

    def broker_settings(self) -> dict[str, object]:
        """Defaults: loopback, small files, everything created on demand, no disk cleaning."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self.broker_port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1_000,
            "maxIndexNum": 4_000,
            "mappedFileSizeTimerLog": 1 << 20,
            "flushDiskType": "ASYNC_FLUSH",
            "fileReservedTime": 1_000,
            "diskMaxUsedSpaceRatio": 95,
            "timerWheelEnable": "false",
            "enablePropertyFilter": "true",
            "waitTimeMillsInSendQueue": 10_000,
            "osPageCacheBusyTimeOutMills": 10_000,
            "transactionCheckInterval": 5_000,
            "transactionTimeOut": 2_000,
            "metricsExporterType": "DISABLE",
        }

    def start(self) -> Self:
        """Start and wait until the broker is up and registered."""
        self.store.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        namesrv_conf = self.work / "namesrv.conf"
        namesrv_conf.write_text(properties({"listenPort": self.namesrv_port, "bindAddress": "127.0.0.1"}))
        broker_conf = self.work / "broker.conf"
        broker_conf.write_text(properties(self.settings))
        arguments = ["Server", "serve", str(namesrv_conf) if self.own_namesrv else "-", str(broker_conf)]
        path = classpath(self.version, kind="server")
        self._jvm = _Jvm(arguments, class_path=path, work=self.work, heap=self.heap, name="server")
        self._expect("ready", START_TIMEOUT_S)
        return self

    def stop(self) -> None:
        """Clean shutdown: broker, then name server."""
        if self._jvm is None:
            return
        try:
            self._jvm.write_line("stop")
            self._expect("stopped", STOP_TIMEOUT_S)
            self._jvm.process.wait(timeout=STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill -9, as a crash would."""
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm = None

    def _expect(self, word: str, timeout_s: float) -> None:
        assert self._jvm is not None
        jvm = self._jvm
        assert jvm.process.stdout is not None
        late = threading.Timer(timeout_s, jvm.kill)
        late.start()
        try:
            for line in jvm.process.stdout:
                if line.startswith("{") and json.loads(line).get(word):
                    return
        except ValueError:
            pass  # the timer closed the pipe
        finally:
            late.cancel()
        tail = jvm.log_tail()
        self.kill()
        raise RuntimeError(f"RocketMQ {self.version} did not get {word} within {timeout_s} s:\n{tail}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


class JavaClient:
    """RocketMQ's Java client in a JVM of its own.

    ``call`` runs one command of ``Driver.java`` and returns its result; ``submit`` does not wait. The named methods are
    short forms. Every client that a command starts has an ``id`` that is its instance name as well.

    Args:
        work: Folder for logs and local (broadcast) offsets.
        version: Client release.
        kind: ``client`` jars by default; ``server`` shares the server's jars when they are resolved anyway.
        jvm_properties: System properties, e.g. ``{"rocketmq.serialize.type": "ROCKETMQ"}``.
    """

    def __init__(
        self,
        work: Path,
        *,
        version: str = DEFAULT_VERSION,
        jvm_properties: Mapping[str, str] | None = None,
        heap: str = "384m",
        name: str = "client",
    ) -> None:
        kind = "server" if version in SERVER_VERSIONS else "client"
        # RocketMQ waits 20 s between two looks at who has which queue, and between two tries to lock one.
        quick = dict.fromkeys(("waitInterval", "lockInterval"), "1000")
        settings = {f"rocketmq.client.rebalance.{name}": value for name, value in quick.items()} | dict(
            jvm_properties or {}
        )
        arguments = [f"-D{key}={value}" for key, value in settings.items()] + ["Driver"]
        path = classpath(version, kind=kind)
        self._jvm = _Jvm(arguments, class_path=path, work=work, heap=heap, name=name)
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._lock = threading.Lock()
        self._last_call = 0
        self._reader = threading.Thread(target=self._read, name=f"{name}-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._jvm.process.stdout is not None
        try:
            for line in self._jvm.process.stdout:
                reply = json.loads(line)
                with self._lock:
                    command, future = self._waiting.pop(reply["call"])
                if "error" in reply:
                    future.set_exception(CallFailed(command, reply["error"]))
                else:
                    future.set_result(reply["ok"])
        except ValueError:
            pass  # the pipe was closed under us
        with self._lock:
            left, self._waiting = self._waiting, {}
        for command, future in left.values():
            future.set_exception(RuntimeError(f"the client JVM ended during {command}:\n{self._jvm.log_tail()}"))

    def submit(self, command: str, **fields: Any) -> Future[Any]:
        """Start a command; the future gives its result or `CallFailed`."""
        future: Future[Any] = Future()
        with self._lock:
            self._last_call += 1
            number = self._last_call
            self._waiting[number] = (command, future)
            self._jvm.write_line(json.dumps({"call": number, "do": command, **fields}))
        return future

    def call(self, command: str, *, wait_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Run a command and wait for its result.

        Raises:
            CallFailed: The client threw.
        """
        return self.submit(command, **fields).result(timeout=wait_s)

    def producer(self, namesrv: str, *, id: str = "p", group: str = "PG", **options: Any) -> str:
        """Start a producer.

        Options: transaction, vip, retries, compressOver, compressType, maxMessageSize, topicQueues, timeoutMs, tls,
        namespace, instance, pollMs (between two questions to the name server).
        """
        self.call("producer.start", id=id, namesrv=namesrv, group=group, **options)
        return id

    def send(self, messages: Iterable[Mapping[str, Any]], *, id: str = "p", mode: str = "sync", **options: Any) -> Any:
        """Send messages; mode sync, async, oneway, batch or transaction (decision, onCheck: commit, rollback, unknown).

        A message has topic, and text, b64 or len with seed and kind (random, text); tags, keys, queue, delay, delayMs,
        deliverMs, flag, wait and properties at will. One result row a message (one a batch): the send result with
        bodyMd5, or exception, code and message.
        """
        return self.call("producer.send", id=id, mode=mode, messages=list(messages), **options)

    def push(self, namesrv: str, topic: str, *, id: str, group: str, **options: Any) -> str:
        """Start a push consumer, which subscribes to ``topic`` (or ``topics``) by ``tags`` or ``sql``.

        Options: tags, sql, topics, model (CLUSTERING, BROADCASTING), orderly, from, timestamp, batch, pullBatch,
        threads, failures (refuse this many deliveries of each message), retryLevel, holdMs, maxReconsumeTimes, vip,
        tls, namespace, instance, pop (leave the sharing of queues to the broker), invisibleMs.
        """
        self.call("push.start", id=id, namesrv=namesrv, group=group, topic=topic, **options)
        return id

    def poll(self, id: str, *, min: int = 1, timeout_s: float = 60) -> list[Row]:
        """What a push consumer received since the last poll; returns early once ``min`` messages are there."""
        wait_s = timeout_s + 10
        rows: list[Row] = self.call("push.poll", id=id, min=min, timeoutMs=int(timeout_s * 1000), wait_s=wait_s)
        return rows

    def wait_queues(self, id: str, count: int, *, timeout_s: float = 150) -> list[Row]:
        """Wait until rebalancing gave a push consumer exactly ``count`` queues (retry topics not counted)."""
        deadline = time.monotonic() + timeout_s
        while True:
            rows = [row for row in self.call("push.queues", id=id) if not row["topic"].startswith("%RETRY%")]
            if len(rows) == count:
                return rows
            if time.monotonic() > deadline:
                raise AssertionError(f"{id} has {len(rows)} queues after {timeout_s} s, wanted {count}: {rows}")
            threading.Event().wait(0.1)

    def puller(self, namesrv: str, *, id: str = "q", group: str = "QG") -> str:
        """Start a pull consumer, which also answers queries."""
        self.call("pull.start", id=id, namesrv=namesrv, group=group)
        return id

    def pull_all(self, topics: str | Sequence[str], *, id: str = "q", **options: Any) -> list[Row]:
        """Every message between the minimum and the maximum offset of every queue."""
        names = [topics] if isinstance(topics, str) else list(topics)
        rows: list[Row] = self.call("pull.all", id=id, topics=names, **options)
        return rows

    def offsets(self, topic: str, *, id: str = "q") -> list[Row]:
        """Rows of queueId, brokerName, min and max."""
        rows: list[Row] = self.call("pull.offsets", id=id, topic=topic)
        return rows

    def query(self, topic: str, key: str, *, id: str = "q", **options: Any) -> list[Row]:
        """Messages by key; options max, begin, end. No message: `CallFailed` with code 208 (NO_MESSAGE)."""
        rows: list[Row] = self.call("pull.query", id=id, topic=topic, key=key, **options)
        return rows

    def mqadmin(self, *arguments: str) -> str:
        """Run an mqadmin command; returns what it printed."""
        text: str = self.call("mqadmin", args=list(arguments))
        return text

    def stop(self, id: str) -> None:
        """Shut one client down."""
        self.call("stop", id=id)

    def kill(self) -> None:
        """Kill -9 the JVM: its clients vanish without a goodbye."""
        self._jvm.kill()
        self._reader.join(timeout=10)

    def close(self) -> None:
        """End the JVM; clients that still run are not shut down."""
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the records of one commit-log file end; ``blank`` is the length in its blank record, 0 for none."""

    file: str
    end: int
    blank: int


def dump_commit_log(store: Path, *, version: str = DEFAULT_VERSION) -> tuple[list[Row], list[LogEnd]]:
    """Every record of a closed store, as RocketMQ's own decoder reads it; bodies stay as stored."""
    output = run_java("Server", "dump", str(store / "commitlog"), version=version)
    rows: list[Row] = []
    ends: list[LogEnd] = []
    for line in output.splitlines():
        row = json.loads(line)
        if "file" in row:
            ends.append(LogEnd(**row))
        else:
            rows.append(row)
    return rows, ends


def body_of(row: Mapping[str, Any]) -> bytes | None:
    """The body of a described message when it is short enough to be in the row."""
    shown = row.get("bodyB64")
    return None if shown is None else base64.b64decode(shown)


@contextlib.contextmanager
def rocket_or_skip(store: Path, work: Path, **options: Any) -> Iterator[RocketServer]:
    """A running `RocketServer`; skips the test, naming the reason, where RocketMQ cannot be run."""
    import pytest

    try:
        classpath(options.get("version", DEFAULT_VERSION), kind="server")
    except Unavailable as missing:
        pytest.skip(f"Apache RocketMQ cannot run here: {missing}")
    with RocketServer(store, work, **options) as server:
        yield server
