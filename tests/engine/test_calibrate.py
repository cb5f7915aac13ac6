"""A minimum cosine for real indices, against what numpy says of the same texts and vectors."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from es_sbert.diagnostics.index_calibration import IndexCalibrator
from es_sbert.diagnostics.min_cosine import COSINE_GRID
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.evaluation.judgement_files import LabeledQuery
from tests.conftest import delete_index
from tests.engine.ingest_support import WORDS, Loads, contents, load, open_engine, put, update, vector_of, write_jsonl
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

COUNT = 120
# What holds for a cosine of float32 vectors, computed in two ways.
CLOSE = 1e-5


def document(number: int) -> dict[str, Any]:
    """Two sentences of one subject, or one sentence of five words; no two documents are alike."""
    one, two = WORDS[number % 20], WORDS[number // 20 % 20]
    if number % 4 == 0:
        return {"id": f"d{number}", "text": f"about {one} and {two} {number}", "group": number % 2}
    return {
        "id": f"d{number}",
        "text": f"The {one} of the {two} is well known. People near it saw the {one} number {number}.",
        "group": number % 2,
    }


def parts_of(text: str) -> tuple[str, str]:
    """The query that a document's text becomes, and the text that it is compared with."""
    first, stop, rest = text.partition(". ")
    return (first + ".", rest) if stop else (" ".join(text.split()[:3]), text)


