"""Reranking: the order is sentence-transformers' own, and what cannot be scored is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import UsageError
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from es_sbert.index.vector_field import FieldOutcome, VectorField
from es_sbert.search.reranking import hit_text_reader, rerank, scope_text_reader
from es_sbert.search.search_result import Hit, Passage, Reranking, SearchResult
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_cross_encoder

QUERY = "Why is the night train late?"
LONG = "The night train is late. " * 30
META = VectorFieldMeta(fingerprint="f", model="m", dimensions=4, index_type="flat", text="{title} {body}")
TEXT_OF = hit_text_reader(META)
BODIES = ["Two children repaired the telescope.", "A nurse fixed the pump.", LONG, "Why?", "Snow lay on the rails."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("model") / "tiny", layers=1)


@pytest.fixture(scope="module")
def reranker(folder: Path) -> Iterator[Reranker]:
    export_reranker(read_cross_encoder(folder), folder.with_name("exported"), [Variant.FP32])
    with Reranker(folder.with_name("exported"), device="cpu", threads=1) as reranker:
        yield reranker


def found(*hits: Hit) -> SearchResult:
    return SearchResult(hits=hits, took_ms=3, method=SearchMethod.KNN)


def hit(number: int, source: dict[str, object], passage: Passage | None = None) -> Hit:
    return Hit(id=str(number), cosine=1 - number / 100, score=1.0, source=source, index="i", passage=passage)


def documents(bodies: list[str]) -> SearchResult:
    return found(*(hit(number, {"title": f"t{number}", "body": body}) for number, body in enumerate(bodies)))


def ids(result: SearchResult) -> list[str]:
    return [hit.id for hit in result]


def said(result: SearchResult) -> Reranking:
    assert result.reranking is not None
    return result.reranking


def test_order_equals_sentence_transformers(folder: Path, reranker: Reranker) -> None:
    result = rerank(QUERY, documents(BODIES), reranker, TEXT_OF, k=10)
    texts = [f"t{number} {body}" for number, body in enumerate(BODIES)]
    theirs = CrossEncoder(str(folder), device="cpu").rank(QUERY, texts, show_progress_bar=False)
    assert ids(result) == [str(entry["corpus_id"]) for entry in theirs]
    assert ids(result) != sorted(ids(result)), "an order that does not change would prove nothing"
    np.testing.assert_allclose([hit.rerank_score for hit in result], [entry["score"] for entry in theirs], atol=1e-5)


def test_reranked_hits_keep_their_search_scores(reranker: Reranker) -> None:
    before = documents(BODIES)
    result = rerank(QUERY, before, reranker, TEXT_OF, k=2)
    assert len(result) == 2
    assert (result.took_ms, result.method) == (3, SearchMethod.KNN)
    done = said(result)
    assert (done.reranker, done.scored, done.truncated) == (reranker.name, 5, 1)
    for reranked in result:
        old = before.hits[int(reranked.id)]
        assert (reranked.cosine, reranked.score, reranked.source) == (old.cosine, old.score, old.source)
        assert reranked.as_json() == old.as_json() | {"rerank_score": reranked.rerank_score}


def test_hits_without_text_come_last_and_are_counted(reranker: Reranker) -> None:
    sources: list[dict[str, object]] = [{}, {"body": "A nurse."}, {"title": 3}, {"body": " "}, {"body": "b"}]
    hits = [hit(number, source) for number, source in enumerate(sources)]
    result = rerank(QUERY, found(*hits), reranker, TEXT_OF, k=10, window=4)
    assert ids(result) == ["1", "0", "2", "3", "4"]
    assert (said(result).scored, said(result).without_text) == (1, 3)
    assert "3 hits have no text" in str(result.reranking)


def test_nearest_chunk_is_scored(reranker: Reranker) -> None:
    meta = META.model_copy(update={"passages": ChunkRules.from_tokens(32)})
    near, cut_out = Passage(0, 6, "Why is"), Passage(0, 6, None)
    result = rerank(
        QUERY, found(hit(0, {}, cut_out), hit(1, {"body": LONG}, near)), reranker, hit_text_reader(meta), k=10
    )
    assert ids(result) == ["1", "0"]
    assert result.hits[0].rerank_score == pytest.approx(float(reranker.score([QUERY], ["Why is"])[0]), abs=1e-6)
    assert (said(result).truncated, said(result).without_text) == (0, 1)


def test_model_with_several_labels_is_rejected(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "nli", labels=3, layers=1)
    export_reranker(read_cross_encoder(folder), tmp_path / "out", [Variant.FP32])
    with Reranker(tmp_path / "out", device="cpu") as reranker, raises_as_recorded(UsageError):
        rerank(QUERY, documents(BODIES), reranker, TEXT_OF, k=10)


def test_text_is_read_per_index() -> None:
    def field(index: str, text: str | None) -> VectorField:
        return VectorField(index, "a", META.model_copy(update={"text": text}), FieldOutcome.PRESENT)

    text_of = scope_text_reader(SearchScope((field("i", "{title}"), field("j", "{body}"))))
    of_i = hit(0, {"title": "one", "body": "two"})
    assert (text_of(of_i), text_of(replace(of_i, index="j"))) == ("one", "two")
    with raises_as_recorded(UsageError):
        scope_text_reader(SearchScope((field("i", "{title}"), field("j", None))))
