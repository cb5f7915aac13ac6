"""Other programs change documents between two loads of a source: afterwards no vector is missing or stale."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import read_stored_vectors
from tests.conftest import also_opensearch2, on_every_version
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    ask,
    load,
    put,
    same_vectors,
    update,
    wait_for_first_window,
    write_jsonl,
)
from tests.engine.sources import read_sources

WORDS = ("man", "guitar", "cat", "mat", "query", "passage")
COUNT = 20


def documents(count: int = COUNT) -> list[Json]:
    return [
        {
            "id": f"d{number}",
            "title": f"a {WORDS[number % 6]}",
            "text": " ".join(WORDS[(number + step) % 6] for step in range(2 + number)),
            "rank": number,
        }
        for number in range(count)
    ]


class Loaded:
    """A file of documents, the index that it is loaded into, and the loads."""

    def __init__(self, engine: Engine, loads: Loads, **options: Any) -> None:
        self.engine, self.loads, self.index, self.options = engine, loads, loads.index, options
        self.documents = documents()
        self.path = loads.write(self.documents)
        assert self.load()["indexed"] == COUNT

    def load(self) -> Json:
        summary = self.loads.load(self.path, id_field="id", **self.options)
        assert (summary.exit_code, summary.dead) == (0, 0)
        return {"indexed": summary.indexed, "updated": summary.updated, "unchanged": summary.unchanged}

    def write_back(self, ids: list[str]) -> None:
        """Replace documents with what a plain GET returns of each, as applications do to change a field."""
        for document_id in ids:
            found = ask(self.engine, "GET", f"/{self.index}/_doc/{document_id}")
            ask(self.engine, "PUT", f"/{self.index}/_doc/{document_id}", body=found["_source"])

    def write_without(self, ids: list[str], *fields: str) -> None:
        """Replace documents with themselves, without some fields."""
        found = read_sources(self.engine, self.index, ids, source_includes=["*"])
        put(self.engine, self.index, ({k: v for k, v in each.items() if k not in fields} for each in found.values()))

    def update(self, ids: list[str], **changed: Any) -> None:
        update(self.engine, self.index, dict.fromkeys(ids, changed))

    def assert_holds_the_source(self, **fields: str) -> None:
        """Every document is the source's, and each vector is that of the text that it has: vector field → text."""
        found = self.loads.contents()
        assert set(found) == {document["id"] for document in self.documents}
        for document in self.documents:
            there = found[document["id"]]
            assert {name: there[name] for name in document} == document
            for field, text_field in fields.items():
                text = document[text_field]
                vectors = [
                    (start, end or len(text), vector) for start, end, vector in read_stored_vectors(there[field])
                ]
                expected = self.loads.encoder.encode([text[start:end] for start, end, _ in vectors], "document")
                assert all(same_vectors(one, two) for (_, _, one), two in zip(vectors, expected, strict=True))
                # All of the text has a vector.
                assert (vectors[0][0], vectors[-1][1]) == (0, len(text))


@pytest.fixture
def loaded(engine: Engine, tiny_loads: Loads) -> Loaded:
    return Loaded(engine, tiny_loads)


def ids(begin: int, end: int) -> list[str]:
    return [f"d{number}" for number in range(begin, end)]


def test_documents_written_back_without_vectors_are_reembedded(loaded: Loaded) -> None:
    loaded.write_back(ids(0, 10))
    lost = 10 if loaded.engine.info.excludes_vectors_from_source else 0
    assert loaded.load() == {"indexed": lost, "updated": 0, "unchanged": COUNT - lost}
    loaded.assert_holds_the_source(embedding="text")
    assert loaded.load()["unchanged"] == COUNT


@on_every_version
def test_missing_vector_is_reembedded_with_or_without_metadata(loaded: Loaded) -> None:
    loaded.write_without(ids(0, 5), "embedding")
    loaded.write_without(ids(5, 10), "embedding_meta")
    loaded.write_without(ids(10, 15), "embedding", "embedding_meta")
    assert loaded.load() == {"indexed": 15, "updated": 0, "unchanged": 5}
    loaded.assert_holds_the_source(embedding="text")


def test_orphaned_vector_is_removed_when_text_is_empty(loaded: Loaded) -> None:
    loaded.write_without(ids(0, 1), "embedding_meta")
    loaded.documents[0]["text"] = ""
    write_jsonl(loaded.path, loaded.documents)
    assert loaded.load() == {"indexed": 0, "updated": 0, "unchanged": COUNT - 1}
    assert "embedding" not in loaded.loads.contents()["d0"]


