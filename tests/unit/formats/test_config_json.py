"""RocketMQ's config dialect."""

from __future__ import annotations

import json

import pytest

from stratamq.formats.config_json import decode_config_json, encode_config_json


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ("{0:12,1:7\n}", {"0": 12, "1": 7}),
        ('{"offsetTable":{"T@G":{0:23,\n\t-1 : 23}}}', {"offsetTable": {"T@G": {"0": 23, "-1": 23}}}),
        ('{"0":1}', {"0": 1}),
        ('{"a":"{1:2}","b":"\\"{3:4"}', {"a": "{1:2}", "b": '"{3:4'}),
        ('["x",1,{2:[3,4]}]', ["x", 1, {"2": [3, 4]}]),
        ('{"tab":"a\tb"}', {"tab": "a\tb"}),
    ],
)
def test_reading(text, expected):
    assert decode_config_json(text) == expected


@pytest.mark.parametrize("text", ["", "{", "{a:1}", "{1.5:2}", '{"a"}', "nul", "[" * 100_000, '{"a":"'])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        decode_config_json(text)


def test_writing_looks_like_rocketmq():
    value = {"dataVersion": {"counter": 1}, "offsetTable": {"T@G": {0: 23, 1: 0}, "empty": {}}, "list": [], "n": None}
    assert encode_config_json(value) == (
        '{\n\t"dataVersion":{"counter":1\n\t},\n\t"offsetTable":{\n\t\t"T@G":{0:23,1:0\n\t\t},\n\t\t"empty":{}\n\t},'
        '\n\t"list":[],\n\t"n":null\n}\n'
    )


def test_text_keys_stay_quoted_so_that_strict_readers_take_them():
    assert json.loads(encode_config_json({"0": [True, 1.5, "ü", {"x": [1, {}]}]})) == {
        "0": [True, 1.5, "ü", {"x": [1, {}]}]
    }


@pytest.mark.parametrize("value", [{1.5: 1}, {None: 1}, {"a": {1}}, {True: "x"}])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(TypeError):
        encode_config_json(value)


def test_not_a_number_is_refused():
    with pytest.raises(ValueError, match="compliant"):
        encode_config_json([float("nan")])
