"""An index whose index type was changed in place by another program."""

from __future__ import annotations

import pytest

from es_sbert.diagnostics.index_advice import advise
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import read_vector_field, require_index
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.settings import AdviceRequest
from tests.engine.migration.support import Place, everything, text_of
from tests.raised import raises_as_recorded


def test_index_of_a_changed_type_is_loaded_searched_and_moved_but_not_measured(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, encoder = place.engine, encoders[0]
    if engine.info.engine_type is not EngineType.ELASTICSEARCH:
        pytest.skip("OpenSearch changes no index type in place")
    mapped = require_index(engine, place.index).mappings["properties"]["embedding"]
    changed = mapped | {"index_options": {"type": "int8_hnsw"}}
    engine.put_mapping(place.index, {"properties": {"embedding": changed}})
    with SemanticIndex(place.index, engine, encoder=encoder) as index:
        index.add([{"_id": "new", "text": text_of(1000)}])
        engine.refresh(place.index)
        assert index.search(text_of(1000), k=1).hits[0].id == "new"
    field = read_vector_field(engine, place.index, "embedding")
    with raises_as_recorded(IndexMismatch):
        advise(engine, place.index, field, AdviceRequest())

    assert place.migrate(encoder, index_type="int8_hnsw").finished
    place.assert_holds(everything() | {"new": {"text": text_of(1000)}}, encoder)
