"""What must stand in no file of the project: places of one machine, hosts of registries, notes to oneself.

The forbidden strings are put together from pieces here, so that this file does not contain them.
"""

from __future__ import annotations

import re

import pytest

from tests.tidy.tree import expect_none, project_files, relative, text_of

# Where packages are fetched from is the business of whoever installs, who may have a mirror.
REGISTRIES = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("yarnpkg", "com"),
    ("repo", "maven", "apache", "org"),
    ("repo1", "maven", "org"),
    ("central", "sonatype", "com"),
    ("proxy", "golang", "org"),
    ("crates", "io"),
]
REGISTRY = re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES), re.IGNORECASE)

# A folder of somebody's machine, as an absolute path. Paths inside containers and of the system are no matter.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/)<-])/(?:work|root|home/\w+|Users/\w+|workspace)(?:/|\b(?![\w.-]))")

NOTE_TO_SELF = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")

# A page of documentation named by its file name.
PAGE = re.compile(r"(?<![\w*<>{}])((?:[\w-]+/)*[A-Za-z][\w-]*\.md)\b")


def line_of(text: str, position: int) -> int:
    """The number of the line a position lies in."""
    return text.count("\n", 0, position) + 1


def matches(pattern: re.Pattern[str], name: str, text: str) -> list[str]:
    """Name every place where a pattern occurs."""
    return [f"{name}:{line_of(text, found.start())}: {found[0]}" for found in pattern.finditer(text)]


def unknown_pages(name: str, text: str, pages: set[str]) -> list[str]:
    """Name every mention of a .md file that no page of the project is called."""
    return [
        f"{name}:{line_of(text, found.start(1))}: there is no page {found[1]}"
        for found in PAGE.finditer(text)
        if not any(page == found[1] or page.endswith("/" + found[1].removeprefix("../")) for page in pages)
    ]


def texts() -> list[tuple[str, str]]:
    """Name and text of every text file of the project."""
    found = [(relative(path), text_of(path)) for path in project_files()]
    return [(name, text) for name, text in found if text is not None]


# --- the project -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [REGISTRY, MACHINE_PATH, NOTE_TO_SELF], ids=["registry", "machine", "note"])
def test_no_file_holds(pattern):
    expect_none(line for name, text in texts() for line in matches(pattern, name, text))


def test_every_page_named_exists():
    pages = {name for name, _ in texts() if name.endswith(".md")}
    others = [(name, text) for name, text in texts() if not name.startswith("tests/tidy/")]
    expect_none(line for name, text in others for line in unknown_pages(name, text, pages))


def test_text_files_end_with_one_newline_and_hold_no_tabs_in_python():
    wrong = []
    for name, text in texts():
        if (
            name.endswith((".py", ".md", ".toml", ".sh"))
            and text
            and (not text.endswith("\n") or text.endswith("\n\n"))
        ):
            wrong.append(f"{name}: does not end with exactly one newline")
        if name.endswith(".py"):
            wrong += matches(re.compile("^\t+", re.MULTILINE), name, text)
    expect_none(wrong)


# --- the checks themselves ---------------------------------------------------------------------------------------


def test_a_registry_is_caught():
    host = ".".join(("files", "pythonhosted", "org"))
    assert matches(REGISTRY, "a", f"one\nfrom https://{host}/packages") == [f"a:2: {host.removeprefix('files.')}"]
    assert matches(REGISTRY, "a", "http://maven.apache.org/POM/4.0.0 https://rocketmq.apache.org") == []


@pytest.mark.parametrize("path", ["work", "root", "home/someone", "Users/someone"])
def test_a_machine_path_is_caught(path):
    for before, after in (("", "/main"), ("'", "/x'"), ("in ", "/y"), ("path=", "/z")):
        assert len(matches(MACHINE_PATH, "a", f"{before}/{path}{after}")) == 1
    assert matches(MACHINE_PATH, "a", f"tmp/{path}/x and $HOME/{path}/y and /tmp/x and /usr/bin and the/{path}") == []


def test_a_note_to_oneself_is_caught():
    assert len(matches(NOTE_TO_SELF, "a", "# TO" + "DO: later")) == 1
    assert matches(NOTE_TO_SELF, "a", "the mastodon and its to-do list") == []


def test_a_page_that_does_not_exist_is_caught():
    pages = {"docs/formats/commit-log.md", "README.md"}
    assert unknown_pages("a", "see docs/formats/commit-log.md, commit-log.md, ../README.md and docs/*.md", pages) == []
    assert unknown_pages("a", "x\nsee plan.md section 4", pages) == ["a:2: there is no page plan.md"]
    assert len(unknown_pages("a", "see docs/other/commit-log.md", pages)) == 1
