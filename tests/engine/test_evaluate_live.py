"""Retrieval measured through a real index equals retrieval measured in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import OnnxEmbedder
from es_sbert.evaluation.evaluation_report import retrieval_row
from es_sbert.evaluation.index_retrieval import evaluate_index
from es_sbert.evaluation.judgement_files import read_judgements
from es_sbert.evaluation.ranking import rank_in_memory
from es_sbert.evaluation.significance import compare_reports
from tests.e2e.cli_support import cli_in_process
from tests.engine.ingest_support import load, open_engine, write_jsonl
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert

_SUBJECTS = ("a man", "the man", "a cat", "the cat", "the guitar")
_VERBS = ("plays", "sleeps", "sleeps on", "plays on", ":", "query")
_OBJECTS = ("the mat", "a mat", "the guitar", "a guitar", "passage", "a passage", ".")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxEmbedder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny", prompts={"query": "query : "})
        with Encoder(str(folder), precision="fp32", device="cpu") as encoder:
            yield OnnxEmbedder(encoder)


def grammar() -> RetrievalCollection:
    """Texts of a small grammar; some queries are documents of the corpus, and name themselves relevant."""
    texts = [f"{one} {two} {three}" for one in _SUBJECTS for two in _VERBS for three in _OBJECTS]
    documents = {f"d{number}": text for number, text in enumerate(texts)}
    queries = {f"q{number}": texts[number * 11].rpartition(" ")[0] for number in range(10)}
    queries |= {f"d{number}": documents[f"d{number}"] for number in (3, 50, 99)}
    judgements = {
        query: {f"d{(place * 17 + step) % len(texts)}": 1 + step for step in range(3)}
        for place, query in enumerate(queries)
    }
    for query in queries:
        if query in documents:
            judgements[query][query] = 1
    return RetrievalCollection("grammar", documents, queries, judgements)


def test_index_metrics_match_in_memory_metrics(
    es9_url: str, fresh_index: Callable[[str], str], model: OnnxEmbedder, tmp_path: Path, capfd: Any
) -> None:
    collection, index, told = grammar(), fresh_index(es9_url), list[str]()
    rows = [{"id": identifier, "text": text} for identifier, text in collection.documents.items()]
    path = write_jsonl(tmp_path / "corpus.jsonl", rows)
    load(es9_url, model.encoder, index, path, dead=tmp_path / "dead", id_field="id", vector_field="vector")
    with open_engine(es9_url) as engine:
        engine.refresh(index)
    settings = EngineSettings(url=es9_url)
    how = {"vector_field": "vector", "encoder": model.encoder, "report": told.append}
    report = evaluate_index(index, collection, settings, **how)  # type: ignore[arg-type]
    (row,) = report.rows
    assert report.settings["index"] == index
    assert (row.data, row.size) == ("grammar", 13)
    assert row.part.startswith(f"{index}: Elasticsearch 9.")
    assert row.part.endswith(", hnsw")
    in_memory = retrieval_row(collection, rank_in_memory(model, collection), "in memory").figures
    assert 0 < in_memory["ndcg@10"] < 100
    # Tied cosines may be cut off at rank 100 in either order.
    assert row.figures == pytest.approx(in_memory, abs=1.0)

    # Judgements of the index's own documents give the same figures; queries by text cannot find themselves.
    judged = {
        collection.queries[query]: collection.judgements[query] for query in collection.queries if query[0] == "q"
    }
    lines = [
        {"query": text, "document": document, "grade": grade}
        for text, grades in judged.items()
        for document, grade in (grades | {"gone": 1}).items()
    ]
    file = write_jsonl(tmp_path / "judged.jsonl", lines)
    data = read_judgements(file)
    report = evaluate_index(index, data, settings, **how)  # type: ignore[arg-type]
    only_queries = RetrievalCollection("judged", collection.documents, data.queries, data.judgements)
    expected = retrieval_row(only_queries, rank_in_memory(model, only_queries), "in memory").figures
    assert report.rows[0].figures == pytest.approx(expected, abs=1.0)
    assert f"relevant documents of judged are not in {index}; they count as not found" in told[-2]
    assert compare_reports(report, report)["judged"]["ndcg@10"].p_value == 1
    command = ["evaluate", model.encoder.info.model, "--precision", "fp32", "--task", "retrieval", "--url", es9_url]
    command += ["--vector-field", "vector", "--judgements", str(file), "--index", index, "--index", index, "--json"]
    first, second, compared = map(json.loads, cli_in_process(capfd)(*command).out.splitlines())
    assert first["rows"][0]["figures"] == second["rows"][0]["figures"] == pytest.approx(expected, abs=1.0)
    assert compared["comparison"]["differences"]["judged"]["ndcg@10"]["difference"] == 0
    elsewhere = RetrievalCollection("elsewhere", {}, {"q": "q"}, {"q": {"x": 1, "y": 2}})
    with raises_as_recorded(IndexMismatch):
        evaluate_index(index, elsewhere, settings, **how)  # type: ignore[arg-type]