def test_changed_text_is_restored_and_vector_kept(loaded: Loaded) -> None:
    before = loaded.loads.contents()
    loaded.update(ids(0, 10), text="the cat sleeps")
    assert loaded.load() == {"indexed": 0, "updated": 10, "unchanged": 10}
    loaded.assert_holds_the_source(embedding="text")
    after = loaded.loads.contents()
    assert all(after[name]["embedding_meta"] == before[name]["embedding_meta"] for name in ids(0, COUNT))
    assert loaded.load()["unchanged"] == COUNT


def test_foreign_fields_stay_while_source_is_unchanged(loaded: Loaded) -> None:
    loaded.update(ids(0, 10), clicks=7)
    assert loaded.load()["unchanged"] == COUNT
    assert loaded.loads.contents()["d3"]["clicks"] == 7


def test_changed_text_and_vector_are_overwritten_by_source(loaded: Loaded) -> None:
    """A load in place, or the gateway, embeds the changed text: the vector is right, but the source has another."""
    loaded.update(ids(0, 10), text="the cat sleeps")
    loaded.loads.load()
    assert loaded.load() == {"indexed": 10, "updated": 0, "unchanged": 10}
    loaded.assert_holds_the_source(embedding="text")


@also_opensearch2
def test_missing_or_stale_passages_are_reembedded(engine: Engine, tiny_loads: Loads) -> None:
    loaded = Loaded(engine, tiny_loads, passages=8, passage_overlap=0)
    loaded.write_without(ids(0, 5), "embedding")
    loaded.update(ids(5, 10), text="the cat sleeps")
    loaded.write_back(ids(10, 15))
    lost = 10 if engine.info.excludes_vectors_from_source else 5
    assert loaded.load() == {"indexed": lost, "updated": 5, "unchanged": COUNT - 5 - lost}
    loaded.assert_holds_the_source(embedding="text")
    assert loaded.load()["unchanged"] == COUNT


def test_each_vector_field_is_checked(engine: Engine, tiny_loads: Loads) -> None:
    both = ("title_vector={title}", "text_vector={text}")
    loaded = Loaded(engine, tiny_loads, vectors=both)
    loaded.write_without(ids(0, 5), "title_vector")
    loaded.write_without(ids(5, 10), "text_vector")
    loaded.update(ids(10, 15), title="the cat sleeps")
    assert loaded.load() == {"indexed": 10, "updated": 5, "unchanged": 5}
    loaded.assert_holds_the_source(title_vector="title", text_vector="text")


def test_index_without_text_in_source_is_compared_by_metadata(engine: Engine, tiny_loads: Loads) -> None:
    engine.create_index(tiny_loads.index, {"mappings": {"_source": {"excludes": ["text"]}}})
    loaded = Loaded(engine, tiny_loads)
    assert loaded.load()["unchanged"] == COUNT


@also_opensearch2
def test_resumed_load_trusts_index_over_checkpoint(engine: Engine, tiny_loads: Loads) -> None:
    loaded = object.__new__(Loaded)
    loaded.engine, loaded.loads, loaded.index, loaded.documents = engine, tiny_loads, tiny_loads.index, documents()
    path = tiny_loads.write(loaded.documents)
    options: dict[str, Any] = {"dead": tiny_loads.dead, "id_field": "id", "batch_window": 5}

    def die(window: int) -> None:
        if window == 3:
            wait_for_first_window(engine, tiny_loads.index)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(tiny_loads.url, Interposed(tiny_loads.encoder, die), tiny_loads.index, path, **options)
    engine.refresh(tiny_loads.index)
    done = engine.count(tiny_loads.index)
    assert done >= 5
    engine.bulk(tiny_loads.index, b'{"delete":{"_id":"d0"}}\n{"delete":{"_id":"d1"}}\n')
    loaded.write_without(ids(2, 3), "embedding")
    loaded.update(ids(3, 4), text="the cat sleeps")
    summary = tiny_loads.load(path, **options)
    assert summary.resumed
    assert (summary.indexed, summary.updated, summary.unchanged) == (COUNT - done + 3, 1, done - 4)
    loaded.assert_holds_the_source(embedding="text")
