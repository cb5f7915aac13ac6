"""Random vectors in a real index, for the tests of search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import bulk_vector_value, to_float_list
from es_sbert.vectors import Vectors


def vector_value(info: EngineInfo, vector: Vectors) -> str | list[float]:
    """A vector as a JSON value of a document: base64 if the engine accepts it, else a list."""
    value = bulk_vector_value(info, vector)
    return value if isinstance(value, str) else to_float_list(value)


def random_vectors(count: int, dimensions: int, seed: int = 0) -> Vectors:
    """*Shape:* ``(count, dimensions)`` float32, of any length: cosine must not mind."""
    return np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)


def cosines(query: Vectors, vectors: Vectors) -> Vectors:
    """Cosine of a query ``(dimensions,)`` with each of ``(count, dimensions)``, in float64. *Shape:* ``(count,)``."""
    q, v = query.astype(np.float64), vectors.astype(np.float64)
    result: Vectors = v @ q / (np.linalg.norm(v, axis=1) * np.linalg.norm(q))
    return result


def load(
    engine: Engine,
    index: str,
    field: str,
    vectors: Vectors,
    document: Callable[[int], Json],
    routing: str | None = None,
) -> None:
    """Index `document(i)` with vector i under the id `str(i)`, and make all of it searchable."""
    for start in range(0, len(vectors), 1000):
        lines = []
        for number in range(start, min(start + 1000, len(vectors))):
            lines.append(orjson.dumps({"index": {"_id": str(number)} | ({"routing": routing} if routing else {})}))
            lines.append(orjson.dumps(document(number) | {field: vector_value(engine.info, vectors[number])}))
        results = engine.bulk(index, b"\n".join(lines) + b"\n")
        assert all(result.ok for result in results), results[0]
    engine.refresh(index)
