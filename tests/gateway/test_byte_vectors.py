"""Documents written and searched through the gateway, in a vector field of bytes and beside one of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.mapping import ElementType
from tests.engine.ingest_support import contents, load
from tests.engine.sample_indices import text_of
from tests.engine.vectors import cosines
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served
from tests.gateway.writes.support import JSON, bulk_lines, make, of_model

TEXTS = [text_of(number) for number in range(30)]
QUERY = "a man plays"


@pytest.fixture(scope="module")
def encoder(tiny: Path) -> Iterator[Encoder]:
    with Encoder(str(tiny), precision="fp32", device="cpu", threads=1) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def client(engine_url: str, tiny: Path) -> Iterator[httpx.Client]:
    """A client of a gateway that embeds what is written."""
    settings = GatewaySettings(
        upstream=EngineSettings(url=engine_url), models=tiny_settings(tiny), semantic=SemanticSettings(k=5)
    )
    with served(create_app(settings)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def truth(encoder: Encoder, texts: list[str], *, stored_as_bytes: bool = True) -> list[float]:
    """Cosine of each text with the query, which is rounded."""
    made = encoder.encode(texts, "document")
    query = quantize_vectors(encoder.encode(QUERY, "query")).astype(np.float32)
    return cosines(query, quantize_vectors(made).astype(np.float32) if stored_as_bytes else made).tolist()  # type: ignore[no-any-return]


def search(client: httpx.Client, index: str, query: dict[str, Any], **more: Any) -> dict[str, float]:
    """Id → score."""
    answer = client.post(f"/{index}/_search", json={"query": query, "size": 100, "_source": False} | more)
    assert answer.status_code == 200, answer.text
    return {hit["_id"]: hit["_score"] for hit in answer.json()["hits"]["hits"]}


def test_bytes_are_written_and_searched(
    engine_url: str, client: httpx.Client, encoder: Encoder, fresh_index: Callable[[str], str], tmp_path: Path
) -> None:
    names = [fresh_index(engine_url) for _ in range(3)]
    kinds: list[dict[str, Any]] = [{"element_type": "byte"}, {"element_type": "byte", "index_type": "flat"}, {}]
    for name, kind in zip(names, kinds, strict=True):
        make(
            engine_url,
            name,
            of_model(encoder, **kind | {"element_type": ElementType(kind.get("element_type", "float"))}),
        )
        lines = bulk_lines([("index", {"_id": f"{name}-{n}"}, {"text": text}) for n, text in enumerate(TEXTS[1:], 1)])
        written = client.post(f"/{name}/_bulk", content=lines, headers=JSON).json()
        assert written["errors"] is False, written
        assert client.put(f"/{name}/_doc/{name}-0?refresh=true", json={"text": TEXTS[0]}).status_code == 201
    for name in names[:2]:
        for id, source in contents(engine_url, name).items():
            number = int(id.rpartition("-")[2])
            made = quantize_vectors(encoder.encode([TEXTS[number]], "document")[0]).astype(np.float32)
            assert np.abs(read_vector(source["embedding"], ElementType.BYTE) - made).max() <= 1
        # A load afterwards finds the same vectors.
        assert load(engine_url, encoder, name, dead=tmp_path / "dead").unchanged == len(TEXTS)
        expected = truth(encoder, TEXTS)
        found = search(client, name, {"match": {"semantic": QUERY}})
        assert len(found) == 5
        assert [2 * score - 1 for score in found.values()] == pytest.approx(sorted(expected)[:-6:-1], abs=2e-3)
        least = sorted(expected)[-3] - 1e-3
        query = {"match": {"semantic": {"query": QUERY, "k": 30, "min_cosine": least}}}
        near = search(client, name, query)
        assert {int(id.rpartition("-")[2]) for id in near} == {n for n, value in enumerate(expected) if value >= least}

    # Both kinds in one search: each with numbers that its field takes, and cosines that can be compared.
    both = search(client, ",".join(names), {"match": {"semantic": {"query": QUERY, "k": 30}}})
    assert len(both) == 30
    expected = [*truth(encoder, TEXTS) * 2, *truth(encoder, TEXTS, stored_as_bytes=False)]
    assert [2 * score - 1 for score in both.values()] == pytest.approx(sorted(expected)[:-31:-1], abs=5e-3)
    assert {name for name in names for id in both if id.startswith(name)} == set(names)


def test_section_knn_with_a_text_searches_bytes(
    es9_url: str, tiny: Path, encoder: Encoder, fresh_index: Callable[[str], str]
) -> None:
    name = fresh_index(es9_url)
    make(es9_url, name, of_model(encoder, element_type=ElementType.BYTE))
    settings = GatewaySettings(upstream=EngineSettings(url=es9_url), models=tiny_settings(tiny))
    with served(create_app(settings)) as url, httpx.Client(base_url=url, timeout=60) as client:
        for number in range(3):
            assert client.put(f"/{name}/_doc/{number}?refresh=true", json={"text": TEXTS[number]}).status_code == 201
        builder = {"text_embedding": {"model_text": QUERY}}
        section = {"field": "embedding", "query_vector_builder": builder, "k": 3, "num_candidates": 10}
        answer = client.post(f"/{name}/_search", json={"knn": section, "_source": False})
        assert answer.status_code == 200, answer.text
        scores = [hit["_score"] for hit in answer.json()["hits"]["hits"]]
    assert [2 * score - 1 for score in scores] == pytest.approx(sorted(truth(encoder, TEXTS[:3]))[::-1], abs=2e-3)
