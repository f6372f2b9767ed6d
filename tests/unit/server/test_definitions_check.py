"""The check of the definitions: damage, torn ends, the backup, and queues that nothing names."""

from __future__ import annotations

import pytest

from stratamq.files.filesystem import LocalFileSystem
from stratamq.findings import Findings
from stratamq.server.definitions_check import check_definitions, queue_of
from stratamq.server.definitions_file import DEFINITIONS_FILE, JOURNAL_FILE, DefinitionsFile

ROW = {"vhost": "/", "name": "orders", "durable": True, "arguments": {}}
STORED = [("/\norders\n0", 3)]


@pytest.fixture
def folder(tmp_path):
    """Definitions with one queue, written twice, so that there is a backup."""
    file = DefinitionsFile(tmp_path)
    file.store({"queues": []})
    file.store({"queues": [ROW]})
    return tmp_path


def kinds(folder, stored=STORED):
    """Severity, kind and file of each finding."""
    findings = Findings()
    check_definitions(str(folder), stored, LocalFileSystem(), findings)
    return [(one.severity.value, one.kind, one.path.rpartition("/")[2]) for one in findings.listed]


def journal(folder) -> bytearray:
    """Two changes in the journal; its bytes."""
    file = DefinitionsFile(folder)
    file.load()
    for name in ("a", "b"):
        assert file.append([("+", "queues", {**ROW, "name": name})])
    file._close_journal()
    return bytearray((folder / JOURNAL_FILE).read_bytes())


def test_whole_definitions_that_name_every_queue(folder):
    assert kinds(folder) == []
    journal(folder)
    assert kinds(folder, [*STORED, ("/\na\n0", 1), ("/\nb\n4", 1)]) == []


def test_a_queue_that_nothing_names_would_be_deleted(folder):
    assert kinds(folder, [*STORED, ("/\nlost\n0", 5)]) == [("warning", "queue-undefined", DEFINITIONS_FILE)]


def test_a_torn_journal_and_a_damaged_one(folder):
    data = journal(folder)
    (folder / JOURNAL_FILE).write_bytes(data[:-4])
    assert kinds(folder) == [("info", "definitions-tail", JOURNAL_FILE)]
    data[70] ^= 1
    (folder / JOURNAL_FILE).write_bytes(data)
    assert ("error", "definitions", JOURNAL_FILE) in kinds(folder)


def test_the_backup_is_taken_or_there_is_none(folder):
    (folder / DEFINITIONS_FILE).write_bytes(b"{")
    assert kinds(folder, []) == [("warning", "definitions-backup", DEFINITIONS_FILE)]
    (folder / f"{DEFINITIONS_FILE}.bak").write_bytes(b"{")
    assert kinds(folder, [])[0] == ("error", "definitions", DEFINITIONS_FILE)


def test_names_of_the_store_are_taken_apart():
    assert queue_of("/\norders\n12") == ("/", "orders")
    assert queue_of("bare") == ("bare", "")
