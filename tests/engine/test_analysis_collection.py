"""Vectors and texts read from an index, on each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.analysis import most_similar_pairs, read_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch, IndexMissing
from tests.engine.ingest_support import load, open_engine, write_jsonl

pytestmark = pytest.mark.one_engine


def test_chunks_are_grouped_by_document_and_best_pair_counts(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    long = "The cat sleeps on the mat. A man plays the guitar. " * 4
    texts = {"a": long, "b": "A man plays the guitar.", "c": "The query is a passage.", "d": long + "The end."}
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": key, "text": text} for key, text in texts.items()])
    options: dict[str, Any] = {"id_field": "id", "passages": 16, "passage_overlap": 2}
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", **options)
    with open_engine(engine_url) as engine:
        collection = read_index(engine, index_name, "embedding")
    split = tiny.make_chunker(16, 2, "document")
    chunks = {key: [text[start:end] for start, end in split([text])[0]] for key, text in texts.items()}
    assert dict(zip(collection.ids, collection.texts, strict=True)) == texts
    counts = np.diff([*collection.starts, len(collection.vectors)])
    assert dict(zip(collection.ids, counts.tolist(), strict=True)) == {key: len(own) for key, own in chunks.items()}
    vectors = {key: tiny.encode(own, "document") for key, own in chunks.items()}
    for first, second, cosine in most_similar_pairs(collection.vectors, starts=collection.starts):
        one, two = vectors[collection.ids[first]], vectors[collection.ids[second]]
        assert cosine == pytest.approx(float((one @ two.T).max()), abs=2e-5)


def test_documents_without_usable_vector_are_skipped_and_counted(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": f"d{n}", "text": f"a cat {n}"} for n in range(4)])
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    with open_engine(engine_url) as engine:
        other = {"doc": {"embedding_meta": {"fingerprint": "another"}}}
        lines = [{"update": {"_id": "d1"}}, other, {"index": {"_id": "plain"}}, {"text": "a mat"}]
        assert all(
            result.ok for result in engine.bulk(index_name, b"".join(orjson.dumps(line) + b"\n" for line in lines))
        )
        engine.refresh(index_name)
        collection = read_index(engine, index_name, "embedding")
        assert sorted(collection.ids) == ["d0", "d2", "d3"]
        assert sorted(collection.skipped.lines()) == [
            "1 left out: it has no vector in embedding (first: plain)",
            f"1 left out: its vector is from a model other than {tiny.info.model} (first: d1)",
        ]
        some = read_index(engine, index_name, "embedding", filter={"term": {"_id": "d2"}})
        assert (list(some.ids), some.texts, len(some.skipped.counts)) == (["d2"], ["a cat 2"], 0)


def test_writes_during_read_are_not_seen(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"id": f"d{n}", "text": f"a cat {n}"} for n in range(6)])
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    monkeypatch.setattr("es_sbert.analysis.text_collection._PAGE", 2)
    with open_engine(engine_url) as engine:
        search = engine.search_point_in_time
        pages = 0

        def deleting(*arguments: Any) -> Any:
            nonlocal pages
            page = search(*arguments)
            pages += bool(page["hits"]["hits"])
            if pages == 2:  # the first one is that of the latest document
                body = b"".join(b'{"delete":{"_id":"d%d"}}\n' % n for n in range(6))
                engine.bulk(index_name, body)
                engine.refresh(index_name)
            return page

        monkeypatch.setattr(engine, "search_point_in_time", deleting)
        assert sorted(read_index(engine, index_name, "embedding").ids) == [f"d{n}" for n in range(6)]
        assert len(read_index(engine, index_name, "embedding")) == 0


def test_index_without_vector_field_is_refused(es9_url: str, fresh_index: Any) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        with pytest.raises(IndexMissing):
            read_index(engine, index, "embedding")
        engine.create_index(index, {})
        with pytest.raises(IndexMismatch):
            read_index(engine, index, "embedding")
