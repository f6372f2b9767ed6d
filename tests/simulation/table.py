"""Writes the table of mutants into docs/design/raft.md: `python -m tests.simulation.table`, from the root."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.mutants import HUNTS, seeds_to_catch

PAGE = Path(__file__).parents[2] / "docs" / "design" / "raft.md"
BEGIN, END = "<!-- mutants: python -m tests.simulation.table -->\n", "<!-- end of mutants -->"


def table() -> str:
    """The mutants as Markdown, each hunted anew."""
    rows = ["| the rule that is broken | members | schedules until found | what was found |", "|---|---|---|---|"]
    for hunt in HUNTS:
        caught = seeds_to_catch(hunt, 5_000)
        number, what = ("**not found**", "") if caught is None else (str(caught[0]), caught[1])
        if caught is not None and not caught[0]:
            number = f"script {hunt.script}"
        rows.append(f"| {(hunt.mutant.__doc__ or '').rstrip('.')} | {hunt.nodes} | {number} | {what[:75]} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Replace what stands between the two marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
