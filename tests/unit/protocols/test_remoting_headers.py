"""Typed request headers, in every dialect of the extFields."""

from __future__ import annotations

import msgspec
import pytest

from stratamq.errors import RemoteProtocolError
from stratamq.protocols.remoting.command import CommandHeader
from stratamq.protocols.remoting.headers import (
    ExtFields,
    HeaderReader,
    QueryMessageHeader,
    UnregisterClientHeader,
    read_pull,
    read_send,
    read_send_v2,
    read_update_offset,
)


def header(**ext: object) -> CommandHeader:
    return CommandHeader(code=1, ext=msgspec.Raw(msgspec.json.encode(ext)))


SHORT = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1767225600000", "h": "-7"}


def test_a_send_with_text_values():
    fields = read_send_v2(header(**SHORT, i="K\x01v\x02", j="1", k="false", l="16", m="true", n="broker-a"))
    assert (fields.producer_group, fields.topic, fields.queue_id, fields.flag) == ("g", "T", 2, -7)
    assert (fields.born_timestamp, fields.properties, fields.batch) == (1767225600000, "K\x01v\x02", True)
    assert (fields.reconsume_times, fields.max_reconsume_times) == (1, 16)


def test_a_send_with_raw_numbers_and_booleans():
    raw = {**SHORT, "d": 4, "e": 2, "f": 0, "g": 1767225600000, "h": 0, "m": False, "j": None, "a": 17}
    fields = read_send_v2(header(**raw))
    assert (fields.queue_id, fields.batch, fields.reconsume_times, fields.producer_group) == (2, False, None, "17")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("FALSE", False), (1, True)])
def test_booleans_of_all_kinds(text, value):
    assert read_send_v2(header(**SHORT, m=text)).batch is value


def test_a_send_with_long_names_and_what_the_cpp_client_adds():
    fields = read_send(
        header(
            producerGroup="g",
            topic="T",
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=0,
            sysFlag=0,
            bornTimestamp="1767225600000",
            flag=0,
            properties="",
            reconsumeTimes=0,
            unitMode="0",
            batch="1",
            AccessKey="",
            OnsChannel="ALIYUN",
            Signature="",
        )
    )
    assert fields.batch is True
    assert fields.born_timestamp == 1767225600000


@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_missing_field_is_named(name):
    ext = {key: value for key, value in SHORT.items() if key != name}
    with pytest.raises(RemoteProtocolError, match=name) as caught:
        read_send_v2(header(**ext))
    assert caught.value.reply_hint == 1


@pytest.mark.parametrize("value", ["x", "", "99999999999999999999999", 2**40, "2147483648", 1.5, [1], {}])
def test_a_queue_id_that_is_none_is_refused(value):
    with pytest.raises(RemoteProtocolError):
        read_send_v2(header(**{**SHORT, "e": value}))


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"5", b"{", b'{"a":5,"b":"\\ud800"}', b'{"a":"\xff"}', b"[" * 5000])
def test_ext_fields_that_are_no_object_are_refused(raw):
    with pytest.raises(RemoteProtocolError):
        read_send_v2(CommandHeader(code=1, ext=msgspec.Raw(raw)))


def test_null_ext_fields_count_as_none():
    with pytest.raises(RemoteProtocolError, match="missing required field"):
        read_pull(CommandHeader(code=1, ext=msgspec.Raw(b"null")))


def test_a_pull_with_little_in_it():
    fields = read_pull(
        header(consumerGroup="g", topic="T", queueId=0, queueOffset="5", maxMsgNums=32, sysFlag=6, subscription=None)
    )
    assert (fields.queue_offset, fields.subscription, fields.expression_type, fields.sub_version) == (5, None, None, 0)


def test_odd_names():
    assert HeaderReader(UnregisterClientHeader)(header(clientID="c")).client_id == "c"
    ext = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    read = HeaderReader(QueryMessageHeader)
    assert read(header(**ext, _UNIQUE_KEY_QUERY="true")).is_unique_key is True
    assert read(header(**ext)).is_unique_key is None
    assert read_update_offset(header(consumerGroup="g", topic="T", queueId="1", commitOffset="-1")).commit_offset == -1


def test_every_header_ignores_what_it_does_not_know():
    for kind in ExtFields.__subclasses__():
        assert not kind.__struct_config__.forbid_unknown_fields
