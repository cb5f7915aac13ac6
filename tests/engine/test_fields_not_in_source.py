"""Fields that `_source` leaves out: each command that rewrites documents refuses before its first write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.analysis.field_writer import FieldWriter
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import VectorIndexError
from es_sbert.index.adopt import adopt_vectors
from es_sbert.index.mapping import IndexType, document_meta_field
from es_sbert.index.vector_field import ensure_vector_field
from es_sbert.migration.migrate import migrate_index
from tests.engine.ingest_support import bulk, load, sentences
from tests.engine.vectors import request_for, state_of, vector_value
from tests.raised import raises_as_recorded

Writer = Callable[[Engine, str, Encoder, Path], object]
POLICY = RetryPolicy(30)


def move(engine: Engine, index: str, encoder: Encoder, dead: Path) -> None:
    wanted = {"name": f"{index}-new", "replace_index": True, "index_type": str(IndexType.INT8_HNSW)}
    migrate_index(index, engine, encoder=encoder, dead_letters=dead, retry_seconds=30, **wanted)


def adopt(engine: Engine, index: str, encoder: Encoder) -> None:
    adopt_vectors(index, engine, encoder=encoder, vector_field="vector", text_template="{text}")


WRITERS: dict[str, Writer] = {
    "write a field": lambda engine, index, *_: FieldWriter(engine, index, "embedding", "group", policy=POLICY),
    "embed in place": lambda engine, index, tiny, dead: load(engine.info.url, tiny, index, dead=dead),
    "adopt": lambda engine, index, tiny, _: adopt(engine, index, tiny),
    "migrate": lambda engine, index, tiny, dead: move(engine, index, tiny, dead),
}


@pytest.mark.parametrize(
    "source",
    [{"excludes": ["secret"]}, {"includes": ["text", "embedding*", "vector*"]}, {"enabled": False}],
    ids=["excludes", "includes", "disabled"],
)
def test_every_writer_refuses_before_a_field_is_lost(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path, source: Json
) -> None:
    knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    properties = {"secret": {"type": "keyword"}, "text": {"type": "text"}}
    engine.create_index(index_name, {"settings": knn, "mappings": {"_source": source, "properties": properties}})
    for name in ("embedding", "vector"):
        ensure_vector_field(engine, index_name, request_for(tiny, name=name, text="{text}"))
    lines = []
    for document in sentences(6):
        value = vector_value(engine.info, tiny.encode([document["text"]], "document")[0])
        vectors = {"embedding": value, "vector": value, document_meta_field("embedding"): {"fingerprint": "x"}}
        lines += [{"index": {"_id": document["id"]}}, {"text": document["text"], "secret": "s", **vectors}]
    bulk(engine, index_name, *lines)
    engine.refresh(index_name)
    state = state_of(engine, index_name)
    # The vectors of another program, which can be adopted.
    entry = state.mappings["_meta"]["es_sbert"]["fields"]
    engine.put_mapping(index_name, {"_meta": {"es_sbert": {"fields": {"embedding": entry["embedding"]}}}})
    before = state_of(engine, index_name)

    for name, write in WRITERS.items():
        with raises_as_recorded(VectorIndexError):
            write(engine, index_name, tiny, tmp_path / "dead")
        engine.refresh(index_name)
        for field in ("secret", "embedding", "vector"):
            assert engine.count(index_name, {"exists": {"field": field}}) == 6, (name, field)
        after = state_of(engine, index_name)
        assert after.mappings == before.mappings, name
        assert engine.get_index(f"{index_name}-new") is None
