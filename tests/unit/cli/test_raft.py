"""What `raft check` makes of what members say."""

from __future__ import annotations

from typing import Any

import pytest

from stratamq.cli.raft import faults


def member(node: str, **changed: Any) -> dict[str, Any]:
    """A member of a group of three that works; n1 leads."""
    leads = node == "n1"
    return {
        "node": node,
        "serves": leads,
        "failed": False,
        "term": 3,
        "voters": ["n1", "n2", "n3"],
        "learners": [],
        "incarnations": {"n1": 11, "n2": 12, "n3": 13},
        "incarnation": 10 + int(node[1]),
        "members_decided": True,
        "followers": {"n2": {"behind": 0}, "n3": {"behind": 0}} if leads else {},
    } | changed


def group(**changed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Members by name, some of them not as they should be."""
    return {node: changed.get(node, member(node)) for node in ("n1", "n2", "n3")}


def test_nothing_is_wrong_with_a_group_that_works() -> None:
    assert faults(group()) == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (group(n2={"error": "n2 cannot be reached"}), "n2 does not answer"),
        (group(n3=member("n3", failed=True)), "n3 has a failed disk: restart it"),
        (group(n1=member("n1", serves=False)), "nobody leads"),
        (group(n1=member("n1", learners=["n4"])), "n4 does not vote yet"),
        (group(n1=member("n1", followers={"n2": {"behind": 1 << 30}})), f"n2 lacks {1 << 30} bytes"),
        (group(n3=member("n3", incarnation=99)), "n3 came back on an empty disk"),
        (group(n1=member("n1", members_decided=False)), "a change of members is not on a majority yet"),
    ],
)
def test_each_fault_is_said_by_name(members: dict[str, dict[str, Any]], said: str) -> None:
    (found,) = faults(members)
    assert found.startswith(said)


def test_a_minority_is_no_group() -> None:
    gone = {"error": "cannot be reached"}
    assert "no majority of the voters answers" in faults(group(n2=gone, n3=gone))


def test_a_voter_whose_incarnation_is_not_known_yet_is_no_fault() -> None:
    assert faults(group(n1=member("n1", incarnations={"n1": 0, "n2": 0, "n3": 0}))) == []
