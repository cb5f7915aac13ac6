"""The dead-letter file: every document that could not be loaded, with the reason, as JSON Lines.

`DeadLetters` writes it. `es-sbert ingest --retry` reads it as a source.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import orjson

from es_sbert.clock import Clock, parse_timestamp
from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.filesystem import append_lock, rename_lock, safe_file_name
from es_sbert.ingest.sources.document_source import (
    Origin,
    ReadContext,
    ReadSettings,
    Record,
    RejectedRecord,
    RequiredColumns,
)
from es_sbert.ingest.sources.file_sources import FileInput, FileSource
from es_sbert.io.file_formats import decompress
from es_sbert.io.text_formats import (
    LINE_WHITESPACE,
    SAMPLE_BYTES,
    Line,
    depth_problem,
    line_too_long_reason,
    parse_json_line,
    split_lines,
    without_mark,
)
from es_sbert.messages import log_event, setting

# Bytes that are searched for the last dead letter. If that letter is longer, its time is unknown.
_TAIL_BYTES = 1 << 20


def default_dead_letters_path(index: str) -> Path:
    """`<index>.dead-letters.jsonl` in the working folder."""
    return Path(f"{safe_file_name(index)}.dead-letters.jsonl")


def check_dead_letters_writable(path: Path) -> None:
    """Check before a load that the file can be written.

    Raises:
        OutputError: the folder is missing or not writable, or the path is a folder.
    """
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        remedy = f"Set {setting('dead_letters')} to a file in an existing folder that this user may write to."
        raise OutputError(f"the dead-letter file {path} could not be written", remedy).about("dead_letters", path)


def dead_letter_keys(path: Path, run: str) -> Iterator[bytes]:
    """Yield the keys of the dead letters that a load has written; none if there is no file.

    Truncated lines, and lines that are not dead letters, are skipped.
    """
    if path.is_file():
        yield from (dead_letter_key(letter) for _, letter in read_dead_letters(path) if letter.get("run") == run)


def last_dead_letter_time(path: Path) -> str | None:
    """Read the time of the last dead letter in a file; None if no dead letter can be read."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        letter = _parse_dead_letter(line)  # None if the line was truncated by a full disk, or is longer than the tail
        if letter is not None and isinstance(letter.get("time"), str):
            return str(letter["time"])
    return None


