"""Hard state on disk, control records, messages as bytes: what comes back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratamq.errors import BadLength, ChecksumMismatch, CorruptionError, RemoteProtocolError
from stratamq.replication import wire
from stratamq.replication.control import Table, decode_control, encode_members, encode_table
from stratamq.replication.hard_state import SLOT_BYTES, HardStateFile
from stratamq.replication.members import Config, Configs, Control, Epochs, Member, initial_config
from stratamq.replication.messages import Append, AppendReply, TimeoutNow, VoteReply, VoteRequest
from stratamq.replication.ports import HardState
from stratamq.testing.filesystem import FaultyFileSystem, SimulatedCrash

CONFIG = Config((Member("n1", 5), Member("n2", 6)), (Member("n3", 7),))


def test_the_hard_state_comes_back(tmp_path):
    path = str(tmp_path / "raft.state")
    file = HardStateFile(path, "n1")
    assert file.load() is None
    for term in range(1, 4):
        file.save(HardState(term, "n2", 77, 1000 * term))
    file.close()
    again = HardStateFile(path, "n1")
    assert again.load() == HardState(3, "n2", 77, 3000)
    again.close()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_that_rots_forgets_no_vote(tmp_path, slot):
    path = tmp_path / "raft.state"
    file = HardStateFile(str(path), "n1")
    file.save(HardState(1, "", 7, 0))
    file.save(HardState(2, "n3", 7, 0))
    file.close()
    data = bytearray(path.read_bytes())
    data[slot * SLOT_BYTES + 20] ^= 1
    path.write_bytes(data)
    file = HardStateFile(str(path), "n1")
    assert file.load() == HardState(2, "n3", 7, 0)
    file.close()


def test_without_a_whole_slot_nobody_votes(tmp_path):
    path = tmp_path / "raft.state"
    path.write_bytes(bytes(2 * SLOT_BYTES))
    with pytest.raises(ChecksumMismatch, match="empty the data directory"):
        HardStateFile(str(path), "n1").load()


def test_the_state_of_another_node_is_refused(tmp_path):
    path = str(tmp_path / "raft.state")
    file = HardStateFile(path, "n1")
    file.save(HardState(1, "", 7, 0))
    file.close()
    with pytest.raises(BadLength, match="node n2"):
        HardStateFile(path, "n2").load()


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_crash_while_saving_leaves_the_old_or_the_new_state(tmp_path, nth):
    fs = FaultyFileSystem()
    file = HardStateFile(str(tmp_path / "raft.state"), "n1", fs)
    old, new = HardState(1, "n1", 7, 0), HardState(2, "n2", 7, 0)
    file.save(old)
    fs.crash_at(nth)
    try:
        file.save(new)
        saved = True
    except SimulatedCrash:
        saved = False
    found = HardStateFile(str(tmp_path / "raft.state"), "n1").load()
    assert found in ((new,) if saved else (old, new))


def test_control_records_come_back():
    body = encode_members(3, "n1", CONFIG, 100, starts_term=True)
    assert decode_control(body, 120, 300, "log") == Control(100, 300, 3, CONFIG)
    body = encode_members(3, "n1", CONFIG, 100, starts_term=False)
    assert decode_control(body, 100, 300, "log") == Control(100, 300, 0, CONFIG)
    assert decode_control(encode_table("x.json", {"a": 1}), 0, 9, "log") == Table("x.json", {"a": 1})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"kind":"other"}',
        b'{"kind":"term","term":1,"start":0,"voters":[],"learners":[]}',
        b'{"kind":"term","term":1,"start":500,"voters":[["n1",1]],"learners":[]}',
    ],
)
def test_a_control_record_that_says_nothing_is_corruption(body):
    with pytest.raises(CorruptionError):
        decode_control(body, 100, 300, "log")


NUMBERS = st.integers(0, 2**62)
NAMES = st.text("abcdefn123", min_size=1, max_size=20)
MESSAGES = st.one_of(
    st.builds(VoteRequest, NUMBERS, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans()),
    st.builds(VoteReply, NUMBERS, NAMES, NUMBERS, NUMBERS, st.booleans(), st.booleans()),
    st.builds(Append, NUMBERS, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=200), NUMBERS, NUMBERS),
    st.builds(
        AppendReply, NUMBERS, NAMES, NUMBERS, st.booleans(), NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS
    ),
    st.builds(TimeoutNow, NUMBERS, NAMES, NUMBERS),
)


@given(MESSAGES)
def test_messages_come_back(message):
    data = b"".join(wire.encode_message(message))
    length, crc = wire.HEAD.unpack_from(data)
    wire.check_frame(length)
    content = data[wire.HEAD.size :]
    assert len(content) == length
    wire.check_crc(content, crc)
    assert wire.decode_message(memoryview(content)) == message


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data):
    try:
        message = wire.decode_message(memoryview(data))
    except RemoteProtocolError:
        return
    content = b"".join(wire.encode_message(message))[wire.HEAD.size :]
    assert wire.decode_message(memoryview(content)) == message


@given(MESSAGES, st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_is_noticed(message, at, bit):
    data = bytearray(b"".join(wire.encode_message(message)))
    _, crc = wire.HEAD.unpack_from(data)
    content = data[wire.HEAD.size :]
    content[at % len(content)] ^= 1 << bit
    with pytest.raises(RemoteProtocolError):
        wire.check_crc(content, crc)


@pytest.mark.parametrize("length", [0, wire.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_frame_of_a_forbidden_length_is_refused(length):
    with pytest.raises(RemoteProtocolError):
        wire.check_frame(length)


def test_terms_by_position():
    epochs = Epochs([(1, 10), (3, 50)])
    assert [epochs.term_of(at) for at in (0, 9, 10, 49, 50, 99)] == [0, 0, 1, 1, 3, 3]
    assert (epochs.end_of(0, 99), epochs.end_of(1, 99), epochs.end_of(2, 99), epochs.end_of(3, 99)) == (10, 50, 50, 99)
    assert [epochs.boundary_up_to(at) for at in (5, 10, 49, 80)] == [0, 10, 10, 50]
    with pytest.raises(ValueError, match="cannot follow"):
        epochs.add(3, 70)
    epochs.truncate(50)
    assert list(epochs) == [(1, 10)]


def test_members_go_back_with_the_log():
    configs = Configs(initial_config(["n1", "n2"]))
    configs.add(100, CONFIG)
    assert configs.last == CONFIG
    assert configs.previous == initial_config(["n2", "n1"])
    configs.truncate(99)
    assert configs.last == initial_config(["n1", "n2"])
    assert not configs.last.is_settled
    assert configs.last.has_voter(Member("n1", 55))
    assert not CONFIG.has_voter(Member("n1", 55))
