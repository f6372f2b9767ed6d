"""What a check says of each kind of damage: file, byte, and whether it is an error, a warning or a remark."""

from __future__ import annotations

import os

import pytest

from stratamq.files.durable import replace_file
from stratamq.findings import Finding, Severity
from stratamq.formats.queue_messages import decode_tables, encode_tables
from stratamq.queuestore.check import check_queue_store
from tests.property.test_queuestore_damage import content_of, open_store
from tests.unit.queuestore.memory_disk import MemoryDisk


@pytest.fixture
def folder(tmp_path) -> str:
    """Where the store says that it lies; the files are in memory."""
    return str(tmp_path)


def fill(folder: str, *, clean: bool) -> MemoryDisk:
    """Two queues with small and large messages, some acknowledged; stopped in order, or killed right after a sync."""
    disk = MemoryDisk()
    store = open_store(folder, disk)
    queues = [store.declare_queue(name, durable=True) for name in "ab"]
    for number in range(60):
        store.publish(content_of(number), persistent=True, queues=queues)
        token = store.commit()
        assert token is not None
        store.sync(token)
        store.synced(token)
        if number < 40:
            store.tick()
    if clean:
        store.close()
        return disk
    store._lock.release()
    return disk.crash(None)


def file_in(disk: MemoryDisk, folder: str, name: str, at: int = 0) -> tuple[str, bytearray]:
    """Path and bytes of one file of a directory of the store, in the order of their names."""
    directory = os.path.join(folder, name) if name else folder
    names = sorted(disk.directories[directory])
    return os.path.join(directory, names[at]), disk.directories[directory][names[at]].data


def found(disk: MemoryDisk, folder: str) -> list[Finding]:
    """All findings but what is always there."""
    report = check_queue_store(folder, filesystem=disk)
    return [finding for finding in report.findings if finding.kind not in ("garbage", "footer-missing")]


def test_a_flipped_bit_in_a_message_is_an_error_at_its_record(folder):
    disk = fill(folder, clean=True)
    path, data = file_in(disk, folder, "msg_store_persistent", 1)
    data[40] ^= 4
    (finding,) = [one for one in found(disk, folder) if one.severity is Severity.ERROR]
    assert (finding.kind, finding.path, finding.offset) == ("message-record", path, 0)


def test_a_message_file_that_is_gone_is_named_by_every_entry_that_needs_it(folder):
    disk = fill(folder, clean=True)
    path, _ = file_in(disk, folder, "msg_store_persistent", 1)
    disk.remove(path)
    errors = [one for one in found(disk, folder) if one.severity is Severity.ERROR]
    assert {one.kind for one in errors} == {"message-missing"}
    assert all("no such message" in one.found and one.path.endswith(".idx") for one in errors)


def test_a_torn_journal_is_a_remark_and_a_damaged_one_an_error(folder):
    disk = fill(folder, clean=False)
    path, data = file_in(disk, folder, "journal", -1)
    del data[-5:]
    assert [(one.severity, one.kind, one.path) for one in found(disk, folder)] == [
        (Severity.INFO, "journal-tail", path)
    ]
    disk = fill(folder, clean=False)
    path, data = file_in(disk, folder, "journal", 0)
    data[60] ^= 1
    report = check_queue_store(folder, filesystem=disk)
    (finding,) = [one for one in report.findings if one.severity is Severity.ERROR]
    assert (finding.kind, finding.path, finding.offset, report.is_readable) == ("journal", path, 32, False)
    assert report.records > 0  # the message files are checked all the same


def test_records_behind_a_bad_one_are_told_from_a_torn_end(folder):
    disk = fill(folder, clean=False)
    path, data = file_in(disk, folder, "msg_store_persistent", -1)
    torn = len(data) - 3
    whole = bytes(data)
    del data[torn:]
    assert {(one.severity, one.kind) for one in found(disk, folder) if one.path == path} == {
        (Severity.INFO, "message-tail")
    }
    data[:] = whole
    data[30] ^= 1
    errors = [one for one in found(disk, folder) if one.severity is Severity.ERROR and one.path == path]
    assert [(one.kind, one.offset) for one in errors] == [("message-record", 0)]
    assert "good records from" in errors[0].found


def test_a_recovery_file_that_counts_wrongly_is_an_error_at_the_count(folder):
    disk = fill(folder, clean=True)
    path = os.path.join(folder, "recovery")
    tables = decode_tables(bytes(disk.directories[folder]["recovery"].data), path=path)
    tables.files[0].refs[0] = 7
    replace_file(path, encode_tables(tables), filesystem=disk)
    (finding,) = [one for one in found(disk, folder) if one.severity is Severity.ERROR]
    assert (finding.kind, finding.path, finding.found) == ("reference-count", path, "7 references")
    data = bytes(disk.directories[folder]["recovery"].data)
    assert int.from_bytes(data[finding.offset : finding.offset + 4], "little") == 7


def test_an_index_body_and_an_index_table_that_are_damaged(folder):
    disk = fill(folder, clean=True)
    path, data = file_in(disk, folder, os.path.join("queues", "0000000001"), 1)
    data[-1] ^= 1
    errors = [one for one in found(disk, folder) if one.severity is Severity.ERROR]
    assert [(one.kind, one.path) for one in errors] == [("index-body", path)]
    data[33] ^= 1
    errors = [one for one in found(disk, folder) if one.severity is Severity.ERROR]
    assert ("index-chunk", path, 0) in [(one.kind, one.path, one.offset) for one in errors]


def test_wrong_names_are_reported(folder):
    disk = fill(folder, clean=True)
    for directory, name in (("journal", "17.jnl"), ("msg_store_persistent", "x.rdq"), ("", "notes.txt")):
        disk.create(os.path.join(folder, directory, name) if directory else os.path.join(folder, name), 0)
    findings = [one for one in found(disk, folder) if one.kind in ("file-name", "stray")]
    names = {(one.severity, one.kind, os.path.basename(one.path)) for one in findings}
    assert names == {
        (Severity.ERROR, "file-name", "17.jnl"),
        (Severity.WARNING, "stray", "x.rdq"),
        (Severity.WARNING, "stray", "notes.txt"),
    }
