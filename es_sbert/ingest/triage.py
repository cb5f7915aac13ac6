"""Change detection: what of a document needs a new vector, what keeps the one it has, and what is as it should be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from es_sbert.index.meta import DocumentMeta, is_current
from es_sbert.index.targets import Targets
from es_sbert.ingest.documents import Document

T = TypeVar("T")


class Verdict(Enum):
    """What is to be done with a document."""

    WRITE = auto()  # it is new, or has changed
    CLEAR = auto()  # it has no text any more: it takes the place of the one in the index, without vectors
    UNCHANGED = auto()
    SUPERSEDED = auto()  # the index holds a later version
    EMPTY = auto()  # no text, and the index holds no vector of it


@dataclass(frozen=True)
class Sorting:
    """A document compared with what the index holds of it.

    Attributes:
        verdict: What is to be done.
        wanted: Targets, by number, that get a new vector.
        kept: Targets whose vector stands for the text that the document has now.
        dropped: Targets that this load does not fill and whose vector stands for another text.
    """

    verdict: Verdict
    wanted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def triage(document: Document, stored: Sequence[DocumentMeta | None], targets: Targets) -> Sorting:
    """Compare a document with the objects beside its vectors in the index.

    Args:
        stored: One a target; None where the index has none.
    """
    numbers = range(len(targets))
    current = {
        number
        for number in numbers
        if is_current(stored[number], document.texts[number], targets[number].meta.fingerprint)
    }
    filled = [number for number in numbers if targets[number].filled]
    right = all(number in current if document.texts[number] else stored[number] is None for number in filled)
    known = [meta for number in filled if (meta := stored[number]) is not None]
    if right and known and all(meta.document_hash == document.document_hash for meta in known):
        return Sorting(Verdict.UNCHANGED)
    if any(is_superseded(document, meta) for meta in stored):
        return Sorting(Verdict.SUPERSEDED)
    wanted = tuple(number for number in filled if document.texts[number] and number not in current)
    kept = tuple(number for number in numbers if number in current)
    dropped = tuple(
        number
        for number in numbers
        if not targets[number].filled and stored[number] is not None and number not in current
    )
    if any(document.texts[number] for number in filled):
        return Sorting(Verdict.WRITE, wanted, kept, dropped)
    return Sorting(Verdict.CLEAR, (), kept, dropped) if known else Sorting(Verdict.EMPTY)


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def is_superseded(document: Document, meta: DocumentMeta | None) -> bool:
    """Whether the index holds a later version than this one, which is not the source's word of now (a dead letter)."""
    return meta is not None and document.written is not None and meta.embedded_at > document.written


def lost_fields(mappings: Mapping[str, Any], made: Collection[str]) -> str | None:
    """What an index does not keep in `_source`, and would lose were a document written anew from it.

    A partial update does that too, inside the engine.

    Args:
        made: Vector fields that are made anew with every document that is written.

    Returns:
        In words, behind "the index keeps no"; None where nothing would be lost.
    """
    source = mappings.get("_source", {})
    if source.get("enabled", True) is False:
        return "_source"
    if source.get("includes"):
        return f"fields in its _source but {', '.join(source['includes'])}"
    missing = [name for name in source.get("excludes", []) if name not in made]
    return f"{', '.join(missing)} in its _source" if missing else None
