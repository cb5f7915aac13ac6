"""Fields that the engine fills, as the text of a load; and mappings that keep other fields than they were given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, IndexMismatch, SourceError, UsageError
from es_sbert.index.index_summary import describe_index
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import ensure_vector_field
from es_sbert.migration.prepare_migration import check_template_fields
from es_sbert.search import SemanticIndex
from tests.engine.ingest_support import contents, load, write_jsonl
from tests.engine.vectors import request_for, state_of

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
    engine.bulk(index_name, b'{"index":{"_id":"1"}}\n' + orjson.dumps(DOCUMENT) + b"\n")
    engine.refresh(index_name)
    return state_of(engine, index_name)


@pytest.mark.parametrize("field", FILLED)
def test_text_field_that_only_the_mapping_has_is_refused(
    engine: Engine, engine_url: str, filled: IndexState, tiny: Encoder, tmp_path: Path, field: str
) -> None:
    """By every command that takes one, before the mapping is changed; the message names the fields to take."""
    index, dead = filled.name, tmp_path / "dead"
    path = write_jsonl(tmp_path / "docs.jsonl", [DOCUMENT | {"id": "2"}])
    refused: list[tuple[type[EsSbertError], Callable[[], object]]] = [
        (SourceError, lambda: load(engine_url, tiny, index, dead=dead, text_fields=(field,))),
        (SourceError, lambda: load(engine_url, tiny, index, dead=dead, text_template=f"{{title}} {{{field}}}")),
        (SourceError, lambda: load(engine_url, tiny, index, path, dead=dead, id_field="id", text_fields=(field,))),
        (IndexMismatch, lambda: SemanticIndex.create(index, engine, encoder=tiny, text_fields=[field])),
        (UsageError, lambda: check_template_fields(engine, filled, TextTemplate.from_fields([field]))),
    ]
    for kind, command in refused:
        with pytest.raises(kind, match=field) as told:
            command()
        assert f"Documents contain only {FILLED[field]}: use that instead." in told.value.remedy
        assert state_of(engine, index) == filled
        assert not dead.exists()


def test_text_of_a_present_field_is_checked_too(engine: Engine, filled: IndexState, tiny: Encoder) -> None:
    ensure_vector_field(engine, filled.name, request_for(tiny))
    with pytest.raises(IndexMismatch, match="do not contain the text field all, only its mapping does"):
        ensure_vector_field(engine, filled.name, request_for(tiny, text="{all}"))
    assert ensure_vector_field(engine, filled.name, request_for(tiny, text="{parts.body}")).meta.text == "{parts.body}"


def test_documents_may_bring_the_target_of_copy_to(
    engine: Engine, engine_url: str, filled: IndexState, tiny: Encoder, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl", [{"id": "2", "all": "A storm."}])
    summary = load(engine_url, tiny, filled.name, path, dead=tmp_path / "dead", id_field="id", text_fields=("all",))
    assert (summary.indexed, "embedding" in contents(engine_url, filled.name)["2"]) == (1, True)


@pytest.fixture(params=["es9", "es8"])
def flat(request: pytest.FixtureRequest, open_engine: Callable[[str], Engine], fresh_index: Any) -> tuple[Engine, str]:
    """An index whose mapping has `subobjects: false`, which OpenSearch lacks."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    engine, index = open_engine(url), fresh_index(url)
    properties = {"id": {"type": "keyword"}, "o.text": {"type": "text"}}
    engine.create_index(index, {"mappings": {"subobjects": False, "dynamic": "strict", "properties": properties}})
    return engine, index


def make_dynamic(engine: Engine, index: str) -> None:
    """Elasticsearch 8 rejects objects under `dynamic: strict`."""
    engine.put_mapping(index, {"dynamic": False})


def test_flat_and_strict_mapping_is_refused_where_it_rejects_objects(
    flat: tuple[Engine, str], tiny: Encoder, tmp_path: Path
) -> None:
    engine, index = flat
    before = state_of(engine, index)
    if engine.info.version >= (9, 0, 0):
        assert ensure_vector_field(engine, index, request_for(tiny)).index == index
        return
    with pytest.raises(IndexMismatch, match="`subobjects: false`, with which Elasticsearch 8"):
        ensure_vector_field(engine, index, request_for(tiny))
    assert state_of(engine, index) == before


def test_flat_mapping_takes_vectors(flat: tuple[Engine, str], tiny: Encoder, tmp_path: Path) -> None:
    engine, index = flat
    path = write_jsonl(
        tmp_path / "docs.jsonl", [{"id": "1", "o": {"text": "A river."}}, {"id": "2", "o.text": "Bread."}]
    )
    options: dict[str, Any] = {"dead": tmp_path / "dead", "id_field": "id", "text_fields": ("o.text",)}
    if engine.info.version < (9, 0, 0):
        make_dynamic(engine, index)
    assert load(engine.info.url, tiny, index, path, **options).indexed == 2
    assert load(engine.info.url, tiny, index, path, **options).unchanged == 2
    summary = describe_index(engine, index)
    assert (summary.other_fields, summary.fields[0].current) == (("id", "o.text"), 2)
    with SemanticIndex(index, engine, encoder=tiny) as opened:
        assert opened.search("A river.", 1).hits[0].id == "1"


def test_flat_mapping_takes_passages_or_refuses_them(flat: tuple[Engine, str], tiny: Encoder, tmp_path: Path) -> None:
    """Elasticsearch 8 makes flat fields of them, in which no document can be indexed."""
    engine, index = flat
    before = state_of(engine, index)
    path = write_jsonl(tmp_path / "docs.jsonl", [{"id": "1", "o": {"text": "A river. " * 20}}])
    options: dict[str, Any] = {"dead": tmp_path / "dead", "id_field": "id", "text_fields": ("o.text",)}
    if engine.info.version < (9, 0, 0):
        with pytest.raises(IndexMismatch, match="`subobjects: false`, with which Elasticsearch 8.* keeps no passages"):
            load(engine.info.url, tiny, index, path, passages=16, **options)
        assert state_of(engine, index) == before
        return
    assert load(engine.info.url, tiny, index, path, passages=16, **options).indexed == 1
    with SemanticIndex(index, engine, encoder=tiny) as opened:
        [hit] = opened.search("A river.", 1)
        assert hit.passage is not None