@pytest.fixture(scope="module")
def filled(engine_url: str, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index of the documents, and of one without a text; tests only look at it."""
    folder = tmp_path_factory.mktemp("calibrate")
    index = f"test-{uuid.uuid4().hex[:12]}"
    documents = [*map(document, range(COUNT)), {"id": "none", "group": 0}]
    try:
        path = write_jsonl(folder / "docs.jsonl", documents)
        load(engine_url, encoder, index, path, dead=folder / "dead", id_field="id")
        with open_engine(engine_url) as engine:
            put(engine, index, [{"id": "bare", "text": "without a vector", "group": 0}])
            engine.refresh(index)
        yield index
    finally:
        delete_index(engine_url, index)


def brute_force(encoder: Encoder, held: dict[str, dict[str, Any]], queries: list[str], own: list[str]) -> Any:
    """Cosine of each query with each document, ids in the order of the columns, and which columns are its own."""
    ids = [id for id, source in held.items() if source.get("embedding") is not None]
    vectors = np.stack([vector_of(held[id]) for id in ids])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = encoder.encode(queries, "query") @ vectors.T
    return cosines, ids, np.array([[id == each for id in ids] for each in own])


def test_pseudo_queries_match_numpy(filled: str, engine: Engine, encoder: Encoder) -> None:
    found = IndexCalibrator(engine, filled, "embedding").calibrate(encoder, sample=1000)
    held = contents(engine.info.url, filled)
    assert (found.documents, found.sample) == (COUNT, COUNT)
    assert found.kinds == {"first sentence": 90, "first half of the words": 30}
    assert found.left_out == {"documents without a vector": len(held) - COUNT}
    own = [query.ids[0] for query in found.queries]
    texts = [parts_of(held[id]["text"]) for id in own]
    assert [query.text for query in found.queries] == [query for query, _ in texts]

    rests = encoder.encode([rest for _, rest in texts], "document")
    relevant = np.sum(encoder.encode([query for query, _ in texts], "query") * rests, axis=1)
    np.testing.assert_allclose(np.concatenate(found.cosines.relevant), relevant, atol=CLOSE)
    cosines, _, is_own = brute_force(encoder, held, [query for query, _ in texts], own)
    assert found.cosines.by_query.compared.tolist() == [COUNT - 1] * len(own)
    for number, row in enumerate(cosines):
        unrelated = row[~is_own[number]]
        low, high = ((unrelated[:, None] >= COSINE_GRID + error).sum(axis=0) for error in (CLOSE, -CLOSE))
        assert (low <= found.cosines.by_query.passed[number]).all()
        assert (found.cosines.by_query.passed[number] <= high).all()


def test_labeled_queries_match_numpy(filled: str, engine: Engine, encoder: Encoder) -> None:
    queries = [
        LabeledQuery("what is known of the guitar", ("d1", "d21", "gone")),
        LabeledQuery("storms", ("d2", "d42", "d62")),
        LabeledQuery("nothing", ("gone", "bare")),
    ]
    found = IndexCalibrator(engine, filled, "embedding").calibrate(encoder, queries, sample=1000)
    assert [query.ids for query in found.queries] == [("d1", "d21"), ("d2", "d42", "d62")]
    left_out = found.left_out
    assert left_out["labelled documents that the index does not hold with a vector"] == 2
    assert left_out["queries without a relevant document in the index"] == 1
    cosines, ids, _ = brute_force(
        encoder, contents(engine.info.url, filled), [query.text for query in queries[:2]], ["", ""]
    )
    for number, query in enumerate(found.queries):
        expected = [cosines[number][ids.index(id)] for id in query.ids]
        np.testing.assert_allclose(found.cosines.relevant[number], expected, atol=CLOSE)
        assert found.cosines.by_query.compared[number] == COUNT - len(query.ids)


def test_filtered_alias_uses_only_its_documents(filled: str, engine: Engine, encoder: Encoder) -> None:
    alias = f"{filled}-odd"
    engine.update_aliases([{"add": {"index": filled, "alias": alias, "filter": {"term": {"group": 1}}}}])
    found = IndexCalibrator(engine, alias, "embedding").calibrate(encoder, sample=1000)
    assert (found.documents, found.sample) == (COUNT // 2, COUNT // 2)
    assert set(found.cosines.by_query.compared.tolist()) == {COUNT // 2 - 1}


def test_passages_exclude_query_and_score_by_nearest(engine: Engine, encoder: Encoder, loads: Loads) -> None:
    others = "".join(f" Some people wrote about the {WORDS[place]} in the year {1900 + place}." for place in range(8))
    documents = [{"id": f"d{n}", "text": f"The {WORDS[n]} is the first subject.{others}"} for n in range(20)]
    loads.load(loads.write(documents), id_field="id", passages=24)
    index = IndexCalibrator(engine, loads.index, "embedding")
    found = index.calibrate(encoder)
    held = loads.contents()
    assert found.kinds == {"first sentence": 20}
    for query, cosines in zip(found.queries, found.cosines.relevant, strict=True):
        text = held[query.ids[0]]["text"]
        end = len(query.text) + 1
        passages = held[query.ids[0]]["embedding"]
        assert len(passages) > 2
        vector = encoder.encode([query.text], "query")[0]
        later = [vector_of(passage, "vector") for passage in passages if passage["start"] >= end]
        assert len(later) < len(passages), "the first passage holds the query"
        rest = encoder.encode([text[end : passages[0]["end"]].strip()], "document")[0]
        expected = max(float(vector @ each / np.linalg.norm(each)) for each in [rest, *later])
        assert cosines.tolist() == [pytest.approx(expected, abs=CLOSE)]
    [labeled] = index.calibrate(encoder, [LabeledQuery("a violin", ("d8",))]).cosines.relevant
    vector = encoder.encode(["a violin"], "query")[0]
    own = [vector_of(passage, "vector") for passage in held["d8"]["embedding"]]
    assert labeled.tolist() == [
        pytest.approx(max(float(vector @ each / np.linalg.norm(each)) for each in own), abs=CLOSE)
    ]


def test_vectors_of_other_models_or_stale_texts_are_left_out(engine: Engine, encoder: Encoder, loads: Loads) -> None:
    loads.load(loads.write([document(n) for n in range(9)]), id_field="id")
    changes: dict[str, Any] = {
        "d1": {"text": "A new text of many words. It has no vector yet."},
        "d2": {"embedding_meta": {"fingerprint": "0" * 64}},
        "d3": {"text": ""},
    }
    update(engine, loads.index, changes)
    found = IndexCalibrator(engine, loads.index, "embedding").calibrate(encoder)
    assert found.left_out == {
        "documents whose vector is of another model": 1,
        "documents whose text changed after their vector was made": 1,
        "documents without a text": 1,
    }
    assert (found.documents, found.sample, len(found.queries)) == (9, 8, 6)


def test_invalid_calibrations_are_refused(filled: str, engine: Engine, encoder: Encoder, tiny: Encoder) -> None:
    index = IndexCalibrator(engine, filled, "embedding")
    with raises(IndexMismatch, "model"):
        index.calibrate(tiny)
    with raises_as_recorded(IndexMismatch):
        index.calibrate(encoder, [LabeledQuery("a", ("x", "y"))])
