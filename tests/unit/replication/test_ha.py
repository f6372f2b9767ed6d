"""Master and slave without sockets: frames, reports, whole records, who has what, what a slave refuses to follow."""

from __future__ import annotations

import pytest

from stratamq.config import BrokerRole, HaConfig
from stratamq.errors import ConfigError, LogsDiffer, RemoteProtocolError
from stratamq.formats.message import encode_blank
from stratamq.replication.ha_following import Following, RecordCutter
from stratamq.replication.ha_serving import SlaveLink, SlaveRefused, copied_up_to, in_sync_copies
from stratamq.replication.ha_wire import BODY_BYTES_MAX, FRAME_HEAD, REPORT, Frame, FrameReader, ReportReader

FILE = 1024
RECORD = (100).to_bytes(4, "big") + bytes(96)


# --- frames and reports ---


def test_a_frame_is_twelve_bytes_and_its_body():
    assert FrameReader().feed(bytes.fromhex("0000000000000102 00000003") + b"abc") == [Frame(258, b"abc")]
    assert Frame(258, b"abc").end == 261


@pytest.mark.parametrize(
    "head", [FRAME_HEAD.pack(-1, 0), FRAME_HEAD.pack(0, -1), FRAME_HEAD.pack(0, BODY_BYTES_MAX + 1)]
)
def test_bad_frames_end_the_connection(head):
    with pytest.raises(RemoteProtocolError, match="haListenPort"):
        FrameReader().feed(head)


def test_only_the_last_whole_report_counts():
    reports = ReportReader()
    assert reports.feed(REPORT.pack(1) + REPORT.pack(2)[:3]) == 1
    assert reports.feed(REPORT.pack(2)[3:] + REPORT.pack(7)) == 7
    assert reports.feed(b"\0") is None
    with pytest.raises(RemoteProtocolError, match="below 0"):
        ReportReader().feed(REPORT.pack(-5))


# --- whole records ---


def test_a_blank_waits_for_what_follows_it():
    cutter = RecordCutter(FILE - 200, FILE, 10_000)
    blank = encode_blank(100).ljust(100, b"\0")
    assert cutter.feed(RECORD + blank) == [RECORD]
    assert cutter.position == FILE - 100
    assert cutter.feed(RECORD[:50]) == []
    assert cutter.feed(RECORD[50:]) == [blank + RECORD]
    assert cutter.position == cutter.received == FILE + 100


@pytest.mark.parametrize("size", [0, 7, -1, 101])
def test_what_cannot_be_a_record_is_refused(size):
    cutter = RecordCutter(FILE - 100, FILE, 10_000)
    with pytest.raises(RemoteProtocolError, match=f"no record at offset {FILE - 100}"):
        cutter.feed(size.to_bytes(4, "big", signed=True) + bytes(4))


def test_a_record_longer_than_what_may_wait_is_refused():
    cutter = RecordCutter(0, FILE, 300)
    assert cutter.feed((900).to_bytes(4, "big") + bytes(200)) == []
    with pytest.raises(RemoteProtocolError, match="pending_bytes_max allows 300"):
        cutter.feed(bytes(200))


# --- the slave's side ---


def following(log: bytes, *, start: int = 0, compare: int = 64) -> Following:
    return Following(
        start=start,
        end=start + len(log),
        read=lambda offset, size: memoryview(log)[offset - start : offset - start + size],
        compare_bytes=compare,
        file_bytes=FILE,
        waiting_bytes_max=10_000,
    )


def test_an_empty_slave_begins_where_the_master_says():
    slave = following(b"")
    assert slave.report(0) == 0
    assert slave.receive(Frame(7, b"")) == []
    assert slave.receive(Frame(3 * FILE, RECORD)) == [RECORD]
    assert slave.begins_at == 3 * FILE
    assert slave.report(3 * FILE + 100) == 3 * FILE + 100


def test_an_empty_slave_with_files_of_another_length_does_not_begin():
    with pytest.raises(LogsDiffer, match="mappedFileSizeCommitLog"):
        following(b"").receive(Frame(FILE + 8, RECORD))


def test_a_slave_compares_its_last_bytes_before_it_takes_new_ones():
    slave = following(RECORD * 3)
    assert slave.report(300) == 236
    assert slave.receive(Frame(236, RECORD[36:90])) == []
    assert not slave.is_compared
    assert slave.report(300) == 290
    assert slave.receive(Frame(290, RECORD[90:] + RECORD + b"\0")) == [RECORD]
    assert slave.is_compared
    assert slave.report(400) == 400
    assert slave.receive(Frame(401, b"")) == []


