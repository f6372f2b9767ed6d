"""The connection core: handshake, limits, contents, faults, ends."""

from __future__ import annotations

import pytest

from stratamq.protocols.amqp import methods
from stratamq.protocols.amqp.codec import encode_method
from stratamq.protocols.amqp.connection import State, body_size
from stratamq.protocols.amqp.frames import HEARTBEAT, PROTOCOL_HEADER, method_frame
from tests.unit.protocols.amqp.peers import answers, handshake, new_core, publish, raw_frame, running_core, start_ok

GET = encode_method(methods.BasicGet("q", True))


def names(outgoing):
    return [type(method).__name__ for _, method in answers(outgoing)]


def test_the_handshake():
    core = new_core()
    core.receive_data(PROTOCOL_HEADER)
    ((_, start),) = answers(core.outgoing)
    assert (start.version_major, start.version_minor, start.mechanisms) == (0, 9, b"PLAIN AMQPLAIN")
    core.receive_data(start_ok())
    assert answers(core.outgoing) == [(0, methods.ConnectionTune(2047, 131072, 60))]
    core.receive_data(method_frame(0, methods.ConnectionTuneOk(100, 4096, 7)))
    core.receive_data(method_frame(0, methods.ConnectionOpen("/")))
    assert names(core.outgoing) == ["ConnectionOpenOk"]
    assert (core.state, core.user, core.virtual_host) == (State.RUNNING, "guest", "/")
    assert (core.channel_max, core.frame_max, core.heartbeat_s) == (100, 4096, 7)


def test_the_header_of_0_9_is_taken_too_and_may_come_in_pieces():
    core = new_core()
    for byte in b"AMQP\x01\x01\x00\x09":
        core.receive_data(bytes((byte,)))
    assert names(core.outgoing) == ["ConnectionStart"]


@pytest.mark.parametrize("start", [b"AMQP\0\1\0\0", b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_another_protocol_is_told_ours(start):
    core = new_core()
    core.receive_data(start)
    assert core.outgoing == [PROTOCOL_HEADER]
    assert core.hang_up


def test_a_refused_login_is_told_to_who_understands_it():
    core = new_core()
    core.receive_data(PROTOCOL_HEADER + start_ok(response=b"\0guest\0wrong"))
    assert core.fault is not None
    assert core.fault.code == 403
    assert not core.hang_up
    silent = new_core()
    silent.receive_data(PROTOCOL_HEADER + start_ok(response=b"\0guest\0wrong", capabilities={}))
    assert silent.hang_up


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ({"frame_max": 131_073}, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ({"vhost": "nope"}, "vhost nope not found"),
    ],
)
def test_what_may_not_be_negotiated(choice, text):
    core = new_core()
    core.receive_data(handshake(**choice))
    assert (core.fault.code, core.fault.detail) == (530, text)


def test_methods_and_contents_become_events():
    core = running_core()
    events = core.receive_data(
        raw_frame(1, 3, GET) + publish(1, "e", "k", b"body", delivery_mode=2) + publish(2, "", "q")
    )
    assert [(event[0], event[3]) for event in events] == [(3, None), (1, b"body"), (2, b"")]
    assert events[0][1] == GET
    assert body_size(events[1][2]) == 4


def test_frames_of_other_channels_may_come_in_between():
    core = running_core()
    first = publish(1, "e", "k", b"abcd")
    method_end = 8 + int.from_bytes(first[3:7], "big")
    events = core.receive_data(first[:method_end] + raw_frame(1, 2, GET) + HEARTBEAT + first[method_end:])
    assert [event[0] for event in events] == [2, 1]


def test_a_body_in_many_frames_is_put_together():
    core = running_core()
    whole = publish(1, "", "q", b"abcd")
    head = whole[: -(8 + 4)]
    events = core.receive_data(head + raw_frame(3, 1, b"ab") + raw_frame(3, 1, b"") + raw_frame(3, 1, b"cd"))
    assert events[0][3] == b"abcd"
    assert core.bytes_buffered == 0


def test_a_body_over_the_limit_is_counted_and_dropped():
    core = running_core(body_bytes_max=3)
    ((_, _, header, body),) = core.receive_data(publish(1, "", "q", b"abcd"))
    assert (body_size(header), body) == (4, None)


def publish_head() -> bytes:
    return raw_frame(1, 1, encode_method(methods.BasicPublish("", "q", False, False)))


def header(size: int, class_id: int = 60) -> bytes:
    return raw_frame(2, 1, class_id.to_bytes(2, "big") + b"\0\0" + size.to_bytes(8, "big") + b"\0\0")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw_frame(1, 1, GET, end=b"\x00"), 501),
        (b"\x01\x00\x01\x7f\xff\xff\xff", 501),
        (raw_frame(9, 1, b""), 501),
        (raw_frame(8, 1, b""), 505),
        (raw_frame(3, 1, b"x"), 505),
        (raw_frame(2, 0, b"x"), 505),
        (raw_frame(2, 1, b"x" * 20), 505),
        (publish_head() + raw_frame(1, 1, GET), 505),
        (publish_head() + raw_frame(3, 1, b"x"), 505),
        (publish_head() + header(2) + header(2), 505),
        (publish_head() + header(2, class_id=10), 505),
        (publish_head() + header(2) + raw_frame(3, 1, b"xyz"), 501),
        (publish_head() + raw_frame(2, 1, b"\0\x3c"), 502),
        (method_frame(0, methods.ConnectionOpen("/")), 503),
    ],
)
def test_bad_frames_have_their_codes(data, code):
    core = running_core()
    events = core.receive_data(raw_frame(1, 5, GET) + data)
    assert [event[0] for event in events] == [5]
    assert core.fault.code == code
    core.close(core.fault)
    ((_, close),) = answers(core.outgoing)
    assert close.code == code
    assert core.receive_data(publish(1, "", "q", b"x")) == []


