"""Cutting one member's text out of fastjson's dialect, whatever a client sends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.protocols.remoting.bodies import member_text

TABLE = '{{"brokerName":"b","queueId":0,"topic":"t"}:5}'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f'{{"consumerTable":{{}},"messageQueueTable":{TABLE}}}', TABLE),
        (f'{{ "messageQueueTable" : {TABLE} }}', TABLE),
        (f'{{"other":"messageQueueTable","messageQueueTable":{TABLE}}}', TABLE),
        (f'{{"other":{{"messageQueueTable":{{}}}},"messageQueueTable":{TABLE}}}', TABLE),
        ('{"messageQueueTable":null}', None),
        ('{"messageQueueTable":{', None),
        ('{"messageQueueTable":{"a', None),
        ("", None),
        ("}}}}", None),
        ('{"', None),
    ],
)
def test_the_member_as_it_stands(body, expected):
    assert member_text(body.encode(), "messageQueueTable") == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(body):
    found = member_text(body, "messageQueueTable")
    assert found is None or found in body.decode(errors="replace")


_VALUES = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), _VALUES, max_size=3), st.dictionaries(st.text(max_size=4), _VALUES))
def test_what_stands_there_is_what_was_meant(others, meant):
    others.pop("here", None)
    text = json.dumps({**others, "here": meant, "more": 1})
    found = member_text(text.encode(), "here")
    assert found is not None
    assert json.loads(found) == meant
