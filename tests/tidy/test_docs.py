"""Links of the documentation lead somewhere, and the lock files hold what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import ROOT, expect_none, project_files, relative

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def prose(markdown: str) -> str:
    """A page without its code, where brackets are no links and "#" starts no heading."""
    without_blocks = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`(?!\])", "", without_blocks)


def anchors(markdown: str) -> set[str]:
    """The names that a page's headings can be linked to by."""
    found: set[str] = set()
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = sum(1 for name in found if name == slug or re.fullmatch(re.escape(slug) + r"-\d+", name))
        found.add(f"{slug}-{number}" if number else slug)
    return found


def broken_links(page: Path, markdown: str) -> list[str]:
    """Name every link to a file or a heading that is not there. Links to other sites are not followed."""
    wrong = []
    for match in LINK.finditer(prose(markdown)):
        target = match[1] or match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            wrong.append(f"{page.name}: {target} leads nowhere")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            wrong.append(f"{page.name}: {target}: no such heading")
    return wrong


def unlocked(requirements: list[str], lock: str) -> list[str]:
    """Name every requirement that no pinned version in the lock file meets."""
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", lock, re.MULTILINE):
        pinned.setdefault(canonicalize_name(name), []).append(version)
    wrong = []
    for line in requirements:
        wanted = Requirement(line)
        versions = pinned.get(canonicalize_name(wanted.name), [])
        if not versions or not all(wanted.specifier.contains(version, prereleases=True) for version in versions):
            wrong.append(f"{line}: the lock has {', '.join(versions) or 'nothing'}; run ./dev lock")
    return wrong


def unhashed(lock: str) -> list[str]:
    """Name every pinned package without a hash."""
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return [entry.split()[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry]


def pages() -> list[Path]:
    """Every Markdown page of the project."""
    return [path for path in project_files() if path.suffix == ".md"]


# --- the project -------------------------------------------------------------------------------------------------


def test_links_resolve():
    expect_none(line for page in pages() for line in broken_links(page, page.read_text(encoding="utf-8")))


def test_every_format_page_named_in_the_architecture_exists():
    named = re.findall(r"docs/formats/[\w.-]+\.md", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    there = {relative(page) for page in pages()}
    expect_none(name for name in named if name not in there)


def test_locks_hold_what_is_asked_for():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = settings["dependency-groups"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    build_lock = (ROOT / "requirements-build.lock").read_text(encoding="utf-8")
    wanted = [*settings["project"]["dependencies"], *groups["dev"], *groups["bench"]]
    for extra in ("arrow", "spark"):
        wanted += settings["project"]["optional-dependencies"][extra]
    expect_none(unlocked(wanted, lock))
    expect_none(unlocked(groups["build"], build_lock))
    expect_none(unhashed(lock) + unhashed(build_lock))


# --- the checks themselves ---------------------------------------------------------------------------------------


def test_a_broken_link_is_caught(tmp_path):
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# First `part`, and more\n## Twice\n## Twice\n```\n# no heading\n```\n")
    good = "[b](b.md) [h](b.md#first-part-and-more) [t](b.md#twice-1) [web](https://example.com/x) `[code](no.md)`"
    assert broken_links(page, good) == []
    assert broken_links(page, "```\n[x](no.md)\n```\n") == []
    assert len(broken_links(page, "[x](no.md) ![y](no.png) [z](b.md#third) [w](b.md#no-heading)")) == 4


def test_a_stale_lock_is_caught():
    old = 'numpy==2.4.6 ; python_full_version < "3.12" \\\n    --hash=sha256:aa\n'
    lock = old + "numpy==2.5.5 \\\n    --hash=sha256:bb\nx-y==1\n"
    assert unlocked(["numpy>=2", "x_y ; sys_platform == 'linux'"], lock) == []
    assert len(unlocked(["numpy>=2.5", "absent"], lock)) == 2
    assert unhashed(lock) == ["x-y==1"]


def test_tests_that_pages_name_exist() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    wrong = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        named = re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
        wrong += [f"{relative(page)}: {name}" for name in sorted(set(named) - defined)]
    expect_none(f"{line}: there is no such test" for line in wrong)
