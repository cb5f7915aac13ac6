"""Change detection: what of a document needs a new vector, what keeps the one it has, and what is as it should be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from es_sbert.index.meta import is_current
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


class StoredVector(NamedTuple):
    """What the index holds of a document for one vector field.

    Attributes:
        exists: Whether there is a vector. Its metadata does not prove it: on Elasticsearch 9.2 and later `_source`
            hides vectors, so an application that writes back what it has read drops them and keeps the metadata.
        meta: The metadata of the vector as the index holds it, or its `META_MEMBERS`; None where there is none.
        text_changed: Whether the text that the document has in the index is known to differ from the source's.
    """

    exists: bool = False
    meta: Mapping[str, Any] | None = None
    text_changed: bool = False

    def is_current(self, text: str, fingerprint: str) -> bool:
        """Whether it is the vector that a model gives this text."""
        return self.exists and is_current(self.meta, text, fingerprint)

    @property
    def is_left(self) -> bool:
        """Whether anything is left to remove."""
        return self.exists or self.meta is not None


# What is needed of a vector's metadata.
META_MEMBERS = ("fingerprint", "text_hash", "document_hash", "embedded_at")


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


def triage(document: Document, stored: Sequence[StoredVector], targets: Targets) -> Sorting:
    """Compare a document of the source with what the index holds of it.

    The source wins: a document whose text was changed in the index is written again, with the vectors that belong to
    the text of the source. Other fields that were changed in the index stay as they are until the source changes.

    Args:
        stored: One a target.
    """
    if _is_unchanged(document, stored, targets):
        return _UNCHANGED
    if any(is_superseded(document, one.meta) for one in stored):
        return Sorting(Verdict.SUPERSEDED)
    current = [
        one.is_current(text, target.meta.fingerprint)
        for one, text, target in zip(stored, document.texts, targets, strict=True)
    ]
    numbers = range(len(targets))
    filled = [number for number in numbers if targets[number].filled]
    wanted = tuple(number for number in filled if document.texts[number] and not current[number])
    kept = tuple(number for number in numbers if current[number])
    dropped = tuple(
        number for number in numbers if not targets[number].filled and stored[number].is_left and not current[number]
    )
    if any(document.texts[number] for number in filled):
        return Sorting(Verdict.WRITE, wanted, kept, dropped)
    if any(stored[number].is_left for number in filled):
        return Sorting(Verdict.CLEAR, (), kept, dropped)
    return Sorting(Verdict.EMPTY)


# Most documents of most loads are unchanged.
_UNCHANGED = Sorting(Verdict.UNCHANGED)


def _is_unchanged(document: Document, stored: Sequence[StoredVector], targets: Targets) -> bool:
    """Whether the index holds the document with the vectors of its texts, and no others that the load fills."""
    is_known = False
    for one, text, target in zip(stored, document.texts, targets, strict=True):
        if one.text_changed:
            return False
        if not target.filled:
            continue
        if one.is_left if not text else not one.is_current(text, target.meta.fingerprint):
            return False
        if one.meta is not None:
            if one.meta.get("document_hash") != document.document_hash:
                return False
            is_known = True
    return is_known


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def is_superseded(document: Document, meta: Mapping[str, Any] | None) -> bool:
    """Whether the index holds a later version than this one, which is not the source's word of now (a dead letter)."""
    if meta is None or document.written is None:
        return False
    embedded_at = meta.get("embedded_at")
    return isinstance(embedded_at, str) and embedded_at > document.written


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
