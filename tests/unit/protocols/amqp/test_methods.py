"""Methods and properties: golden bytes, and every method there and back."""

from __future__ import annotations

import pytest

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import SPECS, decode_method, encode_method
from stratamq.protocols.amqp.frames import content_frames, method_frame
from stratamq.protocols.amqp.properties import Facts, change_properties, decode_properties, encode_properties
from stratamq.protocols.amqp.replies import AmqpError

SAMPLES = {"o": 7, "h": 300, "l": 70_000, "q": 2**40, "s": "name", "S": b"long", "t": {"k": 1}, "b": True}


def test_there_are_all_methods():
    assert len(SPECS) == 66
    assert {int.from_bytes(head[:2], "big") for head in SPECS} == {10, 20, 30, 40, 50, 60, 85, 90}


@pytest.mark.parametrize("head", list(SPECS), ids=lambda head: head.hex())
def test_every_method_goes_there_and_back(head):
    spec = SPECS[head]
    for bit in (True, False):
        arguments = spec.arguments(
            *[bit if letter == "b" else SAMPLES[letter] for letter in spec.layout if letter in SAMPLES]
        )
        payload = encode_method(arguments)
        assert payload[:4] == head
        assert decode_method(payload) == arguments
        for cut in range(4, len(payload)):
            with pytest.raises(AmqpError):
                decode_method(payload[:cut])


def test_golden_frames():
    declare = methods.QueueDeclare("q", False, True, False, True, False, {"x-expires": 5})
    assert method_frame(1, declare) == bytes.fromhex(
        "01 0001 00000020 0032 000a 0000 01 71 0a 00000013 09 782d65787069726573 6c 0000000000000005 ce"
    )
    publish = methods.BasicPublish("ex", "key", True, False)
    assert encode_method(publish) == bytes.fromhex("003c 0028 0000 02 6578 03 6b6579 01")
    nack = methods.BasicNack(9, True, False)
    assert encode_method(nack) == bytes.fromhex("003c 0078 0000000000000009 01")


def test_content_is_cut_to_the_frame_size():
    payload = encode_method(methods.BasicDeliver("t", 1, False, "", "q"))
    block = encode_properties({"delivery_mode": 2})
    whole = content_frames(3, payload, block, b"x" * 20, 0)
    assert whole.endswith(b"\x03\x00\x03\x00\x00\x00\x14" + b"x" * 20 + b"\xce")
    cut = content_frames(3, payload, block, b"x" * 20, 16)
    assert cut.count(b"\x03\x00\x03\x00\x00\x00\x08") == 2
    assert cut.endswith(b"\x03\x00\x03\x00\x00\x00\x04xxxx\xce")
    assert content_frames(3, payload, block, b"", 16).endswith(block + b"\xce")


ALL = {
    "content_type": "text/plain", "content_encoding": "utf-8", "headers": {"a": "b"}, "delivery_mode": 2,
    "priority": 4, "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m",
    "timestamp": 1_600_000_000, "type": "t", "user_id": "u", "app_id": "a", "cluster_id": "i",
}  # fmt: skip


def test_properties_go_there_and_back_and_facts_are_found():
    block = encode_properties(ALL)
    assert block[:2] == b"\xff\xfc"
    assert decode_properties(block) == ALL
    facts = Facts(block)
    assert (facts.is_persistent, facts.priority, facts.expiration) == (True, 4, "60000")
    assert (facts.user_id, facts.reply_to, facts.headers()) == ("u", "r", {"a": "b"})
    assert decode_properties(change_properties(block, expiration=None)) == {
        name: value for name, value in ALL.items() if name != "expiration"
    }


@pytest.mark.parametrize("cut", range(2, len(encode_properties(ALL))))
def test_properties_that_are_cut_off_are_refused(cut):
    with pytest.raises(AmqpError):
        Facts(encode_properties(ALL)[:cut])


def test_properties_that_nobody_knows_are_refused():
    with pytest.raises(AmqpError):
        Facts(b"\x00\x01\x00\x00")
    with pytest.raises(AmqpError):
        Facts(b"\x00\x00more")
