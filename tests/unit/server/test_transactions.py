"""Transactional messages: half, commit, rollback, check-back, over a whole broker without sockets."""

from __future__ import annotations

import pytest

from stratamq.broker.half_messages import half_again
from stratamq.broker.transactions import GROUP
from stratamq.config import BrokerConfig
from stratamq.formats.message import Record, decode_record
from stratamq.formats.properties import find_property
from stratamq.logstore.types import PutResult, PutStatus
from stratamq.protocols.remoting.codes import RequestCode
from tests.unit.server.harness import FakePeer, Harness, records

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PROPERTIES = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U{}\x02"


class Producer(FakePeer):
    """A producer that keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[dict[str, str], Record]] = []

    def notify(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self.asked.append((ext, decode_record(body)))


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path)
    harness.peer = Producer()
    harness.heartbeat("c")
    harness.peer.take()
    yield harness
    harness.close()


def half(harness, number=0, extra="", **rest):
    answer = harness.send(properties=PROPERTIES.format(number) + extra, f=4, body=b"m%d" % number, **rest)
    assert answer.code == 0
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16)


def end(harness, place, what=8, *, checked=False, group="p"):
    ext = {
        "producerGroup": group,
        "tranStateTableOffset": str(place[0]),
        "commitLogOffset": str(place[1]),
        "commitOrRollback": str(what),
        "fromTransactionCheck": str(checked).lower(),
        "msgId": "U",
    }
    harness.peer.take()
    harness.request(RequestCode.END_TRANSACTION, ext)
    answers = harness.peer.take()
    return answers[0].code if answers else None


def stored(harness, topic):
    found = []
    while (got := harness.store.get(topic, 0, len(found), 32)).records:
        found += records(b"".join(got.records))
    return found


def wait(harness, ms=31_000, steps=40):
    harness.clock.advance(ms)
    for _ in range(steps):
        harness.broker.run_due()


def asked_place(harness, at=-1):
    ext = harness.peer.asked[at][0]
    return int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])


def test_a_half_message_is_not_delivered_and_says_where_it_belongs(harness):
    half(harness)
    assert stored(harness, "T") == []
    (record,) = stored(harness, HALF)
    assert record.sys_flag & 0xC == 0
    for name, value in {"REAL_TOPIC": "T", "REAL_QID": "0", "__transactionId__": "U0"}.items():
        assert find_property(record.properties, name) == value


def test_commit_delivers_and_marks(harness):
    place = half(harness)
    assert end(harness, place) == 0
    (record,) = stored(harness, "T")
    assert (record.body, record.sys_flag & 0xC, record.prepared_transaction_offset) == (b"m0", 8, place[1])
    assert stored(harness, OP) == []
    wait(harness, 3_000)
    (op,) = stored(harness, OP)
    assert (op.body, find_property(op.properties, "TAGS")) == (b"0,", "d")


def test_rollback_delivers_nothing_and_is_not_asked_about(harness):
    assert end(harness, half(harness), 12) == 0
    wait(harness)
    wait(harness)
    assert stored(harness, "T") == []
    assert harness.peer.asked == []
    assert harness.broker.offsets.find(GROUP, HALF, 0) == 1
    assert harness.broker.offsets.find(GROUP, OP, 0) == 1


def test_a_second_answer_has_no_second_effect(harness):
    committed, rolled_back = half(harness, 0), half(harness, 1)
    assert [end(harness, committed), end(harness, committed), end(harness, rolled_back, 12)] == [0, 0, 0]
    assert end(harness, rolled_back, 8) == 0
    wait(harness)
    assert end(harness, committed) == 0
    assert [record.body for record in stored(harness, "T")] == [b"m0"]


def test_unknown_is_not_answered(harness):
    assert end(harness, half(harness), 0) is None


def test_what_does_not_fit_is_refused(harness):
    offset, at = half(harness)
    assert end(harness, (offset, at), group="q") == 1
    assert end(harness, (offset + 1, at)) == 1
    assert end(harness, (offset, at + 1)) == 1
    assert end(harness, (offset, -1)) == 1
    assert end(harness, (offset, at), 4) == 29
    assert stored(harness, "T") == []


def test_an_old_half_is_asked_about_with_its_real_place(harness):
    half(harness)
    wait(harness)
    ((ext, record),) = harness.peer.asked
    assert (ext["topic"], ext["tranStateTableOffset"], ext["bname"]) == ("T", "1", "broker-a")
    assert (record.topic, record.queue_id, record.body) == ("T", 0, b"m0")
    assert find_property(record.properties, "TRANSACTION_CHECK_TIMES") == "1"
    assert end(harness, asked_place(harness), checked=True) == 0
    wait(harness)
    assert len(harness.peer.asked) == 1
    assert [record.body for record in stored(harness, "T")] == [b"m0"]


def test_a_late_first_answer_and_the_answer_to_the_check_deliver_once(harness):
    place = half(harness)
    wait(harness)
    assert end(harness, place) == 0
    assert end(harness, asked_place(harness), checked=True) == 0
    wait(harness)
    assert (len(stored(harness, "T")), len(harness.peer.asked)) == (1, 1)


def test_a_young_half_is_left_alone(harness):
    wait(harness, 29_000)
    place = half(harness, g=harness.clock.wall_ms())
    wait(harness, 2_000)
    assert harness.peer.asked == []
    assert end(harness, place) == 0


def test_a_half_with_a_time_of_its_own_holds_up_nobody(harness):
    place = half(harness, 0, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", g=harness.clock.wall_ms())
    half(harness, 1)
    wait(harness)
    assert [record.body for _, record in harness.peer.asked] == [b"m1"]
    wait(harness, 60_000)
    assert b"m0" in [record.body for _, record in harness.peer.asked]
    assert end(harness, place) == 604
    assert end(harness, place, checked=True) == 0


def test_after_the_last_check_it_is_put_aside_and_can_be_resumed(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(transaction_check_max=2))
    harness.peer = Producer()
    harness.heartbeat("c")
    half(harness)
    for _ in range(4):
        wait(harness)
    assert len(harness.peer.asked) == 2
    (given_up,) = stored(harness, "TRANS_CHECK_MAX_TIME_TOPIC")
    answer = harness.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": given_up.message_id})
    assert answer.code == 0
    wait(harness)
    assert len(harness.peer.asked) == 3
    assert harness.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "x"}).code == 29
    harness.close()


def test_a_commit_that_cannot_be_stored_stays_open(harness):
    place = half(harness)
    harness.committer.refuse_with = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
    assert end(harness, place) == 14
    harness.committer.refuse_with = None
    assert end(harness, place) == 0
    assert len(stored(harness, "T")) == 1


def test_refused_by_setting_in_batches_and_with_delays(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(reject_transactions=True))
    assert harness.send(properties=PROPERTIES, f=4).code == 16
    assert harness.send(f=4).code == 13
    harness.close()
    harness = Harness(tmp_path)
    assert harness.send(properties=PROPERTIES + "DELAY\x013\x02", f=4).code == 13
    harness.close()


def test_marks_are_read_again_after_a_restart(tmp_path):
    harness = Harness(tmp_path)
    place = half(harness)
    assert end(harness, place, 12) == 0
    wait(harness, 3_000)
    harness.close()
    harness = Harness(tmp_path, clock=harness.clock)
    harness.peer = Producer()
    harness.heartbeat("c")
    assert end(harness, place, 8) == 0
    wait(harness)
    assert stored(harness, "T") == []
    assert harness.peer.asked == []
    harness.close()


def test_many_open_halves_are_asked_about_in_bounded_steps(harness):
    for number in range(100):
        half(harness, number)
    wait(harness, steps=1)
    assert len(harness.peer.asked) == 32
    wait(harness, 0, steps=5)
    assert [record.body for _, record in harness.peer.asked] == [b"m%d" % number for number in range(100)]


def again(harness, **kept):
    """The broker after a kill: reading positions are lost, unless they were saved."""
    harness.close()
    made = Harness(harness.directory, clock=harness.clock, **kept)
    made.peer = Producer()
    made.heartbeat("c")
    made.peer.take()
    return made


def save(harness):
    for file, value in harness.broker.unsaved(with_offsets=True):
        file.store(value)


def test_after_a_kill_only_the_newest_copy_of_a_half_is_asked_about(tmp_path):
    harness = Harness(tmp_path)
    half(harness)
    wait(harness)
    wait(harness)
    assert len(stored(harness, HALF)) == 3
    harness = again(harness)
    wait(harness)
    assert len(harness.peer.asked) == 1
    assert end(harness, asked_place(harness), checked=True) == 0
    wait(harness)
    wait(harness)
    assert (len(harness.peer.asked), len(stored(harness, "T"))) == (1, 1)
    harness.close()


def test_a_client_cannot_say_that_its_half_is_a_copy_of_another(tmp_path):
    harness = Harness(tmp_path)
    half(harness, 0)
    half(harness, 1, "TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0114\x02")
    harness = again(harness)
    wait(harness)
    assert [record.body for _, record in harness.peer.asked] == [b"m0", b"m1"]
    harness.close()


def test_a_half_that_only_says_it_is_a_copy_takes_nobodys_place(tmp_path):
    harness = Harness(tmp_path)
    half(harness, 0)
    (record,) = stored(harness, HALF)
    message = half_again(record)
    assert "TRAN_PREPARED_QUEUE_OFFSET\x010\x02" in message.properties
    message.body = b"forged"
    harness.store.append((message,))
    harness = again(harness)
    wait(harness)
    assert [record.body for _, record in harness.peer.asked] == [b"m0", b"forged"]
    harness.close()


def test_what_ended_while_it_was_moved_is_not_asked_about_after_a_kill(tmp_path):
    harness = Harness(tmp_path)
    place = half(harness)
    harness.committer.held = []
    wait(harness, steps=1)  # the copy is stored, nobody has been told
    assert len(stored(harness, HALF)) == 2
    end(harness, place, 12)
    harness.clock.advance(3_000)
    harness.broker.run_due()
    assert len(stored(harness, OP)) == 1
    harness = again(harness)
    wait(harness)
    assert harness.peer.asked == []
    harness.close()


def test_a_half_older_than_files_are_kept_is_put_aside(harness):
    half(harness, 0, g=harness.clock.wall_ms())
    harness.broker.transactions.reserved_ms = 3_600_000
    wait(harness, 3_700_000)
    assert harness.peer.asked == []
    (aside,) = stored(harness, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert aside.body == b"m0"
    assert harness.broker.half_counts.count("T") == 0
    assert harness.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": aside.message_id}).code == 0
    assert harness.broker.half_counts.count("T") == 1


def test_a_half_that_was_ended_while_it_lay_aside_is_not_asked_about_when_it_is_resumed(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(transaction_check_max=1))
    harness.peer = Producer()
    harness.heartbeat("c")
    place = half(harness)
    wait(harness)
    wait(harness)
    (aside,) = stored(harness, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert end(harness, place) == 0
    assert harness.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": aside.message_id}).code == 0
    harness.peer.asked.clear()
    wait(harness)
    wait(harness)
    assert (harness.peer.asked, len(stored(harness, "T"))) == ([], 1)
    harness.close()


def test_open_halves_are_counted_by_topic_and_again_after_a_kill(tmp_path):
    harness = Harness(tmp_path)
    places = [half(harness, number) for number in range(3)]
    half(harness, 3, topic="U")
    assert end(harness, places[0]) == 0
    assert end(harness, places[1], 12) == 0
    wait(harness)
    wait(harness)
    for _ in range(2):
        counts = harness.broker.half_counts.as_json()["transactionCount"]
        assert {topic: row["count"] for topic, row in counts.items()} == {"T": 1, "U": 1}
        harness = again(harness)
        wait(harness, steps=1)
    harness.close()


def test_an_open_half_is_moved_out_of_the_way_of_many_finished_ones(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(transaction_halves_max=100))
    place = half(harness, 1_000, g=harness.clock.wall_ms())
    for number in range(60):
        assert end(harness, half(harness, number, g=harness.clock.wall_ms()), 12) == 0
    wait(harness, 100, steps=3)
    assert harness.broker.offsets.find(GROUP, HALF, 0) == 61
    assert end(harness, place) == 0
    assert [record.body for record in stored(harness, "T")] == [b"m1000"]
    harness.close()


def test_ends_are_refused_when_too_many_are_remembered(tmp_path):
    harness = Harness(tmp_path, BrokerConfig(transaction_halves_max=100))
    half(harness, 1_000, g=harness.clock.wall_ms())
    codes = [end(harness, half(harness, number, g=harness.clock.wall_ms()), 12) for number in range(101)]
    assert codes == [0] * 100 + [2]
    wait(harness, 100, steps=3)
    assert end(harness, half(harness, 200), 12) == 0
    harness.close()


def test_finished_halves_are_passed_over_faster_than_they_come(harness):
    for number in range(500):
        assert end(harness, half(harness, number), 12) == 0
    wait(harness, steps=1)
    assert harness.broker.offsets.find(GROUP, HALF, 0) == 500


def test_a_copy_that_cannot_be_read_yet_is_asked_about(harness, monkeypatch):
    half(harness)
    monkeypatch.setattr(harness.store, "record_at", lambda offset: None)
    wait(harness)
    monkeypatch.undo()
    ((ext, record),) = harness.peer.asked
    copy = stored(harness, HALF)[1]
    assert (record.physical_offset, record.queue_offset, record.store_timestamp) == (
        copy.physical_offset,
        copy.queue_offset,
        copy.store_timestamp,
    )
    assert ext["offsetMsgId"] == copy.message_id
    assert end(harness, asked_place(harness), checked=True) == 0
