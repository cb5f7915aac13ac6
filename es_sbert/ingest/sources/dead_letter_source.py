"""Read a dead-letter file as a source, so that its documents are retried."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.filesystem import rename_lock
from es_sbert.ingest.records import Origin, Record, RejectedRecord
from es_sbert.io.json_lines import LINE_WHITESPACE, parse_json_line
from es_sbert.io.lines import SAMPLE_BYTES, Line, line_too_long_reason

# Before the document of a letter, which is its last entry. Quotes inside a string are escaped, so the first place
# where these bytes stand is the right one.
_DOCUMENT_KEY = b',"document":'
_PARTIAL_REASON = (
    "it holds a part of a document of the index: run `es-sbert ingest` without FILE, which embeds it where it stands"
)


def quarantine_path(file: Path) -> Path:
    """Where the letters of a file stand while they are tried: new ones may go to the file itself."""
    return file.with_name(f"{file.name}.retried")


def quarantine(file: Path) -> None:
    """Take the letters aside, unless a retry that was stopped has left some; these come first.

    A load that is still writing letters goes on in a new file.

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
            "Copy it into a folder that this user may write to, and give --retry the copy.",
        ) from error


def check_dead_letter_index(file: Path, names: Collection[str]) -> None:
    """Make sure that the letters of a file are of the index that is loaded. Letters that name no index pass.

    Args:
        names: Of the index: its own and its aliases.

    Raises:
        UsageError: a letter names another index.
        SourceError: the file cannot be read.
    """
    path = next((path for path in (quarantine_path(file), file) if path.is_file()), file)
    try:
        with open(path, "rb") as lines:
            other = next(
                (name for line in lines if (name := _index_name(line)) is not None and name not in names), None
            )
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    if other is not None:
        raise UsageError(
            f"{path} holds dead letters of the index {other}",
            f"Give --index {other}. To load them into another index, remove the entry `index` from the letters first: "
            f"""`sed -i 's/"index":"{other}",//' {path}`.""",
        )


def _index_name(line: bytes) -> str | None:
    """The index that a letter names; None for a line that is no letter."""
    try:
        letter = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    index = letter.get("index") if isinstance(letter, dict) else None
    return index if isinstance(index, str) else None


def last_dead_letter_lines(path: Path) -> dict[bytes, int]:
    """The last line, from 1, on which a document of each id stands: a document that changed between two loads.

    Takes some hundred bytes of memory a letter.
    """
    last: dict[bytes, int] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                letter = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(letter, dict) and isinstance(letter.get("id"), str) and "document" in letter:
                last[_id_digest(letter["id"])] = number
    return last


def _id_digest(document_id: str) -> bytes:
    return hashlib.blake2b(document_id.encode(), digest_size=16).digest()


def dead_letter_records(
    lines: Iterable[Line], source: str, index: str, last: Mapping[bytes, int]
) -> Iterator[Record | RejectedRecord]:
    """The document of each letter, with the id it had; what holds none is rejected again, nothing of it lost.

    Args:
        lines: Of the dead-letter file.
        source: Its name, for messages.
        index: The index that is loaded: letters of its own documents, embedded where they stand, hold only a part.
        last: See `last_dead_letter_lines`; an earlier letter of the same id is superseded.
    """
    for line in lines:
        origin = Origin(source, line.number)
        data = line.data.strip(LINE_WHITESPACE)
        if line.too_long:
            yield RejectedRecord(origin, line_too_long_reason(line), line.data, line.size)
            continue
        if not data:
            continue
        letter = parse_json_line(data)
        if isinstance(letter, str):
            yield RejectedRecord(origin, letter, data[:SAMPLE_BYTES], len(data))
        else:
            yield _retry_record(letter, data, origin, index, last)


def _document_bytes(letter: bytes, document: dict[str, Any]) -> bytes:
    """The document's own bytes; written anew where somebody has edited the letter so that they cannot be cut out."""
    own = letter.partition(_DOCUMENT_KEY)[2][:-1]
    try:
        if orjson.loads(own) == document:
            return own
    except orjson.JSONDecodeError:
        pass  # other spacing, or another order of the entries
    return orjson.dumps(document)


def _retry_record(
    letter: dict[str, Any], data: bytes, origin: Origin, index: str, last: Mapping[bytes, int]
) -> Record | RejectedRecord:
    document, identity = letter.get("document"), letter.get("id")
    known = identity if isinstance(identity, str) else None
    if not isinstance(document, dict):
        raw = str(letter.get("raw", data[:SAMPLE_BYTES].decode())).encode()
        return RejectedRecord(origin, f"the letter holds no document: {letter.get('reason')}", raw, len(raw))
    own = _document_bytes(data, document)
    if letter.get("partial") or letter.get("source") == f"index {index}":
        return RejectedRecord(origin, _PARTIAL_REASON, document=own, id=known, partial=True)
    written = letter.get("time")
    return Record(
        origin,
        document,
        own,
        known,
        written if isinstance(written, str) else None,
        superseded=known is not None and last.get(_id_digest(known), 0) > origin.line,
    )
