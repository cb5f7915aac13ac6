"""The dead-letter file: every document that could not be loaded, with the reason, as JSON Lines."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

from es_sbert.errors import OutputError
from es_sbert.ingest.records import Origin
from es_sbert.streams.lines import SAMPLE_BYTES


def default_path(index: str) -> Path:
    """`<index>.dead-letters.jsonl` in the working folder; letters that a file name may not hold are replaced."""
    safe = re.sub(r"[^\w.-]", "_", index).lstrip(".") or "index"
    return Path(f"{safe}.dead-letters.jsonl")


class DeadLetters:
    """Appends one line a document; thread-safe. The file is created with the first letter.

    Letters of earlier loads stay in front: a file of them may be the only copy of a document. Each line carries
    the load's start in `run`, which tells one load's letters from another's.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self._run = run
        self._lock = threading.Lock()
        # Unbuffered: a letter is with the operating system when `write` returns, and closing cannot fail late.
        self._file: FileIO | None = None

    def check(self) -> None:
        """Find out before a load whether the file could be written.

        Raises:
            OutputError: the folder is missing or closed to this user, or the path is a folder.
        """
        target = self.path if self.path.exists() else self.path.parent
        if self.path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
            raise OutputError(
                f"the dead-letter file {self.path} could not be written",
                "Give --dead-letters a file in an existing folder that this user may write to.",
            )

    def write(
        self, origin: Origin, reason: str, *, document: bytes | None = None, document_id: str | None = None,
        raw: bytes = b"", size: int = 0,
    ) -> None:  # fmt: skip
        """Append a letter and hand it to the operating system.

        Args:
            document: The document as JSON, where there is one.
            raw: The first bytes of input that is no JSON object, of `size` bytes in all.

        Raises:
            OutputError: the file cannot be written.
        """
        letter: dict[str, Any] = {
            "time": now(), "run": self._run, "source": origin.source, "line": origin.line or None,
            "id": document_id,
            # A field's name from the command line may hold bytes that are not UTF-8.
            "reason": reason.encode(errors="backslashreplace").decode(),
        }  # fmt: skip
        if document is not None:
            letter["document"] = orjson.Fragment(document)
        elif size:
            letter["raw"] = raw[:SAMPLE_BYTES].decode(errors="backslashreplace")
            letter["bytes"] = size
        line = orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            try:
                if self._file is None:
                    self._file = _open_to_append(self.path)
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                raise OutputError(
                    f"the dead-letter file {self.path} cannot be written: {error.strerror}",
                    "Free space or name another file with --dead-letters, then run the same command again: "
                    "documents that are in the index are not embedded twice.",
                ) from error

    def close(self) -> None:
        """Close the file, if one was made."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _open_to_append(path: Path) -> FileIO:
    """The file, positioned behind its last whole line."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 (stays open for the whole load)
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            # A disk that ran full cut the last letter off; the next one must not be glued to it.
            file.write(b"\n")
    return file


def now() -> str:
    """UTC in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
