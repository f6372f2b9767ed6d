"""SQL92 filters against RocketMQ's own filter module, expression by expression and row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratamq.broker.sql import compile_filter
from stratamq.broker.sql.numbers import NoNumber
from stratamq.broker.sql.tree import text_of
from stratamq.errors import SubscriptionIllegal
from tests.interop.rocketmq_java.runner import SERVER_VERSIONS, run_java
from tests.interop.rocketmq_java.targets import need_java
from tests.property.sql_trees import rows, trees

pytestmark = pytest.mark.interop

ROWS: list[dict[str, str]] = [
    {},
    {"a": "5"},
    {"a": "abc"},
    {"a": "3000000000"},
    {"a": "5.5"},
    {"a": "true"},
    {"a": " 5"},
    {"a": "+5"},
    {"a": "5", "b": "5"},
    {"a": "NaN"},
    {"a": "5d", "b": "x"},
]

WRITTEN = """
a > 5 | a>=5.0 | a = 5 | a <> 5 | a = '5' | 5 = a | a > 3000000000 | a | NOT a | a = TRUE | TRUE = a | a <> TRUE
a IS NULL | a IS NOT NULL | a CONTAINS 'b' | a CONTAINS '' | a NOT CONTAINS '' | a STARTSWITH 'a' | a ENDSWITH 'c'
'abc' CONTAINS 'b' | TRUE NOT CONTAINS 'b' | a IN ('5','abc') | a NOT IN ('5') | (a) IN ('5') | NOT (a IN ('5'))
NOT a = 5 | a > 5 OR a = 'abc' | a='abc' OR a>5 | a = 'abc' AND a > 5 | a NOT BETWEEN 5 AND 3 | a BETWEEN 1 AND 9
a BETWEEN b AND 9 | a BETWEEN -1 AND -5 | NULL IS NULL | NULL | 3 = 'x' | '5' = 5 | 5 = TRUE | 'true' = TRUE
(a > 3) = TRUE | (a > 3) = 'true' | 'true' = (a > 3) | a > .5 | a > 5. | a > 5L | a > --5 | -a > 5 | a > + - + 5
a > /* x */ 5 | -(a>5) IS NULL | A > 5 and NOT(A>5) | a = b = TRUE | a IS NULL IS NULL | a > 5e+1 | NULL OR TRUE
"""
REFUSED_BY_BOTH = """
a IN (5) | NOT a IN ('5') | NOT a > 5 | a BETWEEN 5 AND 3 | a BETWEEN 'a' AND 'b' | a BETWEEN NULL AND 5 | a = NULL
5 | 'x' | TRUE = 5 | a = 5 ; | a > 1e-400 | a > 1e400 | a > 99999999999999999999 | a > -9223372036854775808 | a != 5
a == 5 | a && b | a.b = 5 | a = "5" | ( | a = | a IN () | a IN ('x',) | a > TRUE | a > 'x' | 1 < a < 9 | NOT 5
a CONTAINS a | a STARTSWITH | CONTAINS = 5 | a NOT NULL | a IS 5 | a > /* x | a = ' | a>5 AND | a BETWEEN 1 AND TRUE
"""
REFUSED_HERE_ONLY = "a = 1 b = 2 | a = 5 ) x | a = 007 | a b | a LIKE 'x' | a = 5 -- x"
"""RocketMQ stops reading where the expression could end, and ignores the rest."""
REFUSED_THERE_ONLY = "a > 0.0 | a = .0"


def split(text: str) -> list[str]:
    return [item.strip() for line in text.strip().splitlines() for item in line.split(" | ")]


def ask(work: Path, version: str, cases: list[tuple[str, list[dict[str, str]]]]) -> list[dict[str, Any]]:
    """What RocketMQ says to expressions and rows."""
    need_java(version, "server")
    lines = work / "cases.jsonl"
    lines.write_text("".join(json.dumps({"sql": sql, "rows": asked}) + "\n" for sql, asked in cases))
    found = [json.loads(line) for line in run_java("Filter", str(lines), version=version, work=work).splitlines()]
    assert len(found) == len(cases)
    return found


def ours(sql: str, row: dict[str, str]) -> Any:
    try:
        return compile_filter(sql).evaluate(row)
    except NoNumber:
        return "thrown"


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_written_expressions_decide_alike(version: str, tmp_path: Path) -> None:
    expressions = split(WRITTEN)
    answers = ask(tmp_path, version, [(sql, ROWS) for sql in expressions])
    for sql, answer in zip(expressions, answers, strict=True):
        assert answer.get("found") == [ours(sql, row) for row in ROWS], (sql, answer)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_what_is_refused_is_refused_by_both_but_for_the_differences_listed(version: str, tmp_path: Path) -> None:
    groups = [split(text) for text in (REFUSED_BY_BOTH, REFUSED_HERE_ONLY, REFUSED_THERE_ONLY)]
    answers = iter(ask(tmp_path, version, [(sql, []) for group in groups for sql in group]))
    for group, (there, here) in zip(groups, ((True, True), (False, True), (True, False)), strict=True):
        for sql in group:
            refused = False
            try:
                compile_filter(sql)
            except SubscriptionIllegal:
                refused = True
            assert ("refused" in next(answers), refused) == (there, here), sql


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_random_expressions_decide_alike(version: str, tmp_path: Path) -> None:
    cases: list[tuple[str, list[dict[str, str]]]] = []

    @settings(
        max_examples=3_000, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(trees, st.lists(rows, min_size=2, max_size=5))
    def gather(tree: Any, asked: list[dict[str, str]]) -> None:
        cases.append((text_of(tree), asked))

    gather()
    seen: set[Any] = set()
    for (sql, asked), answer in zip(cases, ask(tmp_path, version, cases), strict=True):
        found = [ours(sql, row) for row in asked]
        assert answer.get("found") == found, (sql, asked, answer)
        seen.update(found)
    assert seen == {True, False, None, "thrown"}