def dead_letter_key(letter: dict[str, Any]) -> bytes:
    """Compute a 16-byte key of a dead letter from its origin and content, but not from its reason."""
    about = [letter.get(name) for name in ("source", "line", "id", "document", "raw")]
    return hashlib.blake2b(orjson.dumps(about, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


class DeadLetterSink(Protocol):
    """Receives documents that could not be loaded."""

    def write(self, record: RejectedRecord) -> None:
        """See `DeadLetters.write`."""


@dataclass
class DeadLetters:
    """Appends one line per document. Thread-safe. The file is created with the first dead letter.

    Dead letters of earlier loads are kept: the file may be the only copy of a document. Each dead letter records `run`,
    which identifies its load.

    Attributes:
        path: The file.
        run: Time when the load was first started.
        written: Keys of the dead letters that were written before the load was killed; they are not written again.
        clock: Provides the timestamp of each dead letter.
        index: Index or alias that the documents were meant for.
        place: Location of the dead letters, for the log message; by default the file.
    """

    path: Path
    run: str
    written: frozenset[bytes] = frozenset()
    clock: Clock = field(default_factory=Clock)
    index: str | None = None
    place: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    # Unbuffered: `write` hands each line to the operating system, and closing cannot fail later.
    _file: FileIO | None = field(default=None, init=False)

    def write(self, record: RejectedRecord) -> None:
        """Append a dead letter, unless it was written before the load was killed.

        A partial document is marked, so that a retry never replaces the whole document by it.

        Raises:
            OutputError: the file cannot be written.
        """
        origin, reason, document = record.origin, record.reason, record.document
        letter: dict[str, Any] = {
            "time": self.clock.now(), "run": self.run, "index": self.index,
            "source": origin.source, "line": origin.line or None, "id": record.id,
            # A field's name from the command line may hold bytes that are not UTF-8.
            "reason": reason.encode(errors="backslashreplace").decode(),
        }  # fmt: skip
        if record.routing is not None:
            letter["routing"] = record.routing
        if record.partial:
            letter["partial"] = True
        if document is not None:
            letter["document"] = orjson.Fragment(document)  # the last entry: `DeadLetterFile` finds its bytes there
        elif record.size:
            letter["raw"] = record.raw[:SAMPLE_BYTES].decode(errors="backslashreplace")
            letter["bytes"] = record.size
        if self.written:
            complete_letter = letter if document is None else letter | {"document": orjson.loads(document)}
            if dead_letter_key(complete_letter) in self.written:
                return
        line = orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            try:
                if self._file is None:
                    self._file = _open_to_append(self.path)
                    # The first dead letter may be the first of many: the user can still stop and fix the cause.
                    message = f"{origin} cannot be loaded: {reason} (this one and others: {self.place or self.path})"
                    facts = {"file": self.place or str(self.path), "source": str(origin), "reason": reason}
                    log_event("first_dead_letter", message, logging.WARNING, **facts)
                while not self._append(self._file, line):
                    moved, self._file = self._file, _open_to_append(self.path)
                    moved.close()
            except OSError as error:
                raise OutputError(
                    f"the dead-letter file {self.path} cannot be written: {error.strerror}",
                    f"Free space or set {setting('dead_letters')} to a different file, then run the same command "
                    "again: documents that are in the index are not embedded twice.",
                ).about("dead_letters", self.path) from error

    def _append(self, file: FileIO, line: bytes) -> bool:
        """Write a line; return False if a retry has moved the file, with which it would delete the line."""
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
    """Open the file for appending after its last complete line."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 (stays open for the whole load)
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            # A full disk has truncated the last line; the next one must not be appended to it.
            file.write(b"\n")
    return file


# Precedes the document of a dead letter, which is its last entry. Quotes inside a string are escaped, so the first
# occurrence of these bytes is the right one.
_DOCUMENT_KEY = b',"document":'
_PARTIAL_REASON = (
    "this dead letter holds only part of the document; run `es-sbert ingest` without FILE to embed it in the index"
)


def quarantine_path(file: Path) -> Path:
    """Path to which dead letters are moved while they are retried, since new ones may be written to the file itself."""
    return file.with_name(f"{file.name}.retried")


def quarantine(file: Path) -> None:
    """Move the dead letters to `quarantine_path`, unless an interrupted retry has left some; these come first.

    A load that is still writing dead letters continues in a new file.

    Raises:
        OutputError: the file cannot be renamed.
    """
    if quarantine_path(file).exists():
        return
    try:
        with rename_lock(file):
            os.rename(file, quarantine_path(file))
    except OSError as error:
        raise OutputError(
            f"{file} cannot be renamed to {quarantine_path(file).name}: {error.strerror}",
            f"Copy it into a folder that this user may write to, and set {setting('retry')} to the copy.",
        ).about("retry", file) from error


def pending_dead_letters(file: Path) -> DeadLetterFile:
    """Find the dead letters that a retry of `file` sends: those that an interrupted retry left, or those of the file.

    Raises:
        SourceError: neither file exists.
    """
    path = _pending_path(file)
    if not path.is_file():
        raise SourceError(
            f"{file} holds no dead letters", f"Set {setting('retry')} to the dead-letter file of an earlier load."
        ).about("retry", file)
    return DeadLetterFile(FileInput(str(file), path, path.stat().st_size))


def _pending_path(file: Path) -> Path:
    moved = quarantine_path(file)
    return moved if moved.is_file() else file


def find_dead_letters(file: Path) -> DeadLetterFile:
    """Like `pending_dead_letters`, but to be read after `quarantine`."""
    return DeadLetterFile(FileInput(str(file), quarantine_path(file), pending_dead_letters(file).size))


def check_dead_letter_index(file: Path, names: Sequence[str]) -> None:
    """Check that the dead letters of a file belong to the index. Those that name no index are accepted.

    Args:
        names: The name that the load was given, and further names of its index.

    Raises:
        UsageError: a dead letter names a different index.
        SourceError: the file cannot be read.
    """
    path = _pending_path(file)
    try:
        indices = (letter.get("index") for _, letter in read_dead_letters(path))
        found = dict.fromkeys(index for index in indices if isinstance(index, str))
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise SourceError(problem, "Check the path and its permissions.").about("retry", path) from error
    other = next((index for index in found if index not in names), None)
    if other is not None:
        raise UsageError(
            f"{path} holds dead letters of the index {other}",
            f"Use {setting('index', other)}. To load them into another index, remove its name from the letters "
            f"""first: `sed -i 's/"index":"{other}",//' {path}`. If the file has letters of several, `grep """
            f"""'"index":"NAME"' {path}` selects those of one.""",
        ).about("retry", path)


@dataclass(frozen=True)
class DeadLetterFile(FileSource):
    """A dead-letter file as a source: the document of each dead letter, with its id.

    A dead letter without a document is rejected again, so that nothing is lost.
    """

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        """Check nothing: `check_dead_letter_index` has already read the file."""

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        chunks = without_mark(decompress(self.input.chunks(context)))  # not checked: a full disk may have cut a line
        return self.parse_lines(split_lines(chunks, context.settings.max_bytes), context.settings)

    def parse_lines(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[Record | RejectedRecord]:
        """Convert uncompressed lines to records."""
        last_lines = {} if self.path is None else _last_lines(self.path)
        for line in lines:
            origin = Origin(self.name, line.number)
            data = line.data.strip(LINE_WHITESPACE)
            if line.is_too_long:
                yield RejectedRecord(origin, line_too_long_reason(line), line.data, line.size)
            elif data:
                letter = parse_json_line(data)
                if isinstance(letter, str):
                    yield RejectedRecord.of_bytes(origin, letter, data)
                else:
                    yield _retry_record(letter, data, origin, settings.target_index, last_lines)


def _retry_record(
    letter: dict[str, Any], data: bytes, origin: Origin, index: str, last_lines: Mapping[bytes, int]
) -> Record | RejectedRecord:
    """Convert a dead letter to the record of its document.

    Args:
        data: The line that the dead letter was parsed from.
        index: The index that is loaded. Dead letters of documents that it already has contain only a part of them.
        last_lines: See `_last_lines`; an earlier dead letter of the same id is superseded.
    """
    document = letter.get("document")
    document_id, routing = (value if isinstance(value := letter.get(name), str) else None for name in ("id", "routing"))
    if not isinstance(document, dict):
        # The end of the sample may be inside a character.
        sample = letter["raw"] if "raw" in letter else data[:SAMPLE_BYTES].decode(errors="backslashreplace")
        raw = str(sample).encode()
        return RejectedRecord(origin, f"the dead letter holds no document: {letter.get('reason')}", raw, len(raw))
    source = _document_bytes(data, document)
    if (problem := depth_problem(document, source)) is not None:
        partial = bool(letter.get("partial"))
        return RejectedRecord(origin, problem, document=source, id=document_id, partial=partial, routing=routing)
    if letter.get("partial") or letter.get("source") == f"index {index}":
        return RejectedRecord(origin, _PARTIAL_REASON, document=source, id=document_id, partial=True, routing=routing)
    time = letter.get("time")
    superseded = document_id is not None and last_lines.get(id_digest(document_id), 0) > origin.line
    written_at = (parse_timestamp(time) or time) if isinstance(time, str) else None
    return Record(origin, document, source, document_id, written_at, superseded, routing)


def _document_bytes(data: bytes, document: dict[str, Any]) -> bytes:
    """Return the document's original bytes; if an edit of the dead letter hides them, serialize the document again."""
    original = data.partition(_DOCUMENT_KEY)[2][:-1]
    try:
        orjson.loads(original)
    except orjson.JSONDecodeError:  # the spacing or the order of the entries was changed
        return orjson.dumps(document)
    return original


def _last_lines(path: Path) -> dict[bytes, int]:
    """Map the digest of each document id to the last line, from 1, that holds the id.

    An id occurs several times if its document changed between two loads. The map takes some hundred bytes of memory per
    dead letter.
    """
    return {
        id_digest(letter["id"]): number
        for number, letter in read_dead_letters(path)
        if isinstance(letter.get("id"), str) and "document" in letter
    }


def id_digest(document_id: str) -> bytes:
    """Compute a 16-byte digest of an id. Tables of many ids stay small, and 128 bits do not collide by chance."""
    return hashlib.blake2b(document_id.encode(), digest_size=16).digest()


def read_dead_letters(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the dead letters of a file with their line numbers, from 1."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            letter = _parse_dead_letter(line)
            if letter is not None:
                yield number, letter


def _parse_dead_letter(line: bytes) -> dict[str, Any] | None:
    """Parse the dead letter of a line; None if the line is not a dead letter, or was truncated."""
    letter = parse_json_line(line)
    return letter if isinstance(letter, dict) else None
