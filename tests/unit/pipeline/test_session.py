"""Settings of a session, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys

from stratamq.pipeline import session


def test_local_sessions_stay_on_this_machine():
    found = session.settings("local[2]", {})
    assert found["spark.master"] == "local[2]"
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert "-Xss16m" in found["spark.driver.extraJavaOptions"]
    folder = found["spark.python.unix.domain.socket.dir"]
    assert len(folder) < 60
    assert os.stat(folder).st_mode & 0o077 == 0


def test_clusters_keep_their_own_addresses():
    found = session.settings("spark://head:7077", {})
    assert "spark.driver.host" not in found
    assert "spark.python.unix.domain.socket.dir" not in found
    assert not session.is_local("spark://head:7077")
    assert session.is_local("local-cluster[2,1,1024]")


def test_the_caller_has_the_last_word():
    mine = {"spark.sql.session.timeZone": "Europe/Oslo", "spark.driver.extraJavaOptions": "-Xmx2g"}
    found = session.settings("local[2]", mine)
    assert found["spark.sql.session.timeZone"] == "Europe/Oslo"
    assert found["spark.driver.extraJavaOptions"].startswith("-Xss16m")
    assert found["spark.driver.extraJavaOptions"].endswith(" -Xmx2g")


def test_importing_the_module_is_light():
    code = "import sys, stratamq.pipeline.session; assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
