"""Commands and the gateway with tables of vectors, cut vectors, and models with fewer layers.

All commands on one engine, and loading and searching on each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.bundle.bundle import cached_bundle_path
from es_sbert.bundle.local_registry import registry_path
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.index_scan import scan_index
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.index.document_vectors import read_vector
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import ask, open_engine, write_jsonl
from tests.gateway import patient
from tests.gateway.serving import gateway
from tests.model_kinds import KINDS, write_model_kinds
from tests.tiny import add_router, write_tiny_bert

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


@pytest.mark.parametrize("kind", KINDS)
def test_gateway_embeds_writes_and_searches(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], models: dict[str, str], kind: str
) -> None:
    index, model = fresh_index(es9_url), models[kind]
    made = cli("index", "create", index, "--url", es9_url, "--model", model, "--text-field", "text")
    assert made.code == 0, made.err
    rows = [({"index": {"_id": f"d{number}"}}, {"text": text}) for number, text in enumerate(TEXTS)]
    with gateway(es9_url, model) as url:
        written = patient.post(
            f"{url}/{index}/_bulk",
            params={"refresh": "true"},
            content=b"".join(orjson.dumps(line) + b"\n" for row in rows for line in row),
            headers={"content-type": "application/x-ndjson"},
        )
        assert written.json()["errors"] is False
        body = {"query": {"match": {"semantic": {"query": QUERY, "k": 5}}}, "size": 50}
        hits = patient.post(f"{url}/{index}/_search", json=body).json()["hits"]["hits"]
        embedded = patient.post(f"{url}/v1/embeddings", json={"input": QUERY, "input_type": "query"}).json()
    assert_vectors(es9_url, index, model)
    cosines = {hit["_id"]: 2 * hit["_score"] - 1 for hit in hits}
    assert cosines == pytest.approx(expected_cosines(model), abs=1e-3)
    with Encoder(model, precision="fp32", threads=1) as encoder:
        assert np.allclose(embedded["data"][0]["embedding"], encoder.encode(QUERY, "query"), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_migration_to_the_model(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], models: dict[str, str], documents: Path, kind: str
) -> None:
    old, new = fresh_index(es9_url), fresh_index(es9_url)
    alias = f"{old}-alias"
    first = write_tiny_bert(documents.parent / "first", seed=9)
    model = read_sentence_model(first)
    export_bundle(model, cached_bundle_path(model.fingerprint), [Variant.FP32])
    cli("ingest", "--url", es9_url, "--index", old, "--id-field", "id", "--model", first, *HOW, documents)
    with open_engine(es9_url) as engine:
        ask(engine, "POST", "/_aliases", body={"actions": [{"add": {"index": old, "alias": alias}}]})
    migrated = cli("index", "migrate", alias, "--url", es9_url, "--model", models[kind], "--name", new, *HOW)
    assert migrated.code == 0, migrated.err
    assert_vectors(es9_url, new, models[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_similar_pairs(cli: Cli, models: dict[str, str], documents: Path, kind: str) -> None:
    done = cli("pairs", "--model", models[kind], *HOW, documents, "--id-field", "id", "--json", "-k", "1000")
    assert done.code == 0, done.err
    vectors = expected_vectors(models[kind])
    found = {
        (pair["first"]["id"], pair["second"]["id"]): pair["cosine"] for pair in map(orjson.loads, done.out.splitlines())
    }
    assert len(found) == 10
    for (first, second), cosine in found.items():
        norms = np.linalg.norm(vectors[first]) * np.linalg.norm(vectors[second])
        assert cosine == pytest.approx(float(np.dot(vectors[first], vectors[second]) / norms), abs=2e-5)


def test_index_of_a_pair_is_refused_by_every_command(
    cli: Cli, es9_url: str, index_name: str, models: dict[str, str], documents: Path
) -> None:
    """Earlier releases made pairs; the index names one, and has the fingerprint of its model for documents."""
    large, pair = models["layers"], shutil.copytree(models["layers"], documents.parent / "fast-search")
    index = ("--url", es9_url, "--index", index_name)
    loaded = cli("ingest", *index, "--id-field", "id", "--model", pair, *HOW, documents)
    assert loaded.code == 0, loaded.err
    entry = {"name": "fast-search", "fingerprint": read_sentence_model(pair).fingerprint, "folder": str(pair)}
    add_router(pair)
    registry = {"format": 1, "models": [entry | {"query_fingerprint": "f" * 32}]}
    registry_path().parent.mkdir(exist_ok=True)
    registry_path().write_bytes(orjson.dumps(registry))
    for command in (
        ("search", *index, "cat"),
        ("ingest", *index, "--id-field", "id", documents),
        ("doctor", *index),
        ("index", "calibrate", index_name, "--url", es9_url),
        ("index", "migrate", index_name, "--url", es9_url),
    ):
        refused = cli(*command)
        assert refused.code != 0, command
        assert "is a pair of two models, which es-sbert no longer opens" in refused.err + refused.out, command
    with gateway(es9_url, models["static"]) as url:
        answer = patient.post(f"{url}/{index_name}/_search", json={"query": {"match": {"semantic": QUERY}}})
    assert answer.status_code >= 400
    named = cli("search", *index, "--model", large, *HOW, "cat")
    assert named.code == 0, named.err
