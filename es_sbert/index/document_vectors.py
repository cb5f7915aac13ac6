"""Compute what a document needs for each vector field: its text, the vector as JSON, and the metadata object.

Also the rule by which a document gets a new vector, keeps its vector, or loses it. Loads and the gateway's writes share
it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.clock import parse_timestamp
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.mapping import (
    CHUNK_END,
    CHUNK_START,
    CHUNK_VECTOR,
    VectorFieldMeta,
    document_meta_field,
    vector_path,
)
from es_sbert.index.text_template import MISSING, TextFieldError, TextTemplate, find_field, flatten, has_value
from es_sbert.index.vector_field import VectorField, check_passages_kept
from es_sbert.io.json_text import dump_object
from es_sbert.runtime.joined_text import value_breaks
from es_sbert.vectors import Vectors

# Fingerprint in the metadata of a vector that the field's model does not give for the text.
UNKNOWN_FINGERPRINT = "unknown"


# Named tuples: several of these are made per document, and a frozen dataclass takes three times as long to make.
class DocumentMeta(NamedTuple):
    """The metadata object next to each vector.

    A member that was read and is missing, or has an unknown form, is None: a vector whose model or text is not known is
    embedded again.

    Attributes:
        fingerprint: Fingerprint of the model that made the vector.
        text_hash: Hash of the text that was embedded, prompt left out.
        document_hash: Hash of the whole document as read from the source; None for documents that were
            embedded in place.
        tokens: Number of tokens of the text, special tokens included, before truncation; the sum over all passages.
            For a text of more than 100,000 characters, an estimate from its beginning.
        truncated: Whether the text, or one of its passages, was longer than the model reads.
        embedded_at: Time of the embedding in UTC, ISO 8601.
        passages: Number of passages that the text was split into; None if it has one vector.
    """

    fingerprint: str | None
    text_hash: str | None
    document_hash: str | None
    tokens: int | None
    truncated: bool | None
    embedded_at: str | None
    passages: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the object as it is stored next to the vector."""
        members = self._asdict()
        if self.passages is None:
            del members["passages"]
        return members


def text_hash(text: str) -> str:
    """Return the first 32 hex digits (128 bits) of the SHA-256 of the text in UTF-8.

    For a text of several values, the hash also covers where they begin, because the chunks depend on that.

    Raises:
        UnicodeEncodeError: the text holds lone surrogates.
    """
    hashed = hashlib.sha256(text.encode())
    breaks = value_breaks(text)
    if breaks:
        hashed.update(f"\0{breaks}".encode())
    return hashed.hexdigest()[:32]


def document_hash(document: dict[str, Any]) -> str:
    """Return the first 32 hex digits of the SHA-256 of the document as JSON with sorted keys."""
    return hashlib.sha256(dump_object(document, sort_keys=True)).hexdigest()[:32]


def is_vector_current(meta: DocumentMeta | None, text: str, fingerprint: str) -> bool:
    """Whether the stored vector is the one that the text would get now; an empty text does not get one."""
    if not text or meta is None or meta.fingerprint != fingerprint:
        return False
    return meta.text_hash == text_hash(text)


# Elasticsearch reads a base64 vector as big-endian numbers on all machines.
_BIG_ENDIAN_FLOAT32 = np.dtype(">f4")

# A vector, or the list of its numbers as the engine takes them.
QueryVector = Vectors | list[float]
# Value of a vector field in a document: a vector, or chunk objects with one vector each.
FieldValue = str | Vectors | list[dict[str, Any]]


def to_wire_order(info: EngineInfo, vectors: Vectors) -> Vectors:
    """Convert vectors to the byte order that the engine expects.

    `bulk_vector_value` accepts any byte order, but many vectors are converted faster at once than one by one.
    """
    return vectors.astype(_BIG_ENDIAN_FLOAT32) if info.supports_base64_vectors else vectors


def bulk_vector_value(info: EngineInfo, vector: Vectors) -> str | Vectors:
    """Convert one vector to a value of a document that orjson writes.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32.

    Returns:
        Base64 if the engine accepts it, which saves it from parsing numbers; otherwise the array.
    """
    if not info.supports_base64_vectors:
        return vector
    wire = np.ascontiguousarray(vector, dtype=_BIG_ENDIAN_FLOAT32)
    return binascii.b2a_base64(wire.data, newline=False).decode("ascii")


