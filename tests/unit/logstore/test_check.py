"""Checking a store: nothing wrong in a good one, and every byte that matters is missed when it changes."""

from __future__ import annotations

import os
import shutil

import pytest

from stratamq.errors import NotAStore
from stratamq.findings import LISTED_OF_A_KIND_MAX, Severity
from stratamq.formats.consume_queue import UNIT_BYTES, encode_unit
from stratamq.formats.message import encode_host
from stratamq.logstore import mappings
from stratamq.logstore.check import check_store
from tests.unit.logstore.tiny_store import T0, TinyStore, flip, make_sparse

V6 = encode_host("2001:db8::1", 10911)


def small(root, **settings):
    """A store with all kinds of records in two files."""
    store = TinyStore(root, file_bytes=1024, index_entries=32, **settings)
    store.put(body=b"one", properties="TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    store.put(queue_id=1, body=b"", properties="KEYS\x01k1\x02")
    store.put("payments", body=b"two" * 9, properties="TAGS\x01paid\x02", store_host=V6)
    store.put(sys_flag=4, properties="TRAN_MSG\x01true\x02UNIQ_KEY\x01U2\x02")
    store.put(sys_flag=8, body=b"committed", properties="UNIQ_KEY\x01U2\x02")
    store.put(sys_flag=12, properties="UNIQ_KEY\x01U2\x02")
    delayed = T0 + len(store.records) + 10_000
    store.put("SCHEDULE_TOPIC_XXXX", 2, properties="DELAY\x013\x02REAL_TOPIC\x01orders\x02TAGS\x01x\x02", code=delayed)
    for number in range(4):
        store.put(body=bytes([65 + number]) * 40, properties=f"KEYS\x01key-{number}\x02TAGS\x01TagB\x02")
    return store


def kinds(report, severity=Severity.ERROR):
    return {kind: count for (one, kind), count in report.counts.items() if one is severity}


def test_a_good_store_has_no_findings(tmp_path):
    store = small(tmp_path / "s").write()
    report = check_store(tmp_path / "s")
    assert (report.findings, report.counts) == ([], {})
    assert not report.is_damaged
    queued = sum(record.is_queued for record in store.records)
    assert (report.records, report.units, report.queues) == (len(store.records), queued, 4)
    assert (report.index_files, report.index_entries) == (1, len(store.index))
    assert (report.files, report.end.physical_offset) == (2, store.end)


def test_sparse_and_preallocated_files_change_nothing(tmp_path):
    small(tmp_path / "s").write(spare_files=2)
    for path in (tmp_path / "s").rglob("0000*"):
        make_sparse(path)
    assert check_store(tmp_path / "s").counts == {}


def test_it_tells_how_far_it_is(tmp_path):
    store = small(tmp_path / "s").write()
    told = []
    check_store(tmp_path / "s", lambda what, done, total: told.append((what, done, total)))
    index_bytes = 40 + 4 * store.index_slots + 20 * (len(store.index) + 1)
    assert told[-1] == ("checking records", store.end + index_bytes, store.end + index_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


# What the format itself cannot tell: fields that neither a checksum nor another file repeats. Bits of them that make
# an impossible value are still found.
UNGUARDED = {
    "flag": (16, 20),
    "born_timestamp": (40, 48),
    "born_host": (48, 56),
    "store_timestamp": (56, 64),
    "store_host": (64, 72),
    "reconsume_times": (72, 76),
    "prepared_transaction_offset": (76, 84),
}
SYS_FLAG = (36, 40)


def unguarded_bytes(store):
    """Positions in the log of bytes that no redundancy guards, by name."""
    found = {}
    for record in store.records:
        wide = len(record.store_host) - 8
        for name, (start, stop) in UNGUARDED.items():
            shift_start = wide if start > 64 else 0
            shift_stop = wide if stop > 64 else 0
            for at in range(start + shift_start, stop + shift_stop):
                found[record.physical_offset + at] = name
        for at in range(*SYS_FLAG):
            found[record.physical_offset + at] = "sys_flag"
        if not record.is_queued:  # they are in no queue, which would know their topic and number
            for at in range(12, 28):
                found[record.physical_offset + at] = "queue id and offset of a record in no queue"
        tail = record.physical_offset + record.size - len(record.properties)
        for at in range(tail, record.physical_offset + record.size):
            found[at] = "properties"
        if not record.is_queued and record.transaction_state == 12:  # rolled back: not in the index either
            for at in range(tail - 2 - len(record.topic), tail - 2):
                found[at] = "topic of a rolled-back record"
    return found


def test_every_byte_of_the_log_that_anything_guards_is_missed_when_it_changes(tmp_path):
    store = small(tmp_path / "s").write()
    unguarded = unguarded_bytes(store)
    silent = []
    for number, path in enumerate(sorted((tmp_path / "s/commitlog").iterdir())):
        used = min(1024, store.end - 1024 * number)
        for at in range(used):
            flip(path, at)
            mappings.drop_all_mappings()
            if not check_store(tmp_path / "s").counts:
                silent.append(1024 * number + at)
            flip(path, at)
    blank = [at for at in silent if store.log[at] == 0 and in_blank(store, at)]
    assert [at for at in silent if at not in unguarded and at not in blank] == []
    # what is silent among the properties are names and values that no tag, key or id depends on
    assert {unguarded[at] for at in silent if at not in blank} >= {"flag", "born_timestamp", "sys_flag"}


def in_blank(store, at):
    """Whether a byte lies behind the eight bytes of a blank record, where anything may stand."""
    ends = [record.physical_offset + record.size for record in store.records]
    return any(end + 8 <= at < 1024 for end in ends if end < 1024 and at < 1024 and not starts_at(store, end))


def starts_at(store, offset):
    return any(record.physical_offset == offset for record in store.records)


def test_every_byte_of_the_queues_is_missed_when_it_changes(tmp_path):
    store = small(tmp_path / "s").write()
    for (topic, queue_id), units in store.queues.items():
        path = tmp_path / "s/consumequeue" / topic / str(queue_id) / ("0" * 20)
        for at in range(len(units) * UNIT_BYTES):
            for bits in (1, 0x80):
                flip(path, at, bits)
                assert check_store(tmp_path / "s").is_damaged, f"{path} at {at}, bits {bits}"
                flip(path, at, bits)


def test_every_byte_of_the_index_is_missed_when_it_changes(tmp_path):
    store = small(tmp_path / "s").write()
    path = tmp_path / "s/index/20231114221320000"
    start = 40 + 4 * store.index_slots
    silent = []
    for at in range(start + 20 * (len(store.index) + 1)):
        flip(path, at)
        mappings.drop_all_mappings()
        if not check_store(tmp_path / "s").is_damaged:
            silent.append(at)
        flip(path, at)
    # entry 0 is never used; the seconds of entry 1 count from what stood in the header before it
    assert silent == [*range(start, start + 20), *range(start + 20 + 12, start + 20 + 16)]


def test_a_damaged_record_in_the_middle_hides_no_later_one(tmp_path):
    store = small(tmp_path / "s").write()
    flip(tmp_path / "s/commitlog" / ("0" * 20), store.records[2].physical_offset + 4)
    report = check_store(tmp_path / "s")
    assert report.records == len(store.records) - 1
    assert kinds(report) == {"frame": 1}
    assert kinds(report, Severity.INFO) == {"leftover-units": 1}
    frame = next(finding for finding in report.findings if finding.kind == "frame")
    assert frame.offset == store.records[2].physical_offset + 4
    assert frame.expected == "DAA320A7 or DAA320AB"
    assert f"to {store.records[3].physical_offset} hold no readable record" in frame.advice


def test_a_damaged_body_is_named(tmp_path):
    store = small(tmp_path / "s").write()
    flip(tmp_path / "s/commitlog" / ("0" * 20), 88)
    report = check_store(tmp_path / "s")
    assert kinds(report) == {"checksum": 1}
    (finding,) = report.findings
    assert (finding.path, finding.offset) == (str(tmp_path / "s/commitlog" / ("0" * 20)), 8)
    assert finding.found == f"{store.records[0].crc:08X}"


def test_missing_units_and_queues(tmp_path):
    store = small(tmp_path / "s").write()
    shutil.rmtree(tmp_path / "s/consumequeue/payments")
    path = tmp_path / "s/consumequeue/orders/0" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(2 * UNIT_BYTES)
        file.write(bytes(path.stat().st_size - 2 * UNIT_BYTES))
    report = check_store(tmp_path / "s")
    gone = len(store.queues["orders", 0]) - 2
    assert kinds(report) == {"unit-missing": gone}
    assert kinds(report, Severity.WARNING) == {"queue-missing": 1}
    (tmp_path / "s/config").mkdir()
    (tmp_path / "s/config/topics.json").write_text('{"topicConfigTable":{"payments":{}}}')
    assert kinds(check_store(tmp_path / "s")) == {"unit-missing": gone, "queue-missing": 1}


def test_units_left_over_from_a_cut_are_no_damage(tmp_path):
    store = small(tmp_path / "s").write()
    path = tmp_path / "s/consumequeue/orders/0" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(len(store.queues["orders", 0]) * UNIT_BYTES)
        file.write(encode_unit(store.records[0].physical_offset, store.records[0].size, 0))
        file.write(encode_unit(store.end + 200, 120, 0))
    report = check_store(tmp_path / "s")
    assert kinds(report) == {}
    assert kinds(report, Severity.INFO) == {"leftover-units": 1}


def test_units_out_of_order(tmp_path):
    small(tmp_path / "s").write()
    path = tmp_path / "s/consumequeue/orders/0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[20:40], data[40:60] = data[40:60], data[20:40]
    path.write_bytes(data)
    assert kinds(check_store(tmp_path / "s")) == {"unit": 2, "unit-missing": 2}


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_what_is_not_dispatched_yet_is_pending_only_after_a_kill(tmp_path, state):
    store = small(tmp_path / "s").write(checkpoint=False, abort="1" if state == "killed" else None)
    shutil.rmtree(tmp_path / "s/consumequeue/orders/1")
    (tmp_path / "s/consumequeue/orders/1").mkdir()
    index = tmp_path / "s/index/20231114221320000"
    with index.open("r+b") as file:  # the newest entry was not written yet
        number = len(store.index)
        at = 40 + 4 * store.index_slots + 20 * number
        file.seek(at)
        entry = file.read(20)
        file.seek(40 + 4 * (int.from_bytes(entry[:4], "big") % store.index_slots))
        file.write(entry[16:])
        if entry[16:] == bytes(4):
            used = len({key_hash % store.index_slots for key_hash, _, _ in store.index})
            file.seek(32)
            file.write((used - 1).to_bytes(4, "big"))
        file.seek(16 + 8)
        file.write(store.index[-2][1].to_bytes(8, "big"))
        file.seek(8)
        file.write(store.index[-2][2].to_bytes(8, "big"))
        file.seek(36)
        file.write(number.to_bytes(4, "big"))
    report = check_store(tmp_path / "s")
    severity = Severity.INFO if state == "killed" else Severity.ERROR
    suffix = "pending" if state == "killed" else "missing"
    assert kinds(report, severity) == {f"unit-{suffix}": 1, f"index-{suffix}": 1}


def test_a_lost_end_is_seen_by_the_checkpoint(tmp_path):
    store = small(tmp_path / "s").write()
    last = store.records[-1].physical_offset
    path = sorted((tmp_path / "s/commitlog").iterdir())[-1]
    with path.open("r+b") as file:
        file.seek(last % 1024)
        file.write(bytes(1024 - last % 1024))
    found = kinds(check_store(tmp_path / "s"))
    assert found["checkpoint"] == 3
    assert found["unit-behind-log"] == 1


def test_wrong_files_are_findings_not_exceptions(tmp_path):
    small(tmp_path / "s").write()
    for stray in ("commitlog/.DS_Store", "consumequeue/notes.txt", "consumequeue/orders/x", "index/readme"):
        (tmp_path / "s" / stray).write_text("x")
    os.truncate(tmp_path / "s/consumequeue/payments/0" / ("0" * 20), 100)
    report = check_store(tmp_path / "s")
    found = kinds(report)
    assert (found["stray"], found["file-length"]) == (4, 1)
    strays = {finding.path for finding in report.findings if finding.kind == "stray"}
    assert str(tmp_path / "s/commitlog/.DS_Store") in strays


def test_config_that_is_no_json(tmp_path):
    small(tmp_path / "s").write()
    config = tmp_path / "s/config"
    config.mkdir()
    (config / "topics.json").write_text("{")
    (config / "topics.json.bak").write_text("{}")
    (config / "consumerOffset.json").write_text('{"offsetTable":{"orders@g":{0:99,1:0}}}')
    report = check_store(tmp_path / "s")
    assert kinds(report) == {"config": 1}
    assert "falls back to topics.json.bak" in report.findings[0].advice
    assert kinds(report, Severity.WARNING) == {"group-offset": 1}


def test_many_findings_of_a_kind_are_counted_but_not_all_listed(tmp_path):
    store = TinyStore(tmp_path / "s", file_bytes=1 << 16, queue_file_units=400)
    for _ in range(300):
        store.put(body=b"x" * 20)
    store.write()
    shutil.rmtree(tmp_path / "s/consumequeue/orders/0")
    (tmp_path / "s/consumequeue/orders/0").mkdir()
    report = check_store(tmp_path / "s")
    assert kinds(report) == {"unit-missing": 300}
    assert len(report.findings) == LISTED_OF_A_KIND_MAX + 1  # and that there is no index


def test_what_is_no_store(tmp_path):
    with pytest.raises(NotAStore):
        check_store(tmp_path)
