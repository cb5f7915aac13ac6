"""Loading and searching with tables of vectors, cut vectors, and models with fewer layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.index_scan import scan_index
from es_sbert.index.document_vectors import read_vector
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import open_engine, write_jsonl
from tests.model_kinds import KINDS, write_model_kinds

pytestmark = pytest.mark.one_engine

TEXTS = ["a man plays guitar", "the cat sleeps", "a man plays the guitar", "the cat sleeps on the mat", "query passage"]
QUERY = "the cat plays on a mat"
HOW = ("--precision", "fp32", "--threads", "1")


@pytest.fixture(scope="module")
def models(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_model_kinds(tmp_path_factory.mktemp("models"))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    return write_jsonl(tmp_path / "docs.jsonl", rows)


def expected_vectors(model: str) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    with Encoder(model, precision="fp32", threads=1) as encoder:
        return {f"d{number}": vector for number, vector in enumerate(encoder.encode(TEXTS, "document"))}


def expected_cosines(model: str) -> dict[str, float]:
    with Encoder(model, precision="fp32", threads=1) as encoder:
        query = encoder.encode(QUERY, "query")
    vectors = expected_vectors(model)
    return {id: float(np.dot(vector, query) / np.linalg.norm(vector)) for id, vector in vectors.items()}


def assert_vectors(url: str, index: str, model: str) -> None:
    """The index holds the model's vectors, under the fingerprint of what embeds documents."""
    expected, fingerprint = expected_vectors(model), read_sentence_model(resolve_model(model)).fingerprint
    with open_engine(url) as engine:
        engine.refresh(index)
        pages = scan_index(engine, index, query={"match_all": {}}, source_includes=["*"], vectors=True)
        found = {hit["_id"]: hit["_source"] for page in pages for hit in page.hits}
    assert found.keys() == expected.keys()
    for id, source in found.items():
        assert source["embedding_meta"]["fingerprint"] == fingerprint
        assert np.allclose(read_vector(source["embedding"]), expected[id], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_load_and_search(
    cli: Cli, engine_url: str, index_name: str, models: dict[str, str], documents: Path, kind: str
) -> None:
    """The search names no model: the mapping does."""
    loaded = cli(
        "ingest", "--url", engine_url, "--index", index_name, "--id-field", "id", "--model", models[kind], *HOW,
        documents, "--json",
    )  # fmt: skip
    assert (loaded.code, loaded.summary["indexed"]) == (0, len(TEXTS)), loaded.err
    assert_vectors(engine_url, index_name, models[kind])
    found = cli("search", "--url", engine_url, "--index", index_name, "-k", "5", *HOW, "--json", QUERY)
    assert found.code == 0, found.err
    hits = [orjson.loads(line) for line in found.out.splitlines()]
    cosines = {hit["id"]: hit["cosine"] for hit in hits}
    assert cosines == pytest.approx(expected_cosines(models[kind]), abs=1e-3)