def chunk_values(info: EngineInfo, spans: Sequence[tuple[int, int]], vectors: Vectors) -> list[dict[str, Any]]:
    """Build the passages of a document, for bodies that orjson writes.

    Args:
        spans: Start and end of each passage in characters of the document's text, the end not included.
        vectors: *Shape:* ``(passages, dimensions)`` float32.
    """
    return [
        {CHUNK_START: start, CHUNK_END: end, CHUNK_VECTOR: bulk_vector_value(info, vector)}
        for (start, end), vector in zip(spans, vectors, strict=True)
    ]


def to_bulk_value(info: EngineInfo, value: Any) -> FieldValue:
    """Convert the value of a vector field, as read from the engine, to the form in which it is written."""

    def written(stored: Any) -> str | Vectors:
        return bulk_vector_value(info, read_vector(stored))

    chunks = _stored_chunks(value)
    if chunks is None:
        return written(value)
    return [{**chunk, CHUNK_VECTOR: written(chunk[CHUNK_VECTOR])} for chunk in chunks]


def _stored_chunks(value: Any) -> list[dict[str, Any]] | None:
    """The chunk objects in the value of a vector field as read from the engine; None for a single vector."""
    if isinstance(value, dict):
        return [value]  # engines return a single passage as it was written, and other writers may omit the list
    return value if isinstance(value, list) and value and isinstance(value[0], dict) else None


