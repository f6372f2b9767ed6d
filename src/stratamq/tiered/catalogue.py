"""The newest manifest of every queue in one SQLite file. A cache: what it lacks or has wrong is found in the backend.

Safe to delete while no broker runs; the next start reads everything from the backend.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable
from typing import Final

from stratamq.errors import CorruptionError
from stratamq.formats.cold_manifest import Manifest, decode_manifest, encode_manifest

FILE_NAME: Final = "catalogue.db"
_SCHEMA: Final = """
create table if not exists about (name text primary key, value text not null) strict;
create table if not exists heads (
    topic text not null, queue_id integer not null, version integer not null, manifest blob not null,
    primary key (topic, queue_id)) strict;
"""
_logger = logging.getLogger(__name__)


class Catalogue:
    """The file, opened. May be used from several threads; calls block for the disk. Never raises for what is in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            _logger.warning("%s is not usable (%s): it is made anew from the backend", path, error)
            remove_catalogue(path)
            self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, timeout=5)
        try:
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = normal")
            db.executescript(_SCHEMA)
            db.execute("select count(*) from heads").fetchone()
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def about(self, name: str) -> str | None:
        """A remark about the whole: ``id`` is whose tier it is, ``complete`` that all queues are in here."""
        with self._lock:
            row = self._db.execute("select value from about where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_about(self, name: str, value: str) -> None:
        """Write a remark."""
        with self._lock:
            self._db.execute("insert or replace into about values (?, ?)", (name, value))

    def about_with(self, prefix: str) -> list[str]:
        """Names of the remarks that begin so."""
        with self._lock:
            rows = self._db.execute("select name from about where substr(name, 1, ?) = ?", (len(prefix), prefix))
            return [str(row[0]) for row in rows.fetchall()]

    def forget(self, name: str) -> None:
        """Remove a remark."""
        with self._lock, contextlib.suppress(sqlite3.ProgrammingError):
            self._db.execute("delete from about where name = ?", (name,))

    def load(self) -> list[Manifest]:
        """All manifests. Those that are damaged are left out, and the catalogue is no longer complete then."""
        with self._lock:
            rows = self._db.execute("select topic, queue_id, manifest from heads order by topic, queue_id").fetchall()
        found = []
        for topic, queue_id, data in rows:
            try:
                manifest = decode_manifest(data, path=f"{self.path} ({topic}/{queue_id})")
            except CorruptionError as error:
                _logger.warning("%s", error)
                with self._lock:
                    self._db.execute("delete from about where name = 'complete'")
                continue
            found.append(manifest)
        return found

    def put(self, manifest: Manifest) -> None:
        """Note a queue's newest manifest."""
        with self._lock, contextlib.suppress(sqlite3.ProgrammingError):
            self._db.execute("insert or replace into heads values (?, ?, ?, ?)", _row(manifest))

    def replace(self, manifests: Iterable[Manifest]) -> None:
        """Note all queues there are, and that these are all."""
        with self._lock:
            self._db.execute("begin")
            self._db.execute("delete from heads")
            self._db.executemany("insert into heads values (?, ?, ?, ?)", [_row(manifest) for manifest in manifests])
            self._db.execute("insert or replace into about values ('complete', 'yes')")
            self._db.execute("commit")

    def remove(self, topic: str, queue_id: int) -> None:
        """Forget a queue."""
        with self._lock, contextlib.suppress(sqlite3.ProgrammingError):
            self._db.execute("delete from heads where topic = ? and queue_id = ?", (topic, queue_id))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _row(manifest: Manifest) -> tuple[str, int, int, bytes]:
    return manifest.topic, manifest.queue_id, manifest.version, encode_manifest(manifest)


def remove_catalogue(path: str) -> None:
    """Delete a catalogue that nobody has open."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)
