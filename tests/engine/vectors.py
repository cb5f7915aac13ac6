"""Random vectors in a real index, for the tests of search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import bulk_vector_value, to_float_list
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.vector_field import FieldRequest, VectorField, ensure_vector_field
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


def load(engine: Engine, index: str, field: str, vectors: Vectors, document: Callable[[int], Json]) -> None:
    """Index `document(i)` with vector i under the id `str(i)`, and make all of it searchable."""
    for start in range(0, len(vectors), 1000):
        lines = []
        for number in range(start, min(start + 1000, len(vectors))):
            lines.append(orjson.dumps({"index": {"_id": str(number)}}))
            lines.append(orjson.dumps(document(number) | {field: vector_value(engine.info, vectors[number])}))
        results = engine.bulk(index, b"\n".join(lines) + b"\n")
        assert all(result.ok for result in results), results[0]
    engine.refresh(index)


def fill(engine: Engine, index: str, count: int, dimensions: int, index_type: str = "hnsw") -> VectorField:
    """Create an index whose field `embedding` has random vectors, and return the field."""
    request = FieldRequest(
        name="embedding", fingerprint="a" * 32, model_name="model-a", dimensions=dimensions, index_type=index_type
    )
    field = ensure_vector_field(engine, index, request, shards=1, replicas=0)
    load(engine, index, "embedding", random_vectors(count, dimensions), lambda row: {"row": row})
    return field


def field_of(info: EncoderInfo, text: str = "{text}", **changes: Any) -> VectorFieldMeta:
    """Metadata of a vector field with the vectors of an encoder."""
    known = {"fingerprint": info.fingerprint, "model": info.model, "dimensions": info.dimensions, "index_type": "hnsw"}
    return VectorFieldMeta(**known | {"text": text} | changes)


def request_for(encoder: Encoder, **changes: Any) -> FieldRequest:
    """The request for the vector field `embedding` of an encoder."""
    info = encoder.info
    known: dict[str, Any] = {"name": "embedding", "fingerprint": info.fingerprint, "model_name": info.model}
    return FieldRequest(**known | {"dimensions": info.dimensions} | changes)


def vector_mapping(engine: Engine, dimensions: int, **changes: Any) -> Json:
    """The mapping of a vector field as an application would make it, without es-sbert."""
    if engine.info.engine_type is EngineType.ELASTICSEARCH:
        return {"type": "dense_vector", "dims": dimensions, "similarity": "cosine"} | changes
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
    return {"type": "knn_vector", "dimension": dimensions, "method": method} | changes


def state_of(engine: Engine, index: str) -> IndexState:
    """The state of an index that exists."""
    state = engine.get_index(index)
    assert state is not None
    return state