def to_float_list(vector: QueryVector) -> list[float]:
    """Convert a vector to a list of numbers with no more digits than float32 needs, about half of Python's default.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32. A list is returned unchanged.
    """
    if isinstance(vector, list):
        return vector
    encoded = orjson.dumps(np.ascontiguousarray(vector, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
    numbers: list[float] = orjson.loads(encoded)
    return numbers


def read_stored_vectors(value: Any) -> list[tuple[int, int, Vectors]]:
    """Read all vectors from the value of a vector field in a document.

    Args:
        value: The value as read from the engine.

    Returns:
        For each vector: start and end of its text in characters, the end not included, and the vector itself. The end
        is 0 for a vector of the whole text.
        *Shape:* ``(dimensions,)``.
    """
    chunks = _stored_chunks(value)
    if chunks is None:
        return [(0, 0, read_vector(value))]
    return [(int(chunk[CHUNK_START]), int(chunk[CHUNK_END]), read_vector(chunk[CHUNK_VECTOR])) for chunk in chunks]


def read_vector(value: str | list[float]) -> Vectors:
    """Read a vector from its JSON value: the inverse of `bulk_vector_value`.

    Returns:
        *Shape:* ``(dimensions,)`` float32.
    """
    if isinstance(value, str):
        wire: NDArray[np.float32] = np.frombuffer(base64.b64decode(value, validate=True), dtype=_BIG_ENDIAN_FLOAT32)
        return wire.astype(np.float32)
    return np.asarray(value, dtype=np.float32)


def same_vectors(one: Any, two: Any) -> bool:
    """Whether the values of a vector field in two documents are the same vectors; False if one is not readable."""
    try:
        first, second = (np.stack([vector for *_, vector in read_stored_vectors(value)]) for value in (one, two))
        return first.shape == second.shape and np.allclose(first, second, rtol=1e-5, atol=1e-7)
    except (ValueError, TypeError, KeyError):
        return False


def json_bytes(value: Json) -> bytes:
    """Write JSON on one line; arrays of float32 get the fewest digits that give the same float32 again."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def append_members(source: bytes, added: Json) -> bytes:
    """Append members to a JSON object without changing its own bytes.

    Args:
        source: A JSON object without white space around it.
    """
    if not added:
        return source
    comma = b"" if source[1:-1].isspace() or len(source) == 2 else b","
    return b"".join((source[:-1], comma, json_bytes(added)[1:]))


def row_cosines(one: Vectors, two: Vectors) -> NDArray[np.float64]:
    """Return the cosine of each row of `one` with the same row of `two`; the rows need not have unit length.

    Args:
        one, two: *Shape:* ``(rows, dimensions)``.

    Returns:
        *Shape:* ``(rows,)``; 0 where a vector is zero or not finite.
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cosines: NDArray[np.float64] = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return np.clip(np.nan_to_num(cosines, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)


def action_metadata(hit: Json) -> Json:
    """The members of a bulk action that name the document of a hit."""
    metadata: Json = {"_id": hit["_id"]}
    return metadata if hit.get("_routing") is None else metadata | {"routing": hit["_routing"]}


def if_unchanged(hit: Json) -> Json:
    """The condition of a bulk action that the document has not been written since it was read."""
    return {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}


def member_names(source: Mapping[str, Any], field: str) -> list[str]:
    """Names of the members of a document that hold a field: its own name, and dotted names of its members."""
    start = f"{field}."
    return [name for name in source if name == field or name.startswith(start)]


def read_document_meta(source: Mapping[str, Any], meta_field: str) -> DocumentMeta | None:
    """Read the metadata object next to a stored vector; None if there is none, or none of its members is ours.

    Members may have any form that the engine indexes alike, because a client or the engine may have changed them: a
    value in a list, numbers and booleans as strings, dates in another format, dotted names.
    """
    names = member_names(source, meta_field)
    if not names:
        return None
    members = source[names[0]]
    if len(names) > 1 or not isinstance(members, dict):
        found = {name: find_field(source, f"{meta_field}.{name}") for name in DocumentMeta._fields}
        members = {name: value for name, value in found.items() if value is not MISSING}
    if members.keys().isdisjoint(DocumentMeta._fields):
        return None
    fingerprint, text, document, tokens, truncated, at, passages = [
        _only_value(members.get(name)) for name in DocumentMeta._fields
    ]
    return DocumentMeta(
        fingerprint=fingerprint if isinstance(fingerprint, str) else None,
        text_hash=text if isinstance(text, str) else None,
        document_hash=document if isinstance(document, str) else None,
        tokens=_whole_number(tokens),
        truncated={"true": True, "false": False}.get(str(truncated).lower()),
        embedded_at=None if at is None else parse_timestamp(at),
        passages=_whole_number(passages),
    )


def _only_value(value: Any) -> Any:
    """The value of a field that is not a list or has one entry; None if it has several."""
    if not isinstance(value, list):
        return value
    values = [each for each in flatten(value) if each is not None]
    return values[0] if len(values) == 1 else None


def _whole_number(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else int(value)
    except (ValueError, TypeError, OverflowError):  # the vector counts as outdated
        return None


@dataclass(frozen=True)
class EmbeddingTarget:
    """A vector field and the text that its vectors are made from.

    Attributes:
        field: Name of the field.
        template: Template of the text.
        meta: The field's metadata in the mapping.
        filled: Whether this load makes the vectors. Other fields have another model or were not requested. A document
            that is written again keeps its vector in such a field as long as the vector was made from its text.
    """

    field: str
    template: TextTemplate
    meta: VectorFieldMeta
    filled: bool = True

    @cached_property
    def meta_field(self) -> str:
        """Name of the metadata object."""
        return document_meta_field(self.field)


EmbeddingTargets = tuple[EmbeddingTarget, ...]


def targets_to_fill(targets: EmbeddingTargets) -> EmbeddingTargets:
    """The targets that this load fills."""
    return tuple(target for target in targets if target.filled)


def kept_targets(fields: Mapping[str, VectorFieldMeta], filled_fields: Sequence[str]) -> EmbeddingTargets:
    """Return the vector fields that the load does not fill, if their text is known.

    Args:
        fields: All vector fields of the index.
        filled_fields: Names of the fields that the load fills.
    """
    return tuple(
        EmbeddingTarget(name, TextTemplate.parse(meta.text), meta, filled=False)
        for name, meta in fields.items()
        if name not in filled_fields and meta.text is not None
    )


def target_texts(fields: Mapping[str, Any], targets: EmbeddingTargets) -> tuple[str, ...]:
    """Return a document's text for each target, in order; empty if all fields of it are missing, null or blank.

    Raises:
        TextFieldError: a field of a text that the load embeds holds a value other than a string.
    """
    return tuple([_target_text(fields, target) for target in targets])


def stored_text(source: Mapping[str, Any], target: EmbeddingTarget) -> str | None:
    """Return the text that a document of the index has for a target; empty if there is nothing to embed.

    None if a field of the text holds a value other than a string, which a load rejects in documents of a source.
    """
    try:
        return _target_text(source, target)
    except TextFieldError:
        return None


def target_text_fields(targets: EmbeddingTargets) -> tuple[str, ...]:
    """Fields of the texts that the load embeds, without duplicates."""
    return tuple(dict.fromkeys(name for target in targets_to_fill(targets) for name in target.template.fields))


def absent_fields(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the names of fields that a document lacks, or in which it has null or a list without values."""
    return [name for name in names if not has_value(find_field(fields, name))]


def _target_text(fields: Mapping[str, Any], target: EmbeddingTarget) -> str:
    if target.filled:
        return target.template.text_of(fields) or ""
    return target.template.readable_text(fields)  # a vector next to an unreadable text was made from another text


class VectorFieldValue(NamedTuple):
    """A vector field of a document and its metadata.

    Attributes:
        field: Name of the field.
        value: The value in the form that the engine accepts.
        meta: The metadata object.
    """

    field: str
    value: FieldValue
    meta: DocumentMeta


class ChunkedText(NamedTuple):
    """A text of a document, as embedded.

    Attributes:
        target: The vector field that gets its vectors.
        text: The whole text.
        spans: Start and end of each passage; None if the text is embedded as a whole.
    """

    target: EmbeddingTarget
    text: str
    spans: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def cut(cls, target: EmbeddingTarget, text: str, passages: Sequence[tuple[int, int]]) -> ChunkedText:
        """Create the chunks of a text from the spans of its passages; a text of white space only is one chunk."""
        return cls(target, text, tuple(passages) or ((0, len(text)),))

    @property
    def vector_count(self) -> int:
        """Number of its vectors."""
        return 1 if self.spans is None else len(self.spans)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that the model reads, one per vector."""
        return (self.text,) if self.spans is None else tuple(self.text[start:end] for start, end in self.spans)


def build_field_value(
    info: EngineInfo,
    chunked: ChunkedText,
    vectors: Vectors,
    tokens: Sequence[int],
    max_tokens: int,
    document_hash: str | None,
    embedded_at: str,
) -> VectorFieldValue:
    """Build the value and the metadata of a vector field for a text, whole or in chunks.

    Args:
        info: The engine, which determines the form of a vector.
        vectors: *Shape:* ``(chunks, dimensions)`` float32.
        tokens: Number of tokens of each chunk, special tokens included, before truncation.
        max_tokens: Maximum number of tokens that the model reads of a chunk.
        document_hash: Hash of the whole document; None if only a part of it is available.
        embedded_at: Time of the embedding in UTC, ISO 8601.
    """
    meta = DocumentMeta(
        fingerprint=chunked.target.meta.fingerprint,
        text_hash=text_hash(chunked.text),
        document_hash=document_hash,
        tokens=sum(tokens),
        truncated=max(tokens) > max_tokens,
        embedded_at=embedded_at,
        passages=None if chunked.spans is None else len(chunked.spans),
    )
    spans = chunked.spans
    value = bulk_vector_value(info, vectors[0]) if spans is None else chunk_values(info, spans, vectors)
    return VectorFieldValue(chunked.target.field, value, meta)


def vector_members(
    fields: Sequence[VectorFieldValue], cleared: Sequence[str] = (), *, dotted_names: bool = False
) -> Json:
    """Build the members for vector fields in a document or a partial document.

    Args:
        cleared: Vector fields to remove, with their metadata.
        dotted_names: Write the members of the metadata with dotted names instead of in an object.
    """
    added: Json = {}
    for filled in fields:
        added[filled.field] = filled.value
        added[document_meta_field(filled.field)] = filled.meta.as_json()
    for field in cleared:
        added |= {field: None, document_meta_field(field): None}
    if not dotted_names:
        return added
    metas = [document_meta_field(name) for name in (*(filled.field for filled in fields), *cleared)]
    dotted = {f"{meta}.{name}": (added[meta] or {}).get(name) for meta in metas for name in DocumentMeta._fields}
    return {name: value for name, value in added.items() if name not in metas} | dotted


class StoredVector(NamedTuple):
    """The state of one vector field in a document.

    Attributes:
        exists: Whether there is a vector. The metadata does not prove it: on Elasticsearch 9.2 and later `_source`
            hides vectors, so an application that writes a document back drops them and keeps the metadata.
        meta: The metadata object next to the vector, or a part of it; None if there is none. A vector without it comes
            from another writer. In `_source` that an engine rebuilds from fields, members that are null are missing.
        text_changed: Whether the text in the index is known to differ from the source's.
    """

    exists: bool = False
    meta: DocumentMeta | None = None
    text_changed: bool = False

    @classmethod
    def from_fields(cls, fields: Json, target: EmbeddingTarget) -> StoredVector:
        """Read the state from the fields of a document that was read or sent with its vectors."""
        exists = any(fields[name] is not None for name in member_names(fields, target.field))
        return cls(exists, read_document_meta(fields, target.meta_field))


def stored_vectors(hit: Json, targets: EmbeddingTargets) -> list[StoredVector]:
    """Read the state of a document's vectors from a hit of `named_vectors_query` with their metadata in `_source`."""
    source, names = hit.get("_source") or {}, hit.get("matched_queries", [])
    return [
        StoredVector(str(number) in names, read_document_meta(source, target.meta_field))
        for number, target in enumerate(targets)
    ]


class VectorChange(Enum):
    """The change of a document's vector when the document is written."""

    EMBED = auto()  # a vector is made from the document's text
    KEEP = auto()  # the text would get the same vector now
    REMOVE = auto()  # the vector, or its metadata, is outdated, and no new vector is made
    NONE = auto()  # there is no vector, and none is made


def vector_change(target: EmbeddingTarget, text: str | None, stored: StoredVector) -> VectorChange:
    """Decide how the vector changes when a document gets this text.

    Args:
        text: Text of the document after the write; empty or None if there is nothing to embed.
    """
    if stored.exists and text and is_vector_current(stored.meta, text, target.meta.fingerprint):
        return VectorChange.KEEP
    if text and target.filled:
        return VectorChange.EMBED
    return VectorChange.REMOVE if stored.exists or stored.meta is not None else VectorChange.NONE


def is_outdated(target: EmbeddingTarget, text: str, stored: StoredVector) -> bool:
    """Whether the index lacks the vector of a document's text, or holds a vector of an earlier text.

    Metadata without a vector is harmless.
    """
    change = vector_change(target, text, stored)
    return change is VectorChange.EMBED or (change is VectorChange.REMOVE and stored.exists)


# OpenSearch before 3.7 returns doc values of vectors only to scripts. These get the same array for all documents, so
# its numbers are copied. A search may cover indices without the field.
_OPENSEARCH_SCRIPT = (
    "def numbers = []; if (doc.containsKey(params.field) && doc[params.field].size() != 0) "
    "{ for (number in doc[params.field].value) { numbers.add(number) } } return numbers"
)


def doc_value_request(engine_type: EngineType, fields: Iterable[VectorField]) -> Json:
    """Build the members of a search body that request the vectors that `_source` lacks; none if it has all of them.

    Raises:
        IndexMismatch: see `check_passages_kept`.
    """
    names: list[str] = []
    for field in fields:
        check_passages_kept(field)
        if not field.meta.in_source and field.name not in names:
            names.append(field.name)
    if not names:
        return {}
    if engine_type is EngineType.ELASTICSEARCH:
        return {"docvalue_fields": names}
    scripts = {name: {"script": {"source": _OPENSEARCH_SCRIPT, "params": {"field": name}}} for name in names}
    return {"script_fields": scripts}


def vector_request(info: EngineInfo, fields: Sequence[VectorField]) -> Json:
    """Build the members of a search body that request the vectors of these fields and no other part of a document.

    Raises:
        IndexMismatch: see `check_passages_kept`.
    """
    # Indices may differ in what `_source` keeps of a field.
    kept = [field for field in fields if field.meta.in_source]
    paths = [path for field in kept for path in (field.name, vector_path(field.name, field.meta))]
    source = info.source_with_vectors(list(dict.fromkeys(paths))) if paths else False
    return {"_source": source, **doc_value_request(info.engine_type, fields)}


def stored_value(hit: Json, vector_field: str) -> Any:
    """The value of a vector field in a hit, from `_source` or as `doc_value_request` requests it; None without one."""
    value = find_field(hit.get("_source") or {}, vector_field)
    if value is not MISSING and value is not None:
        return value
    found = hit.get("fields", {}).get(vector_field) or [None]
    # Elasticsearch returns a list with the vector, a script of OpenSearch its numbers.
    return found if isinstance(found[0], int | float) else found[0]


def hit_vectors(hit: Json, field: VectorField) -> list[tuple[int, int, Vectors]]:
    """Read the vectors of a hit that has one, as `read_stored_vectors` does.

    Raises:
        IndexMismatch: the engine did not return the vector.
    """
    value = stored_value(hit, field.name)
    if value is None:
        raise IndexMismatch(
            f"{hit['_index']} has a vector in {field.name} for the document {hit['_id']!r}, but does not return it",
            f"Load the documents into an index whose `_source` keeps {field.name}.",
        )
    return read_stored_vectors(value)
