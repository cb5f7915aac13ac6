"""An index moved to vectors of bytes and back to floats, on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.mapping import ElementType
from es_sbert.index.vector_field import read_vector_field
from es_sbert.search import SemanticIndex
from tests.engine.migration.support import Place, document, make_place

COUNT = 40


@pytest.fixture
def small(engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> Iterator[Place]:
    yield from make_place(engine, encoders[0], tmp_path / "dead.jsonl", COUNT, shards=1)


def test_vectors_become_bytes_and_floats_again(small: Place, encoders: tuple[Encoder, Encoder]) -> None:
    with pytest.raises(UsageError, match="int8_hnsw quantizes vectors of floats") as refused:
        small.migrate(encoders[0], element_type="byte", index_type="int8_hnsw")
    assert '`index_type="hnsw"` with `element_type="byte"`' in refused.value.remedy
    result = small.migrate(encoders[0], element_type="byte")
    assert (result.finished, result.embedded, result.compared) == (True, COUNT, COUNT)
    assert read_vector_field(small.engine, small.alias, "embedding").meta.element_type is ElementType.BYTE
    found = small.contents()
    made = encoders[0].encode([source["text"] for source in found.values()], "document")
    stored = np.stack([read_vector(source["embedding"], ElementType.BYTE) for source in found.values()])
    assert np.abs(stored - quantize_vectors(made).astype(np.float32)).max() <= 1
    with SemanticIndex(small.alias, small.engine, encoder=encoders[0]) as index:
        assert index.search(found["5"]["text"], 1).hits[0].cosine > 0.99
    with pytest.raises(IndexMismatch, match="which has vectors of"):
        small.migrate(encoders[0], element_type="byte")

    back = small.migrate(encoders[0], element_type="float", name=f"{small.alias}-floats")
    assert (back.finished, back.embedded) == (True, COUNT)
    assert read_vector_field(small.engine, small.alias, "embedding").meta.element_type is ElementType.FLOAT
    small.assert_holds({str(number): document(number) for number in range(COUNT)}, encoders[0])
