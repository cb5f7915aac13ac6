"""`SemanticIndex` and `AsyncSemanticIndex` over the caller's own clients, on each real engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch, Elasticsearch
from opensearchpy import AsyncOpenSearch, OpenSearch

from es_sbert import AsyncSemanticIndex, SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import from_client
from es_sbert.errors import IndexMismatch, UsageError
from tests.engine.ingest_support import tiny_encoder
from tests.engine.sample_indices import SampleIndices, samples
from tests.raised import raises, raises_as_recorded

TEXT = "the man plays a guitar"


@pytest.fixture(scope="module")
def site(engine_url: str, tiny: Encoder) -> Iterator[SampleIndices]:
    with samples(engine_url, tiny) as made:
        yield made


def client_of(site: SampleIndices) -> Any:
    url = site.engine.info.url
    return OpenSearch(url) if site.opensearch else Elasticsearch(url)


def options(site: SampleIndices) -> dict[str, Any]:
    return {"encoder": site.encoder, "vector_field": "v"}


def test_sync_client_is_used_and_stays_open(site: SampleIndices) -> None:
    with SemanticIndex(site.one, site.engine, **options(site)) as own:
        expected = own.search(TEXT, 5).hits
    client = client_of(site)
    with SemanticIndex(site.one, client, **options(site)) as index:
        assert index.search(TEXT, 5).hits == expected
        assert len(index.hybrid(TEXT, 5)) == 5
        assert len(index.similar_to("3", 5)) == 5
        assert index.engine.info == site.engine.info
    with raises_as_recorded(UsageError):
        index.search(TEXT, 5)
    with raises_as_recorded(UsageError):
        index.delete("none")
    assert from_client(client).count(site.one) > 0  # still open
    client.close()


def test_async_searches_find_the_same_without_blocking_the_loop(site: SampleIndices) -> None:
    words = ("cat", "mat", "on")
    client, url = client_of(site), site.engine.info.url
    with SemanticIndex(site.one, site.engine, **options(site)) as own:
        expected = [own.search(f"{TEXT} {word}", 5).hits for word in words]
        fused, body = own.hybrid(TEXT, 5).hits, own.body(TEXT, 5)

    async def search() -> None:
        for engine in (url, client, site.engine):
            index = AsyncSemanticIndex(site.one, engine, concurrency=2, **options(site))  # opened by the first search
            searches = asyncio.gather(*(index.search(f"{TEXT} {word}", 5) for word in words))
            ticks = 0
            while not searches.done():
                await asyncio.sleep(0)
                ticks += 1
            assert ticks > 10
            assert [result.hits for result in await searches] == expected
            assert (await index.hybrid(TEXT, 5)).hits == fused
            assert await index.body(TEXT, 5) == body
            assert len(await index.hybrid_bodies(TEXT, 5)) == 3
            assert len(await index.similar_to("3", 5)) == 5
            assert len(await index.search_vector(site.query(TEXT), 5)) == 5
            with raises(UsageError, "k"):
                await index.search(TEXT, 0)
            await index.close()
            with raises_as_recorded(UsageError):
                await index.search(TEXT, 5)

    asyncio.run(search())
    client.close()


def test_open_errors_are_raised_on_open(site: SampleIndices) -> None:
    url = site.engine.info.url

    async def search() -> None:
        with raises(IndexMismatch, "model"):
            async with AsyncSemanticIndex(site.foreign, url, **options(site)):
                raise AssertionError("it was opened")
        async with AsyncOpenSearch(url) if site.opensearch else AsyncElasticsearch(url) as client:
            for other in (client, None):
                with raises(UsageError, "engine"):
                    from_client(other)

    asyncio.run(search())


_CLIENT8 = """
import sys
import elasticsearch
from elasticsearch import Elasticsearch
from es_sbert.encoder.encoder import Encoder
from es_sbert import SemanticIndex

assert elasticsearch.__version__[0] == 8, elasticsearch.__version__
url, index, model = sys.argv[1:]
text = "the man plays a guitar"

with Encoder(model, precision="fp32", threads=1) as encoder, Elasticsearch(url) as client:
    with SemanticIndex(index, client, encoder=encoder, vector_field="v") as opened:
        assert len(opened.hybrid(text, 5)) == 5
        assert len(opened.similar_to("3", 5)) == 5
        found = [hit.id for hit in opened.search(text, 5)]
    with SemanticIndex(index, url, encoder=encoder, vector_field="v") as opened:
        assert [hit.id for hit in opened.search(text, 5)] == found
print(*found)
"""


def test_elasticsearch_py_8_client(es8_url: str, tmp_path: Path) -> None:
    """In a new interpreter, for which that version comes before the installed one."""
    folder = tmp_path / "client8"
    # What else they need is installed, in versions that serve both.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "elasticsearch>=8.19,<9", "elastic-transport>=8.15,<9"], check=True, timeout=600)
    with tiny_encoder(tmp_path) as encoder, samples(es8_url, encoder) as made:
        with SemanticIndex(made.one, made.engine, encoder=encoder, vector_field="v") as index:
            expected = [hit.id for hit in index.search(TEXT, 5)]
        environment = {
            "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}",
            "PATH": "/usr/bin:/bin",
            "ES_SBERT_CACHE": os.environ["ES_SBERT_CACHE"],
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            [sys.executable, "-c", _CLIENT8, es8_url, made.one, str(tmp_path / "model")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == expected
