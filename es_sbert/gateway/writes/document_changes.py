"""Change detection: which vectors a written document gets, keeps or loses, and its bytes with the new ones.

All other members of a document stay byte for byte as the client sent them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.errors import unknown_text_error
from es_sbert.gateway.incoming_request import UnreadableJson, parse_object
from es_sbert.gateway.writes.bulk_items import BulkItem, OpType
from es_sbert.gateway.writes.missing_vectors import NoVectorReason
from es_sbert.index.document_vectors import (
    EmbeddingTarget,
    EmbeddingTargets,
    StoredVector,
    VectorChange,
    VectorFieldValue,
    append_members,
    document_hash,
    member_names,
    read_document_meta,
    same_vectors,
    stored_text,
    vector_change,
    vector_members,
)
from es_sbert.index.source_mode import NameForm
from es_sbert.index.text_template import MISSING, find_field, with_name_form
from es_sbert.index.whole_documents import merge_partial_document
from es_sbert.io.json_text import member_value, remove_members, replace_values
from es_sbert.io.text_formats import depth_problem, parse_json_line, utf8_problem

# Index, id and routing of a document, as an item names them.
WriteKey = tuple[str, str, str | None]
# Values that engines accept as true.
_TRUE_VALUES = (True, "true")


@dataclass
class WriteItem:
    """An item for an index with vector fields.

    Attributes:
        item: The item.
        targets: The vector fields.
        without_text: Names of the vector fields whose text is not known.
        number: Its position in the request.
        fields: Its JSON object; None if it has none, or it cannot be read.
        whole: Member of the item → the complete document that it may write; "" is the item's whole object. Empty if
            there is none, or if a script makes it.
        doc: The partial document of an update; None for an update by a script.
        creates: Whether the partial document becomes the document if none exists (`doc_as_upsert`).
        unseen: Reason why the gateway cannot see a document that the item may write; None if it can.
        unreadable: Error of a JSON object that the gateway cannot read.
        changes: Changes of vectors, and reasons for missing ones, by the member of the item that is a document.
            `detect_vector_changes` sets it.
    """

    item: BulkItem
    targets: EmbeddingTargets
    without_text: tuple[str, ...]
    number: int
    fields: Json | None = None
    whole: Mapping[str, Json] = field(default_factory=dict)
    doc: Json | None = None
    creates: bool = False
    unseen: NoVectorReason | None = None
    unreadable: UnreadableJson | None = None
    changes: dict[str, DocumentChange] = field(default_factory=dict)

    @classmethod
    def from_bulk_item(
        cls, item: BulkItem, targets: EmbeddingTargets, without_text: tuple[str, ...] = (), number: int = 0
    ) -> WriteItem:
        """Parse the JSON object of an item."""
        if not item.has_document:
            return cls(item, targets, without_text, number)
        try:
            item, fields = _parse_document(item)
        except UnreadableJson as error:
            return cls(item, targets, without_text, number, unreadable=error)
        if item.operation is not OpType.UPDATE:
            return cls(item, targets, without_text, number, fields, {"": fields})
        doc = None if "script" in fields else _object_member(fields, "doc")
        is_scripted = fields.get("scripted_upsert") in _TRUE_VALUES
        upsert = None if is_scripted else _object_member(fields, "upsert")
        whole = {} if upsert is None else {"upsert": upsert}
        creates = doc is not None and fields.get("doc_as_upsert") in _TRUE_VALUES
        unseen = NoVectorReason.SCRIPT if is_scripted and "script" in fields else None
        if unseen is None and "script" in fields and not all(target.meta.in_source for target in targets):
            unseen = NoVectorReason.NOT_IN_SOURCE
        return cls(item, targets, without_text, number, fields, whole, doc, creates, unseen)

    @property
    def key(self) -> WriteKey | None:
        """The document; None if the engine generates its id."""
        return None if self.item.id is None else (self.item.index, self.item.id, self.item.routing)

    @property
    def complete_documents(self) -> list[Json]:
        """The complete documents that the item may create."""
        documents = list(self.whole.values())
        return documents if self.doc is None or not self.creates else [self.doc, *documents]

    @property
    def error(self) -> EsSbertError | None:
        """The reason why its vectors cannot be made, apart from lookups.

        It is unreadable, or a complete document has no vector for a field whose text is not known.
        """
        documents = self.complete_documents
        if any(document.get(name) is None for document in documents for name in self.without_text):
            return unknown_text_error()
        return self.unreadable

    @property
    def needed(self) -> tuple[str, ...]:
        """Fields of the previous document that must be known."""
        if self.doc is None or self.key is None:
            return ()
        needed: dict[str, None] = {}
        for target in self.targets:  # those whose text is embedded
            sets = [_sets_field(self.doc, name) for name in target.template.fields]
            if not all(sets) and (any(sets) or _loses_vector(self.doc, target)):
                needed |= dict.fromkeys((*target.template.fields, target.meta_field))
        return tuple(needed)

    @property
    def compared(self) -> tuple[str, ...]:
        """Fields of the previous document that are used if they can be read.

        They tell whether a vector without metadata was copied from it, and whether a text field that a partial document
        sets has other values under another spelling: `{"a.b": …}` does not replace `{"a": {"b": …}}`.
        """
        if self.key is None or self.item.operation is OpType.CREATE:
            return ()
        documents = [document for document in (self.whole.get(""), self.doc) if document is not None]
        names: dict[str, None] = {}
        for target in self.targets:
            if any(_lacks_meta(document, target) for document in documents):
                names |= dict.fromkeys((*target.template.fields, target.field))
            if self.doc is not None:
                doc = self.doc
                names |= dict.fromkeys(
                    name for name in target.template.fields if "." in name and _sets_field(doc, name)
                )
        return tuple(names)

    @property
    def name_form(self) -> NameForm:
        """The form of names in `_source` of the index."""
        return self.targets[0].meta.name_form if self.targets else NameForm.AS_SENT

    @property
    def is_changed(self) -> bool:
        """Whether any vector changes."""
        return any(self.changes.values())

    @property
    def to_embed(self) -> list[tuple[EmbeddingTarget, str]]:
        """The texts to embed."""
        return [text for change in self.changes.values() for text in change.to_embed]

    def detect_changes(self, previous: PreviousDocument) -> None:
        """Set `changes`.

        Args:
            previous: The previous document; used only if `needed` or `compared` is not empty.
        """
        found = {
            member: whole_document_change(document, self.targets, NoPreviousDocument.MISSING if member else previous)
            for member, document in self.whole.items()
        }
        if self.doc is not None:
            found["doc"] = partial_document_change(self.doc, previous, self.targets, creates=self.creates)
        self.changes = {member: change for member, change in found.items() if change or change.lacking}

    def with_vectors(self, filled: Mapping[str, Sequence[VectorFieldValue]]) -> BulkItem:
        """Add vectors to the documents of the item, of which at least one is changed (`is_changed`).

        A partial document clears the fields that get no new vector, because the old vector is of another text.

        Args:
            filled: Vector fields of each member.
        """
        source = self.item.source
        values: dict[str, bytes] = {}
        for member, change in self.changes.items():
            if not change:
                continue
            document = member_value(source, member) if member else source
            if change.removed:
                document = remove_members(document, change.removed)
            added, partial = filled.get(member, ()), member == "doc"
            dotted_names = partial and self.name_form is NameForm.DOTTED
            values[member] = append_members(document, vector_members(added, change.cleared, dotted_names=dotted_names))
        return replace(self.item, source=values[""] if "" in values else replace_values(source, values))

    def after(self, before: PreviousDocument) -> PreviousDocument:
        """Return the document after the item as the engine returns it, if the engine accepts the item."""
        after = self._after(before)
        return with_name_form(after, self.name_form) if isinstance(after, dict) else after

    def _after(self, before: PreviousDocument) -> PreviousDocument:
        operation = self.item.operation
        if operation is OpType.DELETE:
            return NoPreviousDocument.MISSING
        if operation is OpType.CREATE and before is not NoPreviousDocument.MISSING:
            return before
        if self.fields is None:
            return NoPreviousDocument.UNKNOWN
        if operation is not OpType.UPDATE:
            return self.fields
        if before is NoPreviousDocument.MISSING:
            return next(iter(self.complete_documents), before)
        if self.doc is None or not isinstance(before, dict):
            return NoPreviousDocument.UNKNOWN
        return merge_partial_document(before, self.doc)


def detect_vector_changes(items: Iterable[WriteItem], found: Mapping[WriteKey, PreviousDocument]) -> None:
    """Set the changes of items; each sees the writes of earlier items of the same request.

    Args:
        found: Previous versions of the documents that items need.
    """
    now = dict(found)
    for item in items:
        before = NoPreviousDocument.UNKNOWN if item.key is None else now.get(item.key, NoPreviousDocument.UNKNOWN)
        item.detect_changes(before)
        if item.key in now:
            now[item.key] = item.after(before)


def _parse_document(item: BulkItem) -> tuple[BulkItem, Json]:
    """Parse the document of an item; return the item without the document's comments, and the object.

    Raises:
        UnreadableJson: the document is not a JSON object in UTF-8, or is nested too deeply.
    """
    fields = parse_json_line(item.source)
    if isinstance(fields, str):
        if item.source.startswith(b"/") and item.operation is not OpType.UPDATE:
            # Elasticsearch stores it, but then cannot read single fields of it.
            raise UnreadableJson("the document begins with a comment")
        if problem := utf8_problem(item.source):
            raise UnreadableJson(problem)
        item = item.without_comments()
        fields = parse_object(item.source, finite=False)  # also reads lone surrogates, which engines accept
    if problem := depth_problem(fields, item.source):
        raise UnreadableJson(problem)
    return item, fields


def _object_member(fields: Json, name: str) -> Json | None:
    value = fields.get(name)
    return value if isinstance(value, dict) else None


class NoPreviousDocument(Enum):
    """The reason why the previous document of an update is not available."""

    MISSING = auto()  # there is no previous document
    UNKNOWN = auto()  # the previous document cannot be determined


# A document before an update: the relevant fields.
PreviousDocument = Json | NoPreviousDocument


@dataclass
class DocumentChange:
    """The change of vectors in a written object.

    Attributes:
        to_embed: Vector fields that get a new vector, each with the text.
        removed: Members of the object that are removed: vectors of an older text, and their metadata.
        cleared: Vector fields that a partial document sets to null.
        document_hash: Hash of the whole document; None for a partial document.
        lacking: Reasons why vector fields get no vector although the object determines their text.
    """

    to_embed: list[tuple[EmbeddingTarget, str]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    cleared: list[str] = field(default_factory=list)
    document_hash: str | None = None
    lacking: set[NoVectorReason] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.to_embed or self.removed or self.cleared)


def whole_document_change(
    fields: Json, targets: Sequence[EmbeddingTarget], previous: PreviousDocument
) -> DocumentChange:
    """Return the change of a complete document: a vector for each of its texts.

    A vector from the client is kept, unless it was copied from a previous document of another text or model.

    Args:
        previous: The previous document.
    """
    change = DocumentChange()
    for target in targets:
        text = stored_text(fields, target)
        if _keeps_client_vector(fields, target, text, previous):
            continue
        change.removed |= _replaced_members(fields, target, bool(text))
        if text:
            change.to_embed.append((target, text))
        else:
            change.lacking.add(_no_text_reason(text))
    if change:
        content = {name: value for name, value in fields.items() if name not in change.removed}
        change.document_hash = document_hash(content)
    return change


def partial_document_change(
    doc: Json, previous: PreviousDocument, targets: Sequence[EmbeddingTarget], *, creates: bool
) -> DocumentChange:
    """Return the change of a partial document: vectors for the texts that it changes.

    A vector that `_source` lacks is made again: the engine builds the new document from `_source`.

    Args:
        previous: The previous document.
        creates: Whether the partial document becomes the document if none exists (`doc_as_upsert`).
    """
    change = DocumentChange()
    for target in targets:
        sets = [_sets_field(doc, field) for field in target.template.fields]
        if not any(sets) and not _loses_vector(doc, target):
            continue
        is_unknown = False
        if isinstance(previous, dict):
            text = stored_text(merge_partial_document(previous, doc), target)
            # Assume that there is a vector: only its metadata was read.
            stored = StoredVector(True, read_document_meta(previous, target.meta_field))
            is_kept = target.meta.in_source and not all(sets)
            if is_kept and vector_change(target, text, stored) is VectorChange.KEEP:
                continue
        elif all(sets) or (previous is NoPreviousDocument.MISSING and creates):
            text = stored_text(doc, target)
        elif previous is NoPreviousDocument.UNKNOWN:
            text, is_unknown = None, True
        else:
            continue  # the engine rejects the update
        if _keeps_client_vector(doc, target, text, previous):
            continue
        change.removed |= _replaced_members(doc, target, True)
        if text:
            change.to_embed.append((target, text))
        elif not any(sets):
            if is_unknown or (
                isinstance(previous, dict) and read_document_meta(previous, target.meta_field) is not None
            ):
                change.lacking.add(NoVectorReason.NOT_IN_SOURCE)
        else:
            change.cleared.append(target.field)
            change.lacking.add(NoVectorReason.PREVIOUS_UNKNOWN if is_unknown else _no_text_reason(text))
    return change


def _keeps_client_vector(fields: Json, target: EmbeddingTarget, text: str | None, previous: PreviousDocument) -> bool:
    """Whether the object has a vector that is kept.

    Metadata tells whose vector it is. Without metadata it is the client's, unless the previous document has the same
    vector for another text: then the client has read that document without the metadata, and changed its text.
    """
    if not _lacks_meta(fields, target):
        return vector_change(target, text, StoredVector.from_fields(fields, target)) is VectorChange.KEEP
    if not isinstance(previous, dict) or stored_text(previous, target) == text:
        return True
    sent, before = find_field(fields, target.field), find_field(previous, target.field)
    return not same_vectors(sent, before)


def _lacks_meta(fields: Json, target: EmbeddingTarget) -> bool:
    """Whether the object has a vector without metadata."""
    stored = StoredVector.from_fields(fields, target)
    return stored.exists and stored.meta is None


def _no_text_reason(text: str | None) -> NoVectorReason:
    """The reason why there is nothing to embed, by the result of `stored_text`."""
    return NoVectorReason.NOT_TEXT if text is None else NoVectorReason.NO_TEXT


def _replaced_members(fields: Json, target: EmbeddingTarget, replaced: bool) -> set[str]:
    """Members to remove. A null is removed only if a new value replaces it."""
    names = (*member_names(fields, target.field), *member_names(fields, target.meta_field))
    return {name for name in names if replaced or fields[name] is not None}


def _loses_vector(doc: Json, target: EmbeddingTarget) -> bool:
    """Whether a partial document that does not set the vector loses it."""
    return not (target.meta.in_source or member_names(doc, target.field))


def _sets_field(doc: Json, field: str) -> bool:
    """Whether a partial document sets a dotted name, or replaces an object on its path with another value."""
    if find_field(doc, field) is not MISSING:
        return True
    head, dot, _ = field.rpartition(".")
    while dot:
        value = find_field(doc, head)
        if value is not MISSING:
            return not isinstance(value, Mapping)
        head, dot, _ = head.rpartition(".")
    return False
