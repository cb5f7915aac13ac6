"""Load a fuzzed source into a real engine, and hold every line of it to account by other means than our own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.index_scan import scan_index
from es_sbert.errors import SourceError
from es_sbert.ingest import load_plan
from es_sbert.ingest.ingest_settings import NO_LIMIT
from es_sbert.ingest.load_report import LoadReport
from tests.engine.ingest_support import letters, load, open_engine
from tests.fuzz.lines import LONGEST

_SPACE = " \t\r\x0b\x0c"
_EMBEDDED = {"embedding", "embedding_meta"}


@dataclass
class Tally:
    """What became of fuzzed records."""

    read: int = 0
    indexed: int = 0
    skipped: int = 0
    dead: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, summary: LoadReport) -> None:
        self.read += summary.read
        self.indexed += summary.indexed
        self.skipped += summary.skipped.empty + summary.skipped.duplicate
        self.dead += summary.dead

    def complain(self, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(what)


def load_fuzzed(url: str, encoder: Encoder, index: str, source: Path, tally: Tally, **options: Any) -> list[Any]:
    """Load a source; its dead letters. Letters, index and summary must agree.

    A source of which nothing can be loaded is refused, and then nothing may have been written.
    """
    dead = source.with_name(f"{source.name}.dead")
    given: dict[str, Any] = {"dead": dead, "max_errors": NO_LIMIT}
    given |= options
    try:
        with patch.object(load_plan, "MAX_DOCUMENT_BYTES", LONGEST):
            summary = load(url, encoder, index, source, **given)
    except SourceError as error:
        with open_engine(url) as engine:
            if dead.exists() or engine.get_index(index) is not None:
                tally.complain(f"{source.name}: refused ({error}), yet something was written")
        return []
    tally.add(summary)
    found = letters(dead)
    tally.refused += sum(letter["reason"].startswith("refused by the engine") for letter in found)
    if summary.stopped is not None or summary.left or summary.updated or summary.unchanged:
        tally.complain(f"{source.name}: the load did not come to a clean end: {summary}")
    if len(found) != summary.dead:
        tally.complain(f"{source.name}: {summary.dead} dead documents, {len(found)} letters")
    with open_engine(url) as engine:
        count = 0
        if engine.get_index(index) is not None:  # one that took no document is deleted again
            engine.refresh(index)
            count = engine.count(index)
        if count != summary.indexed:
            tally.complain(f"{source.name}: {summary.indexed} indexed, {count} in the index")
    return found


def check_jsonl(url: str, index: str, source: Path, found: list[Any], tally: Tally) -> None:
    """Every line is in the index as the standard library reads it, or skipped for a reason, or a dead letter."""
    dead = {letter["line"]: letter["reason"] for letter in found}
    wanted: dict[str, Any] = {}
    ended: dict[str, Any] = {}  # every usable document's end, by id
    lines = source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, 1):
        where = f"{source.name}:{number}: {line[:200]!r}"
        document = _usable(line)
        if number in dead:
            if isinstance(document, str) or not _may_be_dead(dead[number], document, ended):
                tally.complain(f"{where} is dead without a reason: {dead[number]}")
        elif document is None:
            tally.complain(f"{where} is neither usable nor a dead letter")
        elif isinstance(document, dict):
            identity = str(document["id"])
            if _text(document.get("text")):
                wanted.setdefault(identity, document)
            ended.setdefault(identity, document)
    stored = dict(_stored(url, index))
    for identity in wanted.keys() ^ stored.keys():
        tally.complain(f"{source.name}: {identity!r} is {'lost' if identity in wanted else 'in the index'}")
    for identity in wanted.keys() & stored.keys():
        if stored[identity] != wanted[identity]:
            tally.complain(f"{source.name}: {identity!r} is stored as {stored[identity]}, not as {wanted[identity]}")


def check_plain(url: str, index: str, source: Path, tally: Tally) -> None:
    """The index holds each line that is text, once."""
    lines = [line.removesuffix(b"\r") for line in source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    wanted = {text for line in lines if len(line) < LONGEST and (text := _decoded(line)) is not None and text.strip()}
    stored = [document["text"] for _, document in _stored(url, index)]
    if sorted(wanted) != sorted(stored):
        tally.complain(f"{source.name}: {len(wanted)} lines of text, {len(stored)} documents")


def _usable(line: bytes) -> dict[str, Any] | str | None:
    """The document of a line, an empty string where there is nothing to load, None where it cannot be loaded."""
    text = _decoded(line)
    if text is None or len(line) > LONGEST:
        return None
    if not text.strip(_SPACE):
        return ""
    try:
        value = json.loads(text.strip(_SPACE), parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates cannot be stored
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or _text(value.get("text")) is None:
        return None
    identity = value.get("id")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or not 0 < len(str(identity).encode()) <= 512:
        return None
    return value


def _text(value: Any) -> str | None:
    """The text of a field: a string, or the strings of a list; None for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    parts = [_text(inner) for inner in value] if isinstance(value, list) else [None]
    known = [part for part in parts if part is not None]
    return "\n".join(part for part in known if part) if len(known) == len(parts) else None


def _may_be_dead(reason: str, document: dict[str, Any] | None, ended: dict[str, Any]) -> bool:
    """Whether a document that our own rules find usable may yet be dead for this reason."""
    if document is None or reason.startswith("refused by the engine"):
        return True
    if "was read before" in reason:
        return str(document["id"]) in ended or "different content" in reason
    # Numbers and depths that orjson does not take, and integers as ids that it reads as floats.
    return reason.startswith("malformed JSON") or "id field id is a JSON number" in reason or "nested" in reason


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _stored(url: str, index: str) -> Iterator[tuple[str, Any]]:
    with open_engine(url) as engine:
        if engine.get_index(index) is None:
            return
        for page in scan_index(engine, index, query={"match_all": {}}, source_includes=["*"]):
            for hit in page.hits:
                yield hit["_id"], {name: value for name, value in hit["_source"].items() if name not in _EMBEDDED}