def test_before_tuning_frames_are_small():
    core = new_core()
    core.receive_data(PROTOCOL_HEADER + b"\x01\x00\x00" + (5000).to_bytes(4, "big"))
    assert core.fault.code == 501


def test_a_method_on_a_channel_before_open_is_refused():
    core = new_core()
    core.receive_data(PROTOCOL_HEADER + start_ok() + raw_frame(1, 1, GET))
    assert core.fault.code == 504


def test_after_our_close_only_the_close_ok_counts():
    core = running_core()
    core.receive_data(raw_frame(8, 1, b""))
    core.close(core.fault)
    core.outgoing.clear()
    assert core.receive_data(raw_frame(1, 1, GET) + HEARTBEAT) == []
    assert core.state is State.CLOSING
    core.receive_data(method_frame(0, methods.ConnectionCloseOk()))
    assert core.state is State.CLOSED


def test_the_peers_close_is_an_event_and_confirmed_by_the_caller():
    core = running_core()
    ((channel, _, _, _),) = core.receive_data(method_frame(0, methods.ConnectionClose(200, "bye", 0, 0)))
    assert channel == 0
    core.confirm_close()
    assert names(core.outgoing) == ["ConnectionCloseOk"]
    assert core.state is State.CLOSED


def test_heartbeats_are_sent_and_missed():
    core = running_core()
    core.heartbeat_s = 10
    assert core.check_silence(received_s_ago=4, sent_s_ago=4, ignore_receiving=False)
    assert core.outgoing == []
    assert core.check_silence(received_s_ago=20, sent_s_ago=5, ignore_receiving=False)
    assert core.outgoing == [HEARTBEAT]
    assert not core.check_silence(received_s_ago=30, sent_s_ago=0, ignore_receiving=False)
    assert core.check_silence(received_s_ago=30, sent_s_ago=0, ignore_receiving=True)
    core.heartbeat_s = 0
    assert core.check_silence(received_s_ago=1000, sent_s_ago=1000, ignore_receiving=False)
