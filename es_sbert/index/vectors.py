"""Vectors as the engines take and give them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import EngineInfo
from es_sbert.index.layout import PASSAGE_END, PASSAGE_START, PASSAGE_VECTOR

# Elasticsearch reads a base64 vector as big-endian numbers, whatever the machines involved.
_WIRE = np.dtype(">f4")

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
    return _base64(vector) if info.takes_base64_vectors else vector_list(vector)


def bulk_value(info: EngineInfo, vector: Vectors) -> str | Vectors:
    """As `vector_value`, for bodies that orjson writes: where numbers are sent, it writes the array itself.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32.
    """
    return _base64(vector) if info.takes_base64_vectors else vector


def passage_values(info: EngineInfo, spans: Sequence[tuple[int, int]], vectors: Vectors) -> list[dict[str, Any]]:
    """The passages of a document, for bodies that orjson writes.

    Args:
        spans: First character of each passage in the document's text, and the one behind its last.
        vectors: *Shape:* ``(passages, dimensions)`` float32.
    """
    return [
        {PASSAGE_START: start, PASSAGE_END: end, PASSAGE_VECTOR: bulk_value(info, vector)}
        for (start, end), vector in zip(spans, vectors, strict=True)
    ]


def sent_again(info: EngineInfo, value: Any) -> FieldValue:
    """What stands in a vector field, as read from the engine, in the form in which it is written."""
    if isinstance(value, dict):
        value = [value]  # engines give a single passage back as they got it, other writers may not
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [
            {**passage, PASSAGE_VECTOR: bulk_value(info, read_vector(passage[PASSAGE_VECTOR]))} for passage in value
        ]
    return bulk_value(info, read_vector(value))


def vector_list(vector: QueryVector) -> list[float]:
    """A vector as numbers with as few digits as float32 needs: half the characters of Python's own.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32. A list comes back as the very object that it is.
    """
    if isinstance(vector, list):
        return vector
    encoded = orjson.dumps(np.ascontiguousarray(vector, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
    numbers: list[float] = orjson.loads(encoded)
    return numbers


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype(_WIRE).tobytes()).decode("ascii")


def stored_vectors(value: Any, length: int) -> list[tuple[int, int, Vectors]]:
    """All vectors that stand in a vector field of a document, as read from the engine.

    Args:
        length: Of the document's text: the end of a vector that stands for all of it.

    Returns:
        First character and the one behind the last of what each vector stands for, and the vector ``(dimensions,)``.
    """
    passages = [value] if isinstance(value, dict) else value
    if isinstance(passages, list) and passages and isinstance(passages[0], dict):
        return [
            (int(passage[PASSAGE_START]), int(passage[PASSAGE_END]), read_vector(passage[PASSAGE_VECTOR]))
            for passage in passages
        ]
    return [(0, length, read_vector(value))]


def read_vector(value: str | list[float]) -> Vectors:
    """The inverse of `vector_value`, for both shapes.

    Returns:
        *Shape:* ``(dimensions,)`` float32.
    """
    if isinstance(value, str):
        wire: NDArray[np.float32] = np.frombuffer(base64.b64decode(value, validate=True), dtype=_WIRE)
        return wire.astype(np.float32)
    return np.asarray(value, dtype=np.float32)
