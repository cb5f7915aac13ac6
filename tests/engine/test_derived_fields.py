"""Fields that the engine fills, as the text of a load; and mappings that keep other fields than they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from es_sbert import SemanticIndex
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, IndexMismatch, SourceError, UsageError
from es_sbert.index.index_summary import describe_index
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import ensure_vector_field
from es_sbert.migration.prepare_migration import check_template_fields
from tests.engine.ingest_support import Loads, bulk
from tests.engine.vectors import request_for, state_of
from tests.raised import raises_as_recorded

PROPERTIES: Json = {
    "title": {"type": "text", "copy_to": "all", "fields": {"raw": {"type": "keyword"}}},
    "parts": {"properties": {"body": {"type": "text", "copy_to": ["all"]}}},
    "all": {"type": "text"},
    "headline": {"type": "alias", "path": "title"},
}
DOCUMENT = {"title": "A river.", "parts": {"body": "It is long."}}
# Text field → the fields that a message names in its place.
FILLED = {"all": "parts.body and title", "headline": "title", "title.raw": "title"}


@pytest.fixture
def filled(engine: Engine, index_name: str) -> IndexState:
    """An index with a document and fields that the engine fills."""
    engine.create_index(index_name, {"mappings": {"properties": PROPERTIES}})
    bulk(engine, index_name, {"index": {"_id": "1"}}, DOCUMENT)
    engine.refresh(index_name)
    return state_of(engine, index_name)


@pytest.mark.parametrize("field", FILLED)
def test_text_field_that_only_the_mapping_has_is_refused(
    engine: Engine, filled: IndexState, tiny_loads: Loads, field: str
) -> None:
    """By every command that takes one, before the mapping is changed; the message names the fields to take."""
    index, load = filled.name, tiny_loads.load
    path = tiny_loads.write([DOCUMENT | {"id": "2"}])
    refused: list[tuple[type[EsSbertError], Callable[[], object]]] = [
        (SourceError, lambda: load(text_fields=(field,))),
        (SourceError, lambda: load(text_template=f"{{title}} {{{field}}}")),
        (SourceError, lambda: load(path, id_field="id", text_fields=(field,))),
        (IndexMismatch, lambda: SemanticIndex.create(index, engine, encoder=tiny_loads.encoder, text_fields=[field])),
        (UsageError, lambda: check_template_fields(engine, filled, TextTemplate.from_fields([field]))),
    ]
    for kind, command in refused:
        with raises_as_recorded(kind):
            command()
        assert state_of(engine, index) == filled
        assert not tiny_loads.dead.exists()


@pytest.mark.usefixtures("filled")
def test_documents_may_bring_the_target_of_copy_to(tiny_loads: Loads) -> None:
    path = tiny_loads.write([{"id": "2", "all": "A storm."}])
    assert tiny_loads.load(path, id_field="id", text_fields=("all",)).indexed == 1
    assert "embedding" in tiny_loads.contents()["2"]


# OpenSearch has no `subobjects: false`.
@pytest.mark.parametrize("engine_url", ["es9", "es8"], indirect=True, scope="session")
def test_flat_mapping_takes_vectors_or_refuses_them(engine: Engine, tiny_loads: Loads) -> None:
    index, encoder = tiny_loads.index, tiny_loads.encoder
    properties = {"id": {"type": "keyword"}, "o.text": {"type": "text"}}
    engine.create_index(index, {"mappings": {"subobjects": False, "dynamic": "strict", "properties": properties}})
    path = tiny_loads.write([{"id": "1", "o": {"text": "A river."}}, {"id": "2", "o.text": "Bread."}])
    options: dict[str, Any] = {"id_field": "id", "text_fields": ("o.text",)}
    if engine.info.version < (9, 0, 0):
        before = state_of(engine, index)
        with raises_as_recorded(IndexMismatch):
            ensure_vector_field(engine, index, request_for(encoder))
        assert state_of(engine, index) == before
        engine.put_mapping(index, {"dynamic": False})
        # It makes flat fields of passages, in which no document can be indexed.
        with raises_as_recorded(IndexMismatch):
            tiny_loads.load(path, passages=16, **options)
    assert tiny_loads.load(path, **options).indexed == 2
    assert tiny_loads.load(path, **options).unchanged == 2
    summary = describe_index(engine, index)
    assert (summary.other_fields, summary.fields[0].current) == (("id", "o.text"), 2)
    with SemanticIndex(index, engine, encoder=encoder) as opened:
        assert opened.search("A river.", 1).hits[0].id == "1"
