"""Vectors and texts read from an index, on each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.analysis import most_similar_pairs, read_index
from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import load, open_engine, put, update, write_jsonl

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
        collection = read_index(index_name, engine, "embedding")
    split = tiny.pipeline.make_chunker(16, 2, "document")
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
        update(engine, index_name, {"d1": {"embedding_meta": {"fingerprint": "another"}}})
        put(engine, index_name, [{"id": "plain", "text": "a mat"}])
        engine.refresh(index_name)
        collection = read_index(index_name, engine, "embedding")
        assert sorted(collection.ids) == ["d0", "d2", "d3"]
        assert sorted(collection.skipped.lines()) == [
            "1 left out: it has no vector in embedding (first: plain)",
            f"1 left out: its vector is from a model other than {tiny.info.model} (first: d1)",
        ]
        some = read_index(index_name, engine, "embedding", filter={"term": {"_id": "d2"}})
        assert (list(some.ids), some.texts, len(some.skipped.counts)) == (["d2"], ["a cat 2"], 0)
