"""`es-sbert search --rerank` on real engines, in the order of sentence-transformers' own cross-encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from sentence_transformers import CrossEncoder

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.engines.rest import Json
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.search.async_semantic_index import AsyncSemanticIndex
from es_sbert.search.semantic_index import SemanticIndex
from tests.e2e.cli_support import Cli
from tests.unit.checkpoints import write_cross_encoder

QUESTION = "a man plays the guitar"
DOCUMENTS = {
    "0": "the cat sleeps on the mat", "1": "a man sleeps", "2": "guitar guitar", "3": "the man plays a cat",
    "4": "a passage on the mat : a query", "5": "man on guitar . the cat plays",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with random weights."""
    return write_cross_encoder(tmp_path_factory.mktemp("rerank") / "plain", layers=1)


@pytest.fixture(scope="module")
def reranker(plain: Path) -> Path:
    export_reranker(read_cross_encoder(plain), plain.with_name("exported"), [Variant.FP32])
    return plain.with_name("exported")


@pytest.fixture
def search(engine_url: str, index_name: str, model: Path, cli: Cli, tmp_path: Path) -> Callable[..., list[str]]:
    """The beginning of a command that searches a loaded index."""
    file = tmp_path / "documents.jsonl"
    rows = [{"id": number, "title": "the", "body": body} for number, body in DOCUMENTS.items()]
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    where = ("--index", index_name, "--url", engine_url, "--model", str(model), "--precision", "fp32")
    done = cli("ingest", *where, "--id-field", "id", "--text-template", "{title} {body}", file)
    assert done.code == 0, done.err
    return lambda *more: ["search", QUESTION, *where, *map(str, more)]


def test_rerank_order_matches_sentence_transformers(
    search: Callable[..., list[str]], cli: Cli, plain: Path, reranker: Path
) -> None:
    before = [orjson.loads(line) for line in cli(*search("--json")).out.splitlines()]
    done = cli(*search("--json", "--rerank", reranker))
    hits = [orjson.loads(line) for line in done.out.splitlines()]
    reference = CrossEncoder(str(plain), device="cpu")
    texts = [f"the {body}" for body in DOCUMENTS.values()]
    ranked = reference.rank(QUESTION, texts, show_progress_bar=False)
    assert [int(hit["id"]) for hit in hits] == [entry["corpus_id"] for entry in ranked]
    assert [hit["rerank_score"] for hit in hits] == pytest.approx([entry["score"] for entry in ranked], abs=1e-5)
    assert [hit["id"] for hit in hits] != [hit["id"] for hit in before]
    cosines = {hit["id"]: hit["cosine"] for hit in before}
    assert {hit["id"]: hit["cosine"] for hit in hits} == pytest.approx(cosines, abs=1e-6)

    few = cli(*search("--rerank", reranker, "-k", 2))
    header, *rows = (line for line in few.out.splitlines() if not line.startswith("   "))
    assert header.split() == ["#", "rerank", "cosine", "id", "title"]
    assert [row.split()[3] for row in rows] == [hit["id"] for hit in hits[:2]]
    assert f"reranked {len(DOCUMENTS)} hits in" in few.err
    assert "by plain (fp32)" in few.err

    shown = cli(*search("--rerank", reranker, "-k", 2, "--show-body", "--json"))
    assert orjson.loads(shown.out)["size"] == 50


async def _search_async(index_name: str, url: str, reranker: Reranker) -> list[Json]:
    async with AsyncSemanticIndex(index_name, url, precision="fp32") as index:
        return [hit.as_json() for hit in await index.search(QUESTION, k=3, rerank=reranker)]


def test_rerank_from_python(
    search: Callable[..., list[str]], cli: Cli, engine_url: str, index_name: str, reranker: Path
) -> None:
    from_cli = [orjson.loads(line) for line in cli(*search("--json", "--rerank", reranker, "-k", 3)).out.splitlines()]
    with (
        SemanticIndex(index_name, engine_url, precision="fp32") as index,
        Reranker(str(reranker), precision="fp32") as opened,
    ):
        best = index.search(QUESTION, k=3, rerank=opened)
        assert [hit.as_json() for hit in best] == from_cli
        done = best.reranking
        assert done is not None
        assert (done.scored, done.truncated, done.without_text) == (len(DOCUMENTS), 0, 0)
        assert asyncio.run(_search_async(index_name, engine_url, opened)) == from_cli
