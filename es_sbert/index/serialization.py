"""Serialize vectors and bulk lines for the engines, and read vectors back."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.encoder.embeddings import Vectors
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.index.mapping import CHUNK_END, CHUNK_START, CHUNK_VECTOR

# Elasticsearch reads a base64 vector as big-endian numbers, whatever the machines involved.
_BIG_ENDIAN_FLOAT32 = np.dtype(">f4")

# A vector, or the list that will hold its numbers.
QueryVector = Vectors | list[float]
# What stands in a vector field of a document: a vector, or objects of passages that hold one each.
FieldValue = str | Vectors | list[dict[str, Any]]


def vector_value(info: EngineInfo, vector: Vectors) -> str | list[float]:
    """One vector as a JSON value for a document or a bulk action.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32.

    Returns:
        Base64 where the engine takes it, which spares it the parsing of numbers; else a list.
    """
    return _encode_base64(vector) if info.supports_base64_vectors else to_float_list(vector)


def bulk_vector_value(info: EngineInfo, vector: Vectors) -> str | Vectors:
    """As `vector_value`, for bodies that orjson writes: where numbers are sent, it writes the array itself.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32.
    """
    return _encode_base64(vector) if info.supports_base64_vectors else vector


def chunk_values(info: EngineInfo, spans: Sequence[tuple[int, int]], vectors: Vectors) -> list[dict[str, Any]]:
    """The passages of a document, for bodies that orjson writes.

    Args:
        spans: First character of each passage in the document's text, and the one behind its last.
        vectors: *Shape:* ``(passages, dimensions)`` float32.
    """
    return [
        {CHUNK_START: start, CHUNK_END: end, CHUNK_VECTOR: bulk_vector_value(info, vector)}
        for (start, end), vector in zip(spans, vectors, strict=True)
    ]


def to_bulk_value(info: EngineInfo, value: Any) -> FieldValue:
    """What stands in a vector field, as read from the engine, in the form in which it is written."""
    if isinstance(value, dict):
        value = [value]  # engines give a single passage back as they got it, other writers may not
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [
            {**passage, CHUNK_VECTOR: bulk_vector_value(info, read_vector(passage[CHUNK_VECTOR]))} for passage in value
        ]
    return bulk_vector_value(info, read_vector(value))


def to_float_list(vector: QueryVector) -> list[float]:
    """A vector as numbers with as few digits as float32 needs: half the characters of Python's own.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32. A list comes back as the very object that it is.
    """
    if isinstance(vector, list):
        return vector
    encoded = orjson.dumps(np.ascontiguousarray(vector, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
    numbers: list[float] = orjson.loads(encoded)
    return numbers


def _encode_base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype(_BIG_ENDIAN_FLOAT32).tobytes()).decode("ascii")


def read_stored_vectors(value: Any, length: int) -> list[tuple[int, int, Vectors]]:
    """All vectors that stand in a vector field of a document, as read from the engine.

    Args:
        length: Of the document's text: the end of a vector that stands for all of it.

    Returns:
        First character and the one behind the last of what each vector stands for, and the vector ``(dimensions,)``.
    """
    passages = [value] if isinstance(value, dict) else value
    if isinstance(passages, list) and passages and isinstance(passages[0], dict):
        return [
            (int(passage[CHUNK_START]), int(passage[CHUNK_END]), read_vector(passage[CHUNK_VECTOR]))
            for passage in passages
        ]
    return [(0, length, read_vector(value))]


def read_vector(value: str | list[float]) -> Vectors:
    """The inverse of `vector_value`, for both shapes.

    Returns:
        *Shape:* ``(dimensions,)`` float32.
    """
    if isinstance(value, str):
        wire: NDArray[np.float32] = np.frombuffer(base64.b64decode(value, validate=True), dtype=_BIG_ENDIAN_FLOAT32)
        return wire.astype(np.float32)
    return np.asarray(value, dtype=np.float32)


def json_bytes(value: Json) -> bytes:
    """JSON on one line; arrays of float32 are written with the fewest digits that give the same float32 again."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def append_members(source: bytes, added: Json) -> bytes:
    """An object with members put at its end; its own bytes stay as they are.

    Args:
        source: A JSON object without white space around it.
    """
    if not added:
        return source
    comma = b"" if source[1:-1].isspace() or len(source) == 2 else b","
    return b"".join((source[:-1], comma, json_bytes(added)[1:]))


class HasBody(Protocol):
    """Lines of a bulk request."""

    @property
    def body(self) -> bytes: ...


_Body = TypeVar("_Body", bound=HasBody)


def bulk_bodies(actions: Iterable[_Body], max_bytes: int) -> Iterator[list[_Body]]:
    """Actions in groups of at most `max_bytes`; a larger action goes alone."""
    group: list[_Body] = []
    size = 0
    for action in actions:
        if group and size + len(action.body) > max_bytes:
            yield group
            group, size = [], 0
        group.append(action)
        size += len(action.body)
    if group:
        yield group
