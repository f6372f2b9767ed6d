"""One function that makes every Spark session of ours, with the settings that were measured to matter.

What it sets and why stands beside each setting below; whoever passes ``config`` has the last word. On a local master
everything stays on the loopback address, no web page is opened and no folder appears in the working directory.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratamq.errors import PipelineError
from stratamq.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.conf import SparkConf
    from pyspark.sql import SparkSession

SOCKET_FOLDER_BYTES_MAX: Final = 40
"""A Unix socket's path may have about 100 bytes, and Spark's own file names take up to 60 of them."""

_EVERYWHERE: Final = {
    # JVM to Python over Unix sockets: each task starts 20 ms sooner than over TCP, scans run 1.2 times as fast.
    "spark.python.unix.domain.socket.enabled": "true",
    # Lets the source take filters; off by default in Spark.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session(
    app_name: str, master: str | None = None, *, config: Mapping[str, str] | None = None, jvm_log: Path | None = None
) -> SparkSession:
    """Start a Spark session, or take the running one.

    Under ``spark-submit`` the JVM runs already: its master and its Java stay unless ``master`` is given. Blocks for
    about five seconds while a JVM starts.

    Args:
        app_name: Name shown by Spark.
        master: Spark's master URL; not given means that of ``spark-submit``, else ``local[*]``.
        config: Further Spark settings; they win over ours.
        jvm_log: File that takes what a newly started JVM writes to its standard error, warnings of the Java runtime
            included. Not given: it goes to this process's own standard error.

    Raises:
        PipelineError: The packages of the extra ``spark`` are missing, or the JVM did not start.
        NoJava: There is no usable Java.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError(
            f"Spark is not installed ({error}); install it with: pip install 'stratamq[spark]'"
        ) from error
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.config(map=dict(config or {})).getOrCreate()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        SparkContext._ensure_initialized()  # attaches to the JVM, which knows what spark-submit was told
    conf = SparkConf(loadDefaults=submitted)
    target = master or conf.get("spark.master", "local[*]")
    for key, value in settings(target, config or {}).items():
        # What was said on the command line of spark-submit wins over our own choice, not over the caller's.
        if submitted and key not in (config or {}) and key != "spark.master" and conf.contains(key):
            continue
        conf.set(key, value)
    conf.setAppName(app_name)
    with _environment(submitted, target):
        gateway = None if submitted or SparkContext._gateway is not None else _start_jvm(conf, jvm_log)
        context = SparkContext(conf=conf, gateway=gateway)
    context.setLogLevel("ERROR")
    return SparkSession.builder.getOrCreate()


def settings(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """All Spark settings of a session on ``master``; ``config`` wins, except that Java options are joined."""
    chosen = {"spark.master": master, **_EVERYWHERE}
    java_options = "-Xss16m"  # stopping a query inside foreachBatch overflows the stack otherwise
    if is_local(master):
        folder = session_folder()
        chosen |= _ON_THIS_MACHINE
        chosen["spark.python.unix.domain.socket.dir"] = str(folder)
        chosen["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        java_options += f" -Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    asked = config.get("spark.driver.extraJavaOptions", "")
    return {**chosen, **config, "spark.driver.extraJavaOptions": f"{java_options} {asked}".strip()}


def is_local(master: str) -> bool:
    """Whether driver and executors all run on this machine."""
    return master.startswith("local")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Give errors of ours that happened in a task or while planning without Spark's page of stack traces around them.

    Raises:
        PipelineError: With the text of the error, whatever class it had over there.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        own = re.findall(r"^(?:\S+: )?stratamq\.[\w.]+: (.+)$", str(error), re.MULTILINE)
        if not own:
            raise
        raise PipelineError(own[-1]) from error


@cache
def session_folder() -> Path:
    """This process's folder for sockets, log settings and the warehouse: a short path, removed at exit."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > SOCKET_FOLDER_BYTES_MAX and os.access("/tmp", os.W_OK | os.X_OK):
        base = "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="smq-", dir=base))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "log4j2.properties").write_text(_LOG_SETTINGS)
    return folder


@contextmanager
def _environment(submitted: bool, master: str) -> Iterator[None]:
    """While JVM and context start: workers run this very Python, and Java is the one that was chosen."""
    wanted = {name: sys.executable for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if not os.environ.get(name)}
    if not submitted:
        wanted["JAVA_HOME"] = str(find_java().home)
        if is_local(master):
            # Another Spark's home would bring its own jars; a cluster's own is what reaches the cluster.
            wanted["SPARK_HOME"] = _pip_spark_home()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _pip_spark_home() -> str:
    import pyspark

    here = Path(pyspark.__file__).parent
    return str(here) if (here / "bin" / "spark-submit").exists() else os.environ.get("SPARK_HOME", "")


def _start_jvm(conf: SparkConf, jvm_log: Path | None) -> object:
    """Start the JVM with its standard error in ``jvm_log``. It ends by itself when this process does."""
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    try:
        if jvm_log is None:
            return launch_gateway(conf)  # type: ignore[no-untyped-call]
        jvm_log.parent.mkdir(parents=True, exist_ok=True)
        with jvm_log.open("ab") as log:
            return launch_gateway(conf, {"stderr": log})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        said = "" if jvm_log is None else "\n" + "\n".join(jvm_log.read_text(errors="replace").splitlines()[-15:])
        raise PipelineError(f"the JVM for Spark did not start: {error}{said}") from error
