"""The dead-letter file: every document that could not be loaded, with the reason, as JSON Lines."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import orjson

from es_sbert.clock import Clock
from es_sbert.errors import OutputError
from es_sbert.filesystem import append_lock
from es_sbert.ingest.records import Origin
from es_sbert.io.lines import SAMPLE_BYTES
from es_sbert.messages import log_event

# A document may be as long as --max-document-bytes; of longer last letters the time is not known.
_TAIL_BYTES = 1 << 20


def default_dead_letters_path(index: str) -> Path:
    """`<index>.dead-letters.jsonl` in the working folder."""
    return Path(f"{safe_file_name(index)}.dead-letters.jsonl")


def safe_file_name(index: str) -> str:
    """An index's name as part of a file's name, another one for each index.

    What a file name may not hold, and a dot in front, is percent-encoded.
    """
    return re.sub(r"[^\w.-]|^\.", _percent_encoded, index) or "%"


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def check_dead_letters_writable(path: Path) -> None:
    """Find out before a load whether the file could be written.

    Raises:
        OutputError: the folder is missing or closed to this user, or the path is a folder.
    """
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise OutputError(
            f"the dead-letter file {path} could not be written",
            "Give --dead-letters a file in an existing folder that this user may write to.",
        )


def dead_letter_keys(path: Path, run: str) -> Iterator[bytes]:
    """Keys of the letters that a load has written; none where there is no file.

    A line that is no letter of ours, or was cut off, is passed over.
    """
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                letter = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(letter, dict) and letter.get("run") == run:
                yield dead_letter_key(letter)


def last_dead_letter_time(path: Path) -> str | None:
    """When the last letter of a file was written; None where there is none, or none that can be read."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            letter = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # cut off by a full disk, or longer than the tail
        if isinstance(letter, dict) and isinstance(letter.get("time"), str):
            return str(letter["time"])
    return None


def dead_letter_key(letter: dict[str, Any]) -> bytes:
    """16 bytes that stand for what a letter is about: the place and the content, not the reason."""
    about = [letter.get(name) for name in ("source", "line", "id", "document", "raw")]
    return hashlib.blake2b(orjson.dumps(about, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


class DeadLetterSink(Protocol):
    """Takes documents that could not be loaded."""

    def write(
        self,
        origin: Origin,
        reason: str,
        *,
        document: bytes | None = None,
        document_id: str | None = None,
        raw: bytes = b"",
        size: int = 0,
        partial: bool = False,
    ) -> None:
        """See `DeadLetters.write`."""


class DeadLetters:
    """Appends one line a document; thread-safe. The file is created with the first letter.

    Letters of earlier loads stay in front: a file of them may be the only copy of a document. Each line carries
    the load's start in `run`, which tells one load's letters from another's.

    Args:
        path: The file.
        run: When the load was first started.
        written: Whether a letter with this key was written before the load was killed; it is not written twice.
        clock: Gives the letters their times.
        index: Index or alias that the documents were meant for.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        written: Callable[[bytes], bool] | None = None,
        clock: Clock | None = None,
        index: str | None = None,
    ) -> None:
        self.path = path
        self._run = run
        self._written = written
        self._clock = clock or Clock()
        self._index = index
        self._lock = threading.Lock()
        # Unbuffered: a letter is with the operating system when `write` returns, and closing cannot fail late.
        self._file: FileIO | None = None

    def write(
        self,
        origin: Origin,
        reason: str,
        *,
        document: bytes | None = None,
        document_id: str | None = None,
        raw: bytes = b"",
        size: int = 0,
        partial: bool = False,
    ) -> None:
        """Append a letter and hand it to the operating system.

        Args:
            document: The document as JSON, where there is one.
            raw: The first bytes of input that is no JSON object, of `size` bytes in all.
            partial: Whether `document` is only a part of the document, which must not take the place of the whole.

        Raises:
            OutputError: the file cannot be written.
        """
        letter: dict[str, Any] = {
            "time": self._clock.now(), "run": self._run, "index": self._index, "source": origin.source,
            "line": origin.line or None, "id": document_id,
            # A field's name from the command line may hold bytes that are not UTF-8.
            "reason": reason.encode(errors="backslashreplace").decode(),
        }  # fmt: skip
        if partial:
            letter["partial"] = True
        if document is not None:
            letter["document"] = orjson.Fragment(document)  # the last entry: see `sources/letters.py`
        elif size:
            letter["raw"] = raw[:SAMPLE_BYTES].decode(errors="backslashreplace")
            letter["bytes"] = size
        if self._written is not None:
            known = letter if document is None else letter | {"document": orjson.loads(document)}
            if self._written(dead_letter_key(known)):
                return
        line = orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            try:
                if self._file is None:
                    self._file = _open_to_append(self.path)
                    # The first of many, it may be: whoever looks now may still stop the load and mend the cause.
                    message = f"{origin} cannot be loaded: {reason} (this one and others: {self.path})"
                    log_event(
                        "first_dead_letter",
                        message,
                        logging.WARNING,
                        file=str(self.path),
                        source=str(origin),
                        reason=reason,
                    )
                while not self._append(self._file, line):
                    moved, self._file = self._file, _open_to_append(self.path)
                    moved.close()
            except OSError as error:
                raise OutputError(
                    f"the dead-letter file {self.path} cannot be written: {error.strerror}",
                    "Free space or name another file with --dead-letters, then run the same command again: "
                    "documents that are in the index are not embedded twice.",
                ) from error

    def _append(self, file: FileIO, line: bytes) -> bool:
        """Write a letter; False where a retry has taken the file aside, which would throw it away with the others."""
        with append_lock(file, self.path) as still_there:
            rest = memoryview(line if still_there else b"")
            while rest:
                rest = rest[file.write(rest) :]
        return still_there

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
