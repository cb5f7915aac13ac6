"""Long documents as passages, and several vector fields of one document, on real engines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.index_summary import describe_index
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import Loads, letters, open_engine, same_vectors, sentences, vector_of, write_jsonl
from tests.raised import raises

pytestmark = pytest.mark.one_engine

RULES: dict[str, Any] = {"passages": 48, "passage_overlap": 12}


def long_documents(count: int) -> list[dict[str, Any]]:
    """Documents of one to thirty sentences."""
    chance = random.Random(0)
    lines = [document["text"] for document in sentences(400)]
    return [
        {
            "id": f"d{number}",
            "title": lines[number],
            "body": " ".join(chance.sample(lines, chance.choice([1, 2, 8, 30]))) if number % 9 else " ",
            "even": number % 2 == 0,
        }
        for number in range(count)
    ]


Expected = Callable[[str], tuple[list[tuple[int, int]], Vectors]]


@pytest.fixture(scope="module")
def expected(encoder: Encoder) -> Expected:
    """A function text → offsets of its passages, and the vectors of the texts that stand there."""
    split = encoder.pipeline.make_chunker(48, 12, "document")

    @cache
    def passages_of(text: str) -> tuple[list[tuple[int, int]], Vectors]:
        [spans] = split([text])
        return spans, encoder.encode([text[start:end] for start, end in spans], "document")

    return passages_of


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    """The default model in fp32: products in bf16 round differently in batches of other shapes."""
    with Encoder(device="cpu", precision="fp32") as encoder:
        yield encoder


def check_passages(expected: Expected, source: dict[str, Any], text: str) -> None:
    spans, vectors = expected(text)
    value = source["embedding"]
    stored = [value] if isinstance(value, dict) else value
    assert [(passage["start"], passage["end"]) for passage in stored] == spans
    for passage, vector in zip(stored, vectors, strict=True):
        assert same_vectors(vector_of(passage, "vector"), vector)
    assert source["embedding_meta"]["passages"] == len(spans)
    assert source["embedding_meta"]["truncated"] is False


@pytest.mark.parametrize("index_type", ["hnsw", "int8_hnsw", "flat"])
def test_document_score_is_that_of_nearest_passage(loads: Loads, expected: Expected, index_type: str) -> None:
    documents = [document for document in long_documents(40) if document["body"].strip()]
    path = loads.write(documents)
    summary = loads.load(path, id_field="id", text_fields=("body",), index_type=index_type, batch_window=16, **RULES)
    assert (summary.indexed, summary.truncated, summary.dead) == (len(documents), 0, 0)
    stored = loads.contents()
    nearest: dict[str, tuple[float, tuple[int, int]]] = {}
    query = "The violin met the storm."
    vector = loads.encoder.encode([query], "query")[0]
    for document in documents:
        check_passages(expected, stored[document["id"]], document["body"])
        spans, vectors = expected(document["body"])
        cosines = vectors @ vector  # (passages,)
        nearest[document["id"]] = (float(cosines.max()), spans[int(cosines.argmax())])
    ranked = sorted(nearest, key=lambda key: -nearest[key][0])
    even = {document["id"] for document in documents if document["even"]}
    with open_engine(loads.url) as engine, SemanticIndex(loads.index, engine, encoder=loads.encoder) as index:
        # Without scripting (es9) only what needs none.
        exacts = (
            [False]
            if engine.info.version[0] >= 9 and engine.info.engine_type is EngineType.ELASTICSEARCH
            else [False, True]
        )
        for exact in exacts:
            for chosen, filter in ((ranked, None), ([key for key in ranked if key in even], {"term": {"even": True}})):
                hits = index.search(query, 5, filter=filter, exact=exact).hits
                assert [hit.id for hit in hits] == chosen[:5]
                for hit in hits:
                    cosine, span = nearest[hit.id]
                    assert hit.cosine == pytest.approx(cosine, abs=1e-5)
                    assert "embedding" not in hit.source
                    assert hit.passage is not None
                    if index_type != "int8_hnsw":
                        assert (hit.passage.start, hit.passage.end) == span
                    assert hit.passage.text == hit.source["body"][hit.passage.start : hit.passage.end]
        summary_of_index = describe_index(engine, loads.index)
    [field] = summary_of_index.fields
    assert (field.vectors, field.current) == (len(documents), len(documents))
    passages = sum(len(expected(document["body"])[0]) for document in documents)
    assert summary.passages == field.passages == passages > len(documents)


def test_passages_are_backfilled_and_kept_until_text_changes(loads: Loads, expected: Expected) -> None:
    documents = long_documents(30)
    path = loads.write(documents)
    dead = loads.dead
    # Another field first, so that the index holds the documents without passages.
    loads.load(path, id_field="id", vectors=("title_vector={title}",))
    filled = loads.load(text_fields=("body",), **RULES)
    empty = [document for document in documents if not document["body"].strip()]
    assert (filled.indexed, filled.skipped.empty) == (len(documents) - len(empty), len(empty))
    again = loads.load()
    assert (again.unchanged, again.indexed) == (filled.indexed, 0)

    fields: dict[str, Any] = {"vectors": ("title_vector", "embedding"), "id_field": "id"}
    # The documents that stood there had no hash of the whole: they are written once more, with the vectors they have.
    before = loads.contents()
    same = loads.load(path, **fields)
    assert (same.indexed, same.updated + same.unchanged) == (0, len(documents))
    after = loads.contents()
    for document in documents:
        assert vectors_of(after[document["id"]]) == vectors_of(before[document["id"]])

    documents[1]["body"] = documents[2]["body"]
    documents[2]["body"] = ""
    documents[3]["title"] = "Something else."
    documents[4]["even"] = "neither"
    del documents[5]["title"]
    write_jsonl(path, documents)
    changed = loads.load(path, **fields)
    # `even` is a boolean in the mapping.
    assert (changed.indexed, changed.updated, changed.dead) == (2, 2, 1)
    assert [letter["id"] for letter in letters(dead)] == ["d4"]
    stored = loads.contents()
    assert "embedding" not in stored["d2"]
    assert "title_vector" not in stored["d5"]
    titles = loads.encoder.encode([document.get("title", "") for document in documents], "document")
    for row, document in enumerate(documents):
        source = stored[document["id"]]
        if document["body"].strip():
            check_passages(expected, source, document["body"])
        if "title" in document:
            assert same_vectors(vector_of(source, "title_vector"), titles[row])


def vectors_of(source: dict[str, Any]) -> dict[str, Any]:
    """Vectors as bytes."""
    found: dict[str, Any] = {"title_vector": vector_of(source, "title_vector").tobytes()}
    if "embedding" in source:
        value = source["embedding"]
        passages = [value] if isinstance(value, dict) else value
        found["embedding"] = [(p["start"], p["end"], vector_of(p, "vector").tobytes()) for p in passages]
    return found


def test_other_models_vectors_are_kept_while_text_is_unchanged(loads: Loads, tiny: Encoder) -> None:
    documents = sentences(20)
    path = loads.write(documents)
    loads.load(path, id_field="id")
    loads.load(encoder=tiny, vector_field="other", text_fields=("text",))
    before = loads.contents()
    for document in documents[:5]:
        document["price"] += 1
    for document in documents[5:8]:
        document["text"] += " Once more."
    write_jsonl(path, documents)
    summary = loads.load(path, id_field="id")
    assert (summary.indexed, summary.updated, summary.unchanged) == (3, 5, 12)
    [note] = summary.notes
    assert note.startswith("3 documents lost their vector in other, since its text changed")
    stored = loads.contents()
    for document in documents[5:8]:
        assert "other" not in stored[document["id"]]
        assert "other_meta" not in stored[document["id"]]
    for document in [*documents[:5], *documents[8:]]:
        assert same_vectors(vector_of(stored[document["id"]], "other"), vector_of(before[document["id"]], "other"))
        assert stored[document["id"]]["price"] == document["price"]
    # As the note says.
    filled = loads.load(encoder=tiny, vector_field="other")
    assert (filled.indexed, filled.unchanged) == (3, 17)
    wanted = tiny.encode([document["text"] for document in documents], "document")
    stored = loads.contents()
    for row, document in enumerate(documents):
        assert np.allclose(vector_of(stored[document["id"]], "other"), wanted[row], atol=1e-6)


def test_different_passage_settings_are_refused_with_remedy(engine: Engine, loads: Loads) -> None:
    path = loads.write(sentences(3))
    with raises(UsageError, "passages"):
        loads.load(path, id_field="id", passages=300)
    assert engine.get_index(loads.index) is None  # nothing was made for it
    for unchanged in (0, 3):
        assert loads.load(path, id_field="id", passages=64).unchanged == unchanged
    with raises(IndexMismatch, "passages"):
        loads.load(path, id_field="id", passages=32)
    loads.load(path, id_field="id", vectors=("whole={text}",))
    with raises(IndexMismatch, "passages"):
        loads.load(path, id_field="id", vectors=("whole",), passages=32)
