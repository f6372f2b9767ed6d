"""fastjson's dialect: what brokers write, and garbage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting import fastjson
from stratamq.protocols.remoting.fastjson import Entry

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "t"}


def test_standard_json_is_read_as_it_is():
    value = {"a": [1, -2.5, True, None, "x\u00e9\n"], "": {}, "n": {"m": []}}
    assert fastjson.loads(json.dumps(value).encode()) == value


def test_whole_numbers_as_keys_become_text():
    text = b'{"brokerAddrs":{0:"10.0.0.5:10911", 1 :"x"},"n":{-1:{}}}'
    assert fastjson.loads(text) == {"brokerAddrs": {"0": "10.0.0.5:10911", "1": "x"}, "n": {"-1": {}}}


def test_objects_as_keys_become_entries():
    text = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5,{"topic":"u"}:{"x":[{1:2}]}},"more":1}'
    assert fastjson.loads(text) == {
        "offsetTable": [Entry(QUEUE, 5), Entry({"topic": "u"}, {"x": [{"1": 2}]})],
        "more": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{1:",
        b"{1:2",
        b"{1:2,",
        b"{1 2}",
        b"{:2}",
        b"{1:2}x",
        b"{1:[}",
        b"{1:[2 3]}",
        b"{1:@}",
        b'{1:"x}',
        b"{1:name}",
        b'{{"a":1}:2,"b":3}',
        b"\xff",
        b"{1:" * 100 + b"1" + b"}" * 100,
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.integers(), JSON, min_size=1, max_size=4))
def test_any_value_under_bare_numbers_comes_back(value):
    text = "{" + ",".join(f"{key}:{json.dumps(one)}" for key, one in value.items()) + "}"
    assert fastjson.loads(text.encode()) == {str(key): one for key, one in value.items()}


@given(st.text(alphabet='{}[]:,"01a\\ n', max_size=40))
def test_garbage_never_does_worse_than_an_error(text):
    """Whatever is taken is a value that JSON has."""
    try:
        found = fastjson.loads(text.encode())
    except RemoteProtocolError:
        return
    assert json.loads(json.dumps(found)) == found
