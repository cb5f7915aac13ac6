"""A request's documents with their vectors: pure functions between what is read of the engine and what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from es_sbert.engines.protocol import EngineInfo
from es_sbert.errors import EsSbertError
from es_sbert.gateway.writes.changes import Change, Standing
from es_sbert.gateway.writes.destinations import Destination
from es_sbert.gateway.writes.items import Item
from es_sbert.gateway.writes.vectors import Embedded
from es_sbert.gateway.writes.written import Key, Written, standing_before
from es_sbert.index.filled import FilledField, Origins
from es_sbert.index.targets import Target


@dataclass(frozen=True)
class Changed:
    """An item whose vectors change.

    Attributes:
        number: Its place in the request.
        written: What was read of it.
        changes: What becomes of vectors, by the item's member that is a document.
    """

    number: int
    written: Written
    changes: Mapping[str, Change]

    @property
    def wanted(self) -> list[tuple[Target, str]]:
        """The texts that vectors are made of."""
        return [one for change in self.changes.values() for one in change.wanted]


@dataclass(frozen=True)
class Ready:
    """What goes to the engine.

    Attributes:
        items: All items of the request; those that change with their vectors.
        problems: Number of an item → why it lacks a vector.
        embedded: How many documents got vectors.
    """

    items: list[Item]
    problems: Mapping[int, EsSbertError]
    embedded: int


def read_items(items: Sequence[Item], destinations: Mapping[str, Destination]) -> dict[int, Written]:
    """The items for indices with vector fields, by their place in the request.

    Args:
        destinations: Of each index, as items call it.
    """
    found = ((number, item, destinations.get(item.index)) for number, item in enumerate(items))
    return {
        number: Written.of(item, destination.targets, destination.without_text)
        for number, item, destination in found
        if destination is not None and destination.has_vectors
    }


def changed_items(written: Mapping[int, Written], found: Mapping[Key, Standing]) -> list[Changed]:
    """Those whose vectors change.

    Args:
        found: The documents that updates of a part of a text are about, as they stood before the request.
    """
    before = standing_before(list(written.values()), found)
    changed = [
        Changed(number, one, one.changes(standing))
        for (number, one), standing in zip(written.items(), before, strict=True)
    ]
    return [one for one in changed if one.changes]


def with_vectors(items: Sequence[Item], changed: Sequence[Changed], made: Sequence[Embedded | EsSbertError],
                 info: EngineInfo, embedded_at: str) -> Ready:  # fmt: skip
    """The items as they are sent; one whose vector could not be made goes without it.

    Args:
        made: For each wanted text of `changed`, in their order.
        info: The engine, for the form of a vector.
        embedded_at: When the vectors were made.
    """
    result = list(items)
    problems: dict[int, EsSbertError] = {}
    embedded = 0
    vectors = iter(made)
    for one in changed:
        filled: dict[str, list[FilledField]] = {}
        for member, change in one.changes.items():
            origins = Origins(change.document_hash, embedded_at)
            filled[member] = list(_filled(change, vectors, info, origins, one.number, problems))
        embedded += any(filled.values()) and one.number not in problems
        result[one.number] = one.written.with_vectors(one.changes, filled)
    return Ready(result, problems, embedded)


def _filled(change: Change, vectors: Iterator[Embedded | EsSbertError], info: EngineInfo, origins: Origins,
            number: int, problems: dict[int, EsSbertError]) -> Iterator[FilledField]:  # fmt: skip
    for _ in change.wanted:
        made = next(vectors)
        if isinstance(made, EsSbertError):
            problems[number] = made
        else:
            yield made.field(info, origins)
