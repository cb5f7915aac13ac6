"""The ids of one load, kept on disk so that memory does not grow with the corpus."""

from __future__ import annotations

import hashlib
import sqlite3

from es_sbert.errors import OutputError
from es_sbert.ingest.records import Origin

_CACHE_KIB = 32 * 1024


class SeenIds:
    """Which ids have been met, where first, and with what content. For one thread at a time.

    The database is SQLite's nameless one: a temporary file that is gone when the process is, however it ends.
    Nothing in it needs to survive, so it is written without journal or syncing.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for pragma in ("temp_store = FILE", "journal_mode = OFF", "synchronous = OFF",
                       "locking_mode = EXCLUSIVE", f"cache_size = -{_CACHE_KIB}"):  # fmt: skip
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE seen (id BLOB PRIMARY KEY, content TEXT, source INTEGER, line INTEGER) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")
        self._sources: list[str] = []

    def add(self, document_id: str, content_hash: str, origin: Origin) -> tuple[Origin, bool] | None:
        """Remember an id.

        Returns:
            None for a new id; else where it stood first, and whether the content was the same there.

        Raises:
            OutputError: the temporary folder is full.
        """
        # A digest keeps the index small; 128 bits do not collide by chance.
        key = hashlib.blake2b(document_id.encode(), digest_size=16).digest()
        try:
            if not self._sources or self._sources[-1] != origin.source:
                self._sources.append(origin.source)
            added = self._db.execute(
                "INSERT INTO seen VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (key, content_hash, len(self._sources) - 1, origin.line),
            ).rowcount
            if added:
                return None
            content, source, line = self._db.execute(
                "SELECT content, source, line FROM seen WHERE id = ?", (key,)
            ).fetchone()
        except sqlite3.OperationalError as error:
            raise OutputError(
                f"the list of ids met so far cannot be written: {error}",
                "Free space in the temporary folder, or name another one in SQLITE_TMPDIR.",
            ) from error
        return Origin(self._sources[source], line), content == content_hash

    def close(self) -> None:
        """Drop the database."""
        self._db.close()