def test_a_short_log_never_reports_zero():
    assert following(RECORD, compare=1000).report(100) == 1


def test_other_bytes_at_the_same_place_are_found():
    slave = following(RECORD * 3)
    with pytest.raises(LogsDiffer, match="bytes at 250 are not the master's"):
        slave.receive(Frame(236, bytes(14) + b"x" + bytes(49)))


@pytest.mark.parametrize("offset", [0, 235, 237, 300, 10_000])
def test_a_master_that_goes_on_elsewhere_is_not_followed(offset):
    for body in (b"", RECORD):
        with pytest.raises(LogsDiffer, match=f"goes on at {offset}, and 236 was to come"):
            following(RECORD * 3).receive(Frame(offset, body))


def test_a_master_that_has_less_is_not_followed():
    slave = following(RECORD * 3)
    assert slave.receive(Frame(236, b"")) == []  # RocketMQ's may say this before its first bytes
    assert slave.receive(Frame(236, RECORD[36:50])) == []
    assert slave.receive(Frame(250, b"")) == []
    with pytest.raises(LogsDiffer, match="nothing more than what it has given, up to 250"):
        slave.receive(Frame(250, b""))


# --- the master's side ---


def link(**rest: object) -> SlaveLink:
    return SlaveLink(address="s", now_ms=0, file_bytes=FILE, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "from_first", "begins"),
    [(0, False, 3 * FILE), (0, True, FILE), (FILE, False, FILE), (3 * FILE + 50, False, 3 * FILE + 50)],
)
def test_where_a_slave_begins(offset, from_first, begins):
    slave = link(from_first_file=from_first)
    slave.reported(offset, log_start=FILE, log_end=3 * FILE + 50, now_ms=1)
    assert slave.next_offset == begins
    assert slave.acked == (offset and begins)


@pytest.mark.parametrize(("offset", "told"), [(FILE - 1, FILE), (3 * FILE + 51, 3 * FILE + 50)])
def test_a_slave_that_asks_for_what_is_not_there_is_told_what_is(offset, told):
    with pytest.raises(SlaveRefused) as caught:
        link().reported(offset, log_start=FILE, log_end=3 * FILE + 50, now_ms=1)
    assert caught.value.offset == told


def test_nobody_acknowledges_what_does_not_exist():
    slave = link()
    slave.reported(100, log_start=0, log_end=500, now_ms=0)
    slave.reported(400, log_start=0, log_end=500, now_ms=0)
    with pytest.raises(SlaveRefused, match="reports 501, and this log ends at 500"):
        slave.reported(501, log_start=0, log_end=500, now_ms=0)
    assert slave.acked == 400


def test_copies_are_counted_with_the_master():
    slaves = [link() for _ in range(3)]
    for slave, acked in zip(slaves, (500, 300, 0), strict=True):
        slave.reported(acked, log_start=0, log_end=500, now_ms=0)
    slaves.append(link())  # has not said anything yet
    assert [copied_up_to(slaves, copies) for copies in (2, 3, 4, 5)] == [500, 300, 0, 0]
    assert copied_up_to([], 1) > 500
    assert in_sync_copies(slaves, 500, 201) == 3
    assert in_sync_copies(slaves, 500, 501) == 4


def test_no_more_than_so_many_bytes_a_second():
    slave = link(bytes_per_second=1000)
    slave.reported(0, log_start=0, log_end=0, now_ms=0)
    slave.sent(700, 10)
    assert slave.may_send(20) == 300
    slave.sent(300, 20)
    assert slave.may_send(999) == 0
    assert slave.may_send(1000) == 1000
    assert slave.rate == 1000
    assert link().may_send(0) > 2**30


def test_heartbeats_and_silence():
    slave = link()
    assert not slave.is_heartbeat_due(10_000, 5_000)  # it has not said where to begin
    slave.reported(0, log_start=0, log_end=0, now_ms=10_000)
    assert slave.is_heartbeat_due(10_000, 5_000)
    slave.sent(0, 10_000)
    assert not slave.is_heartbeat_due(14_999, 5_000)


@pytest.mark.parametrize(
    "values",
    [
        {"role": BrokerRole.SLAVE},
        {"broker_id": 1},
        {"min_in_sync_replicas": 3},
        {"master_address": "nowhere"},
        {"port": 70_000},
    ],
)
def test_settings_that_do_not_fit(values):
    with pytest.raises(ConfigError, match="allowed"):
        HaConfig(**values)
