"""Indices that return other documents than the ones that were sent: each kind of `_source`, and each command.

The rows of the table in docs/reliability.md. What the gateway does is in tests/gateway/writes/test_copied_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_sbert.analysis import read_index
from es_sbert.analysis.field_writer import FieldWriter
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import VectorIndexError
from es_sbert.index.adopt import adopt_vectors
from es_sbert.index.document_vectors import to_float_list
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import ensure_vector_field
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.migrate import migrate_index
from tests.engine.ingest_support import Rounds, contents, load, put, same_vectors, update, vector_of, write_jsonl
from tests.engine.vectors import request_for, vector_mapping
from tests.raised import raises_as_recorded

SYNTHETIC = {"index.mapping.source.mode": "synthetic"}
KEPT = SYNTHETIC | {"index.mapping.synthetic_source_keep": "arrays"}
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stored": ({}, {}),
    "synthetic": (SYNTHETIC, {}),
    "kept": (KEPT, {}),
    "logsdb": ({"index.mode": "logsdb"}, {}),
    "mapped": ({}, {"_source": {"mode": "synthetic"}}),  # on Elasticsearch 8; 9 ignores it
}
TEXT = "{text} {tags}"
PROPERTIES = {
    "@timestamp": {"type": "date"},
    "text": {"type": "text"},
    "tags": {"type": "keyword"},
    "notes": {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": 10}}},
    "rank": {"type": "half_float"},
    "parts": {"properties": {"name": {"type": "keyword"}, "day": {"type": "date"}}},
}
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "text": "a man plays guitar", "tags": ["river", "bread", "river"], "rank": 0.1, "none": None},
    {"id": "b", "text": "the cat sleeps", "tags": ["storm"], "parts": [{"name": "z"}, {"day": "2026-01-02"}]},
    {"id": "c", "text": "winter", "tags": None, "notes": ["z", "a"], "empty": [], "extra": ["v", "u", "v"]},
]  # fmt: skip


# Vectors whose last digit changes with each copy, because Elasticsearch stores them normalized.
THEIRS = [[-1.05, 2.23, 2.4, -2.89], [2.46, -2.81, -1.1, 2.42], [0.64, -1.43, 0.16, -2.17]]


def documents() -> list[dict[str, Any]]:
    return [{"@timestamp": "2026-01-01T00:00:00Z", **document} for document in DOCUMENTS]


Place = tuple[Engine, str, str]
WORKING = ["opensearch-stored", "es9-stored", "es9-synthetic", "es9-kept", "es9-logsdb", "es8-synthetic", "es8-mapped"]


@pytest.fixture
def place(
    request: pytest.FixtureRequest, open_engine: Callable[[str], Engine], fresh_index: Callable[[str], str]
) -> Place:
    """An engine, the name of a new index, and the kind of its `_source`."""
    name, _, mode = request.param.partition("-")
    engine = open_engine(request.getfixturevalue(f"{name}_url"))
    return engine, fresh_index(engine.info.url), mode


def create(engine: Engine, index: str, mode: str, **properties: Any) -> None:
    settings, mappings = MODES[mode]
    if engine.info.engine_type is EngineType.OPENSEARCH:
        settings = settings | {"index.knn": True}
    engine.create_index(index, {"settings": settings, "mappings": mappings | {"properties": PROPERTIES | properties}})


def write(engine: Engine, index: str, found: list[dict[str, Any]]) -> None:
    put(engine, index, found)
    engine.refresh(index)


def plain(engine: Engine, index: str) -> dict[str, Any]:
    """The documents without what es-sbert added."""
    ours = ("_version", "embedding", "embedding_meta", "vector", "vector_meta")
    found = contents(engine.info.url, index)
    return {key: {name: value for name, value in source.items() if name not in ours} for key, source in found.items()}


def assert_current(engine: Engine, encoder: Encoder, index: str, field: str = "embedding") -> None:
    """Every document with a text has the vector of the text that the index returns."""
    for source in contents(engine.info.url, index).values():
        if "text" not in source:
            continue
        text = TextTemplate.parse(TEXT).render(source)
        assert same_vectors(vector_of(source, field), encoder.encode([text], "document")[0]), source


@pytest.mark.parametrize("place", WORKING, indirect=True)
def test_embedding_in_place_and_field_writer_keep_every_field(place: Place, tiny: Encoder, tmp_path: Path) -> None:
    engine, index_name, mode = place
    create(engine, index_name, mode)
    write(engine, index_name, documents())
    before, url, dead = plain(engine, index_name), engine.info.url, tmp_path / "dead"
    summary = load(url, tiny, index_name, dead=dead, text_template=TEXT)
    assert (summary.indexed, summary.exit_code) == (3, 0)
    assert_current(engine, tiny, index_name)
    assert plain(engine, index_name) == before
    assert load(url, tiny, index_name, dead=dead).unchanged == 3
    writer = FieldWriter(engine, index_name, "embedding", "group", policy=RetryPolicy(60))
    texts = read_index(index_name, engine, "embedding", fields=["group"])
    assert writer.write(writer.plan(texts, {}, own_ids=True)).written == 3
    grouped = {key: source | {"group": key} for key, source in before.items()}
    assert plain(engine, index_name) == grouped
    assert load(url, tiny, index_name, dead=dead).unchanged == 3
    update(engine, index_name, {"a": {"text": "bread", "tags": ["z", "a"]}})
    control, rounds = LoadControl(), Rounds()
    control.stop_reading = rounds
    rounds.set()
    summary = load(url, tiny, index_name, dead=dead, watch_seconds=0.1, control=control)
    assert summary.indexed == 1
    assert_current(engine, tiny, index_name)


@pytest.mark.parametrize("place", ["es9-synthetic", "es9-logsdb", "es8-mapped"], indirect=True)
def test_files_are_refused_where_texts_may_come_back_in_another_form(
    place: Place, tiny: Encoder, tmp_path: Path
) -> None:
    engine, index_name, mode = place
    create(engine, index_name, mode)
    before = engine.get_index(index_name)
    path, dead = write_jsonl(tmp_path / "docs.jsonl", documents()), tmp_path / "dead"
    with raises_as_recorded(VectorIndexError):
        load(engine.info.url, tiny, index_name, path, dead=dead, id_field="id", text_template=TEXT)
    assert (engine.get_index(index_name), engine.count(index_name)) == (before, 0)


@pytest.mark.parametrize("place", ["es9-synthetic", "es9-logsdb", "es8-mapped"], indirect=True)
def test_vectors_are_adopted_and_migrated(
    place: Place, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path
) -> None:
    engine, index_name, mode = place
    dead, theirs = tmp_path / "dead", vector_mapping(engine, 4, index_options={"type": "hnsw"})
    create(engine, index_name, mode, vector=vector_mapping(engine, tiny.info.dimensions), theirs=theirs)
    template = TextTemplate.parse(TEXT)
    write(engine, index_name, documents())
    texts = [template.render(plain(engine, index_name)[document["id"]]) for document in DOCUMENTS]
    vectors = [to_float_list(vector) for vector in tiny.encode(texts, "document")]
    write(engine, index_name, [one | {"vector": vector} for one, vector in zip(documents(), vectors, strict=True)])
    before = plain(engine, index_name)
    report = adopt_vectors(index_name, engine, encoder=tiny, vector_field="vector", text_template=template.template)
    assert report.written is not None
    assert report.written.adopted == 3
    assert plain(engine, index_name) == before
    assert load(engine.info.url, tiny, index_name, dead=dead, vectors=("vector",)).unchanged == 3
    load(engine.info.url, tiny, index_name, dead=dead, vectors=(f"embedding={TEXT}",))
    at = {"@timestamp": "2026-01-01T00:00:00Z"}
    write(engine, index_name, [{"id": str(row), "theirs": vector, **at} for row, vector in enumerate(THEIRS)])
    before = plain(engine, index_name)
    alias = fresh_index(engine.info.url)
    engine.update_aliases([{"add": {"index": index_name, "alias": alias}}])
    wanted = {"vector_field": "vector", "index_type": "hnsw"}
    result = migrate_index(alias, engine, encoder=tiny, dead_letters=dead, retry_seconds=60, **wanted)
    try:
        after = plain(engine, alias)
        for key, source in before.items():
            if "theirs" in source:
                assert same_vectors(vector_of(after[key], "theirs"), vector_of(source, "theirs"))
            assert after[key] | {"theirs": None} == source | {"theirs": None}
        for field in ("vector", "embedding"):
            assert_current(engine, tiny, alias, field)
    finally:
        engine.delete_index(result.target)


# Kind → settings and mapping.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "disabled": ({"index.mapping.source.mode": "disabled"}, {}),
    "mapped": ({}, {"_source": {"mode": "disabled"}}),
    "time_series": (
        {
            "index.mode": "time_series",
            "index.routing_path": ["tags"],
            "index.time_series.start_time": "2026-01-01T00:00:00Z",
            "index.time_series.end_time": "2026-12-31T00:00:00Z",
        },
        {"properties": PROPERTIES | {"tags": {"type": "keyword", "time_series_dimension": True}}},
    ),
    "columnar": ({"index.mode": "columnar"}, {}),
    "derived": ({"index.derived_source.enabled": True}, {}),
}


@pytest.mark.parametrize(
    "place",
    ["es9-disabled", "es8-disabled", "es8-mapped", "es9-time_series", "es8-time_series", "es9-columnar",
     "opensearch-derived"],
    indirect=True,
)  # fmt: skip
def test_index_that_cannot_keep_vectors_is_refused_before_a_write(place: Place, tiny: Encoder, tmp_path: Path) -> None:
    engine, index, kind = place
    settings, mappings = REFUSED[kind]
    engine.create_index(index, {"settings": settings, "mappings": {"properties": PROPERTIES} | mappings})
    path, dead = write_jsonl(tmp_path / "docs.jsonl", documents()), tmp_path / "dead"
    before = engine.get_index(index)
    sources: list[tuple[list[Path], dict[str, Any]]] = [
        ([], {}), ([path], {"id_field": "id"}), ([], {"watch_seconds": 1}), ([], {"dry_run": 3}),
    ]  # fmt: skip
    for files, options in sources:
        with raises_as_recorded(VectorIndexError):
            load(engine.info.url, tiny, index, *files, dead=dead, text_template=TEXT, **options)
    if kind == "derived":
        with raises_as_recorded(VectorIndexError):
            ensure_vector_field(engine, index, request_for(tiny, text="{text}"))
    assert engine.get_index(index) == before
    assert engine.count(index) == 0
