"""Vectors as the engines take and give them."""

from __future__ import annotations

import base64

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import EngineInfo

# Elasticsearch reads a base64 vector as big-endian numbers, whatever the machines involved.
_WIRE = np.dtype(">f4")


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


def vector_list(vector: Vectors) -> list[float]:
    """A vector as numbers with as few digits as float32 needs: half the characters of Python's own.

    Args:
        vector: *Shape:* ``(dimensions,)`` float32.
    """
    encoded = orjson.dumps(np.ascontiguousarray(vector, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
    numbers: list[float] = orjson.loads(encoded)
    return numbers


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype(_WIRE).tobytes()).decode("ascii")


def read_vector(value: str | list[float]) -> Vectors:
    """The inverse of `vector_value`, for both shapes.

    Returns:
        *Shape:* ``(dimensions,)`` float32.
    """
    if isinstance(value, str):
        wire: NDArray[np.float32] = np.frombuffer(base64.b64decode(value, validate=True), dtype=_WIRE)
        return wire.astype(np.float32)
    return np.asarray(value, dtype=np.float32)
