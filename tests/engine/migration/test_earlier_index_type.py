"""An index whose index type was changed in place: by another program, or by a version of es-sbert that could."""

from __future__ import annotations

import pytest

from es_sbert.diagnostics.index_advice import advise
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.index.mapping import META_KEY
from es_sbert.index.vector_field import read_vector_field, require_index
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.settings import AdviceRequest
from tests.engine.migration.support import Place, everything, text_of


def change_type_in_place(place: Place, *, noted: bool) -> None:
    """Change hnsw to int8_hnsw as `index change-type` did, or as Kibana does."""
    state = require_index(place.engine, place.index)
    mapped = state.mappings["properties"]["embedding"]
    meta = state.mappings["_meta"]
    if noted:
        fields = meta[META_KEY]["fields"]
        fields |= {"embedding": fields["embedding"] | {"index_type": "int8_hnsw"}}
        entry = {"index_uuid": state.uuid, "index_type": "int8_hnsw", "is_complete": True, "segments": {}}
        meta |= {META_KEY: meta[META_KEY] | {"fields": fields, "earlier_segments": {"embedding": entry}}}
    changed = mapped | {"index_options": {"type": "int8_hnsw"}}
    place.engine.put_mapping(place.index, {"_meta": meta, "properties": {"embedding": changed}})


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "by another program"])
def test_index_of_a_changed_type_is_loaded_searched_and_moved_but_not_measured(
    place: Place, encoders: tuple[Encoder, Encoder], noted: bool
) -> None:
    engine, encoder = place.engine, encoders[0]
    if engine.info.engine_type is not EngineType.ELASTICSEARCH:
        pytest.skip("OpenSearch changes no index type in place")
    change_type_in_place(place, noted=noted)
    with SemanticIndex(place.index, engine, encoder=encoder) as index:
        index.add([{"_id": "new", "text": text_of(1000)}])
        engine.refresh(place.index)
        assert index.search(text_of(1000), k=1).hits[0].id == "new"
    field = read_vector_field(engine, place.index, "embedding")
    with pytest.raises(IndexMismatch) as refused:
        advise(engine, place.index, field, AdviceRequest())
    assert f"`es-sbert index migrate {place.index} --index-type int8_hnsw`" in refused.value.remedy

    assert place.migrate(encoder, index_type="int8_hnsw").finished
    place.assert_holds(everything() | {"new": {"text": text_of(1000)}}, encoder)
