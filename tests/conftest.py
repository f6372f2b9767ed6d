"""What every test gets: a watch that no test leaves a thread, a child process or a log handler behind.

The watch looks twice. After each test whatever started during its call must be gone; what fixtures of a wider scope
keep alive (a broker for a module, a Spark session for the run) is known before the call and left in peace. When the
run ends nothing at all may be left, so such fixtures have to stop what they started as well.

Test modules are found by path, not by name: two files may be called the same, and one module reaches another as
``from tests.unit.formats import records``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator

import hypothesis
import psutil
import pytest

# How long something that is about to end may take, before it counts as left behind. A busy machine may be slow.
GRACE_SECONDS = 30.0

# Parts of command lines of processes that end with this interpreter and belong to nobody's test: what
# multiprocessing keeps for itself, and the JVM that PySpark keeps after a session has been stopped.
KEPT_BY_LIBRARIES = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "org.apache.spark.deploy.SparkSubmit",
)


# How fast an example runs depends on who else uses the machine. Where CI is set, Hypothesis chooses the same examples
# each time; this keeps that.
hypothesis.settings.register_profile(
    "patient",
    hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


def has_children() -> bool:
    """Say whether this process has any child, running or not yet waited for. Reaps none; costs one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def running_children() -> dict[int, str]:
    """List child processes that run, as pid -> command line, without those that libraries keep."""
    if not has_children():
        return {}
    found: dict[int, str] = {}
    for child in psutil.Process().children():
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if not any(part in line for part in KEPT_BY_LIBRARIES):
            found[child.pid] = line
    return found


def leftovers(threads_before: set[threading.Thread], children_before: set[int]) -> list[str]:
    """Describe the threads and child processes that were not there before, after giving them time to end."""
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        threads = [thread for thread in threading.enumerate() if thread not in threads_before]
        children = {pid: line for pid, line in running_children().items() if pid not in children_before}
        if not threads and not children:
            return []
        if time.monotonic() > deadline:
            return [f"thread {thread.name!r}" for thread in threads] + [
                f"process {pid}: {line}" for pid, line in children.items()
            ]
        time.sleep(0.02)


def log_set_up() -> tuple[int, list[logging.Handler]]:
    """The root logger's level and handlers, without pytest's own, which come and go with each phase of a test."""
    return logging.root.level, [one for one in logging.root.handlers if "pytest" not in type(one).__module__]


def take_back(level: int, handlers: list[logging.Handler]) -> list[str]:
    """Put the root logger back, and describe what was different.

    A handler that a test leaves behind writes to a stream that is closed by then, in every test that follows.
    """
    now_level, now_handlers = log_set_up()
    wrong = [f"log handler {one!r}" for one in now_handlers if one not in handlers]
    for one in now_handlers:
        if one not in handlers:
            logging.root.removeHandler(one)
    if now_level != level:
        wrong.append(f"log level {logging.getLevelName(now_level)}")
        logging.root.setLevel(level)
    return wrong


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note what was alive before the test's own code ran."""
    item.stash[_BEFORE] = (set(threading.enumerate()), set(running_children()))
    item.stash[_LOG_BEFORE] = log_set_up()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that left something running, once its fixtures have been torn down."""
    result = yield
    before = item.stash.get(_BEFORE, None)
    if before is not None and (changed := take_back(*item.stash[_LOG_BEFORE])):
        pytest.fail("the test left behind: " + "; ".join(changed), pytrace=False)
    # Py4J and PySpark start threads and a worker daemon on first use and keep them for the whole run.
    if before is not None and item.get_closest_marker("spark") is None:
        left = leftovers(*before)
        if left:
            pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a fixture of a wider scope left a process running."""
    if not os.environ.get("PYTEST_XDIST_WORKER") and getattr(session.config.option, "numprocesses", None):
        return  # the children of this process are the workers of pytest-xdist, and each looks after itself
    left = leftovers(set(threading.enumerate()), set())
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line("the run left behind: " + "; ".join(left), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_BEFORE = pytest.StashKey[tuple[set[threading.Thread], set[int]]]()
_LOG_BEFORE = pytest.StashKey[tuple[int, list[logging.Handler]]]()
