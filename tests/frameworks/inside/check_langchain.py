"""LangChain's vector stores with an encoder for their embeddings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch
from langchain_core.embeddings import Embeddings
from langchain_elasticsearch import (
    ElasticsearchStore,
)

from es_sbert.encoder.encoder import Encoder
from es_sbert.search.semantic_index import SemanticIndex
from tests.engine.ingest_support import load
from tests.frameworks.articles import QUESTION, TEXTS, Fill, RunExample, expected_lines, same_lines

# The package says so whenever it is imported.
sunset = pytest.mark.filterwarnings("ignore:`langchain-community` is being sunset:DeprecationWarning")


@pytest.fixture(params=["es9", "es8"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_encoder_implements_embeddings_interface(encoder: Encoder) -> None:
    for name in ("embed_documents", "embed_query", "aembed_documents", "aembed_query"):
        assert asyncio.iscoroutinefunction(getattr(Encoder, name)) is asyncio.iscoroutinefunction(
            getattr(Embeddings, name)
        )
    # For code that asks for the type instead of calling.
    Embeddings.register(Encoder)
    assert isinstance(encoder, Embeddings)


@pytest.mark.parametrize("engine", ["es9", "es8", "opensearch"])
@sunset
def test_document_added_by_store_is_found_in_our_index(
    engine: str, encoder: Encoder, fill: Fill, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index, added = fill(url), "An orchestra rehearses a symphony."
    if engine == "opensearch":
        from langchain_community.vectorstores import OpenSearchVectorSearch

        theirs = OpenSearchVectorSearch(url, index, encoder, engine="lucene")
        theirs.add_texts([added], ids=["new"], text_field="text", vector_field="embedding")
        theirs.client.close()
    else:
        with Elasticsearch(url) as client:
            store = ElasticsearchStore(index, client=client, embedding=encoder, vector_query_field="embedding")
            store.add_texts([added], ids=["new"])
    with SemanticIndex(index, url, encoder=encoder) as semantic:
        nearest = semantic.search("a rehearsal of classical music", 1).hits[0]
    assert (nearest.id, nearest.source["text"]) == ("new", added)
    # It bears no fingerprint, so it is embedded anew; those that a load has written are left alone.
    summary = load(url, encoder, index, dead=tmp_path / "dead")
    assert (summary.indexed, summary.unchanged) == (1, len(TEXTS))


@pytest.mark.parametrize(
    ("example", "engine"),
    [
        ("langchain_on_elasticsearch", "es9"),
        ("langchain_on_elasticsearch", "es8"),
        ("langchain_on_opensearch", "opensearch"),
    ],
)
@sunset
def test_examples(
    example: str, engine: str, request: pytest.FixtureRequest, encoder: Encoder, fill: Fill, run_example: RunExample
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index = fill(url)
    printed = run_example(example, QUESTION, "--index", index, "--url", url)
    assert same_lines(printed, expected_lines(url, index, encoder))
