"""Docstrings where a reader looks for them, functions that fit on a screen, and marks that exist."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, expect_none, module_name, parsed, python_files

FUNCTION_LINES_MAX = 70

# Functions that are longer and may be, for the reason given: "module:name" -> (lines, reason). They may shrink; when
# one fits at last, its row has to go.
LONGER: dict[str, tuple[int, str]] = {}

# Marks that pytest and its plugins bring along.
BUILT_IN_MARKS = {"parametrize", "skip", "skipif", "xfail", "usefixtures", "filterwarnings"}
BUILT_IN_MARKS |= {"asyncio", "timeout", "xdist_group"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_public(name: str) -> bool:
    """Say whether a name is for others: neither private nor one of Python's own."""
    return not name.startswith("_")


def documented_methods(trees: Iterable[ast.Module]) -> set[str]:
    """Names of methods that some protocol or base class of the project explains.

    A class that fills such a method in need not say it again.
    """
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for node in classes for base in node.bases}
    return {
        member.name
        for node in classes
        if node.name in bases or any("Protocol" in ast.unparse(base) for base in node.bases)
        for member in node.body
        if isinstance(member, Function) and ast.get_docstring(member)
    }


def undocumented(module: str, tree: ast.Module, explained: set[str]) -> list[str]:
    """Name the module, the public classes, functions and methods that have no docstring."""
    wrong = [] if ast.get_docstring(tree) else [f"{module}: no docstring at the top"]

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, Function | ast.ClassDef) or not is_public(node.name):
                continue
            if isinstance(node, Function) and (has_no_need(node) or (prefix and node.name in explained)):
                continue
            if not ast.get_docstring(node):
                wrong.append(f"{module}:{node.lineno}: {prefix}{node.name} has no docstring")
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return wrong


def has_no_need(function: Function) -> bool:
    """Say whether a function repeats another one's contract: an overload, an override, a property's setter."""
    names = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
    return bool(names & {"overload", "override", "setter", "deleter"})


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function of a module with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, Function | ast.ClassDef) else prefix
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, Function | ast.ClassDef) else prefix)


def length(function: Function) -> int:
    """Lines from "def" to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) and first.end_lineno:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def too_long(module: str, tree: ast.Module, excused: dict[str, tuple[int, str]]) -> list[str]:
    """Name functions that outgrew the limit, or the length they are excused for, and excuses no longer needed."""
    wrong = []
    lengths = {f"{module}:{name}": length(node) for name, node in functions(tree)}
    for name, lines in lengths.items():
        limit, reason = excused.get(name, (FUNCTION_LINES_MAX, ""))
        if lines > limit:
            wrong.append(f"{name} has {lines} lines, more than {limit}")
        elif reason and lines <= FUNCTION_LINES_MAX:
            wrong.append(f"{name} fits now: take it off the list")
    gone = [name for name in excused if name.partition(":")[0] == module and name not in lengths]
    return wrong + [f"{name} is gone: take it off the list" for name in gone]


def marks_used(tree: ast.AST) -> set[str]:
    """Every x of pytest.mark.x."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("pytest.mark", "mark")
    }


def lossy_waits(module: str, tree: ast.AST) -> list[str]:
    """Calls of asyncio.wait_for. In Python 3.11 it forgets a cancellation that comes just as what it waits for is done,
    and then the task that was cancelled goes on for ever, with whoever waits for its end; asyncio.timeout does not.
    """
    return [
        f"{module}:{node.lineno}: asyncio.wait_for can lose a cancellation: use asyncio.timeout"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
    ]


def sources() -> list[tuple[str, Path]]:
    """Module name and path of everything in src."""
    return [(module_name(path), path) for path in python_files("src")]


# --- the project -------------------------------------------------------------------------------------------------


def test_what_is_public_is_explained():
    explained = documented_methods(parsed(path) for _, path in sources())
    expect_none(line for name, path in sources() for line in undocumented(name, parsed(path), explained))


def test_every_module_says_what_it_is():
    files = python_files("tests", "bench", "examples", "tools")
    expect_none(str(path.relative_to(ROOT)) for path in files if not ast.get_docstring(parsed(path)))


def test_functions_fit_on_a_screen():
    expect_none(line for name, path in sources() for line in too_long(name, parsed(path), LONGER))
    modules = {name for name, _ in sources()}
    expect_none(name for name in LONGER if name.partition(":")[0] not in modules)
    expect_none(name for name, (_, reason) in LONGER.items() if not reason.strip())


def test_every_mark_is_declared():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {line.partition(":")[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]}
    used = {(mark, str(path.relative_to(ROOT))) for path in python_files("tests") for mark in marks_used(parsed(path))}
    expect_none(sorted((mark, where) for mark, where in used if mark not in declared | BUILT_IN_MARKS))


def test_no_wait_can_lose_a_cancellation():
    expect_none(line for name, path in sources() for line in lossy_waits(name, parsed(path)))


# --- the checks themselves ---------------------------------------------------------------------------------------


def missing(source: str, explained: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    return undocumented("m", ast.parse(source), explained)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1", 1),
        ('"""Top."""\ndef f(): ...', 1),
        ('"""Top."""\nclass C:\n    def m(self): ...', 2),
        ('"""Top."""\ndef _f(): ...\nclass _C:\n    def m(self): ...', 0),
        ('"""Top."""\nclass C:\n    """C."""\n    def __len__(self): ...\n    @x.setter\n    def x(self, v): ...', 0),
        ('"""Top."""\ndef f():\n    """F."""\n    def inner(): ...', 0),
    ],
)
def test_a_missing_docstring_is_caught(source, count):
    assert len(missing(source)) == count


def test_a_method_that_a_protocol_explains_needs_no_docstring():
    protocol = ast.parse('class P(Protocol):\n    def read(self):\n        """Read."""\n    def close(self): ...')
    explained = documented_methods([protocol])
    assert explained == {"read"}
    source = '"""Top."""\nclass C:\n    """C."""\n    def read(self): ...\n    def close(self): ...'
    assert missing(source, explained) == ["m:5: C.close has no docstring"]
    assert len(missing('"""Top."""\ndef read(): ...', explained)) == 1


def test_a_long_function_is_caught():
    body = "\n".join(f"        x = {number}" for number in range(FUNCTION_LINES_MAX))
    tree = ast.parse(f'class C:\n    def f(self):\n        """Long.\n\n        Story.\n        """\n{body}\n')
    assert too_long("m", tree, {}) == [f"m:C.f has {FUNCTION_LINES_MAX + 1} lines, more than {FUNCTION_LINES_MAX}"]
    assert too_long("m", tree, {"m:C.f": (FUNCTION_LINES_MAX + 1, "a table")}) == []
    short = ast.parse("class C:\n    def f(self): ...")
    assert too_long("m", short, {"m:C.f": (90, "a table")}) == ["m:C.f fits now: take it off the list"]
    assert too_long("m", short, {"m:C.g": (90, "a table")}) == ["m:C.g is gone: take it off the list"]
    assert too_long("m", short, {"other:C.g": (90, "a table")}) == []


def test_marks_are_found():
    source = "import pytest\npytestmark = [pytest.mark.spark]\n@pytest.mark.crash(reason=1)\ndef test(): ..."
    assert marks_used(ast.parse(source)) == {"spark", "crash"}


def test_a_lossy_wait_is_caught():
    source = "async def f():\n    async with asyncio.timeout(1):\n        await asyncio.wait_for(x, 1)"
    assert lossy_waits("m", ast.parse(source)) == ["m:3: asyncio.wait_for can lose a cancellation: use asyncio.timeout"]
