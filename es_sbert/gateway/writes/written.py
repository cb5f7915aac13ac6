"""Items that concern vectors: what each brings, which vectors that calls for, and its bytes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from es_sbert.engines.protocol import Json
from es_sbert.gateway.wire.json_bodies import NotPlainJson
from es_sbert.gateway.wire.json_bodies import parse_object as parse_plain_json
from es_sbert.gateway.writes.changes import (
    NOTHING,
    Absent,
    Change,
    Standing,
    merged,
    needed_fields,
    partial_document,
    whole_document,
)
from es_sbert.gateway.writes.items import Item, Operation
from es_sbert.gateway.writes.members import value_of, with_values, without
from es_sbert.index.bulk_lines import with_members
from es_sbert.index.filled import FilledField, added_members
from es_sbert.index.targets import Targets
from es_sbert.streams.json_lines import depth_problem, parse_object

# Index and id of a document, as an item calls them.
Key = tuple[str, str]
# How engines let a request say yes.
_YES = (True, "true")


@dataclass(frozen=True)
class Written:
    """An item for an index with vector fields.

    Attributes:
        item: The item.
        targets: The vector fields.
        fields: Its JSON object; None where it is not one that can be read, or that the engine takes.
        without_text: Names of the vector fields whose text is not known.
    """

    item: Item
    targets: Targets
    fields: Json | None
    without_text: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: Item, targets: Targets, without_text: tuple[str, ...] = ()) -> Written:
        """Read an item's object."""
        return cls(item, targets, _read(item.source) if item.source else None, without_text)

    @property
    def key(self) -> Key | None:
        """The document; None where the engine gives it its id."""
        return None if self.item.id is None else (self.item.index, self.item.id)

    @property
    def doc(self) -> Json | None:
        """The partial document of an update without a script, which would decide by itself."""
        if self.item.operation is not Operation.UPDATE or self.fields is None or "script" in self.fields:
            return None
        return _object(self.fields, "doc")

    @property
    def upsert(self) -> Json | None:
        """What an update writes where there is no document yet; None where that is up to a script."""
        if self.item.operation is not Operation.UPDATE or self.fields is None:
            return None
        return None if self.fields.get("scripted_upsert") in _YES else _object(self.fields, "upsert")

    @property
    def creates(self) -> bool:
        """Whether an update's partial document is the whole one where there is none yet."""
        return self.fields is not None and self.fields.get("doc_as_upsert") in _YES

    @property
    def whole_documents(self) -> list[Json]:
        """The documents that may come into being as the item brings them."""
        if self.fields is None or self.item.operation is Operation.DELETE:
            return []
        if self.item.operation is not Operation.UPDATE:
            return [self.fields]
        doc = self.doc if self.creates else None
        return [document for document in (doc, self.upsert) if document is not None]

    @property
    def lacks_vector(self) -> bool:
        """Whether a whole document brings no vector for a field whose text is not known."""
        return any(document.get(name) is None for document in self.whole_documents for name in self.without_text)

    @property
    def is_partial(self) -> bool:
        """Whether it changes a document only in part."""
        return self.doc is not None and not self.creates

    @property
    def needed(self) -> tuple[str, ...]:
        """Fields of the document before that must be known."""
        return () if self.doc is None or self.key is None else needed_fields(self.doc, self.targets)

    def changes(self, standing: Standing) -> dict[str, Change]:
        """What becomes of vectors: the item's member that is a document → its change; "" is the item's whole object.

        Args:
            standing: The document before; what it is matters only where `needed` is not empty.
        """
        if self.fields is None:
            return {}
        if self.item.operation is not Operation.UPDATE:
            found = {"": whole_document(self.fields, self.targets)}
        else:
            doc, upsert = self.doc, self.upsert
            found = {
                "doc": NOTHING if doc is None else partial_document(doc, standing, self.targets, creates=self.creates),
                "upsert": NOTHING if upsert is None else whole_document(upsert, self.targets),
            }
        return {member: change for member, change in found.items() if change}

    def with_vectors(self, changes: Mapping[str, Change], filled: Mapping[str, Sequence[FilledField]]) -> Item:
        """The item with vectors in its documents.

        A partial document clears the wanted fields that it gets no vector for: the old one stood for another text.

        Args:
            filled: Vector fields of each member.
        """
        source = self.item.source
        values = {
            member: _changed(value_of(source, member) if member else source, change, filled.get(member, ()),
                             partial=member == "doc")
            for member, change in changes.items()
        }  # fmt: skip
        return self.item.with_source(values[""] if "" in values else with_values(source, values))

    def after(self, before: Standing) -> Standing:
        """The document after the item, where the engine takes it."""
        operation = self.item.operation
        if operation is Operation.DELETE:
            return Absent.MISSING
        if operation is Operation.CREATE and before is not Absent.MISSING:
            return before
        if self.fields is None:
            return Absent.UNKNOWN
        if operation is not Operation.UPDATE:
            return self.fields
        if before is Absent.MISSING:
            doc = self.doc if self.creates else None
            return next((found for found in (doc, self.upsert) if found is not None), before)
        doc = self.doc
        if doc is None or not isinstance(before, dict):
            return Absent.UNKNOWN
        return merged(before, doc)


def standing_before(written: Sequence[Written], found: Mapping[Key, Standing]) -> list[Standing]:
    """The document before each item, where items of the same request may have written it already.

    Args:
        found: The documents before the request; those that no item needs may be left out.
    """
    now = dict(found)
    result: list[Standing] = []
    for one in written:
        before = Absent.UNKNOWN if one.key is None else now.get(one.key, Absent.UNKNOWN)
        result.append(before)
        if one.key in now:
            now[one.key] = one.after(before)
    return result


def _changed(source: bytes, change: Change, filled: Sequence[FilledField], *, partial: bool) -> bytes:
    if change.removed:
        source = without(source, change.removed)
    got = {field.field for field in filled}
    lost = [target.field for target, _ in change.wanted if target.field not in got]
    return with_members(source, added_members(filled, [*change.cleared, *lost] if partial else ()))


def _read(source: bytes) -> Json | None:
    """An object; None where it is none that the engine takes, or that can be read."""
    fields = parse_object(source)
    if isinstance(fields, str):
        try:
            # Engines take lone surrogates too.
            fields = parse_plain_json(source.decode(), finite=False)
        except (NotPlainJson, UnicodeDecodeError):
            return None
    return fields if depth_problem(fields, source) is None else None


def _object(fields: Json, name: str) -> Json | None:
    value = fields.get(name)
    return value if isinstance(value, dict) else None
