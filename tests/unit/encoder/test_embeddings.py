"""The encoder under the names of LangChain's and elasticsearch-py's embedding objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from elasticsearch.helpers.vectorstore import EmbeddingService

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from tests.tiny import HIDDEN, write_tiny_bert

TEXTS = ["a man plays the guitar", "", "the cat sleeps"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """With a prompt for each kind, so that queries and documents differ."""
    prompts = {"query": "query: ", "document": "passage: "}
    folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny", prompts=prompts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        with Encoder(str(folder), device="cpu", precision="fp32", threads=1) as encoder:
            yield encoder


def test_documents_and_queries_get_their_prompts(encoder: Encoder) -> None:
    documents = encoder.embed_documents(TEXTS)
    assert documents == encoder.encode(TEXTS, "document").tolist()
    assert encoder.embed_query(TEXTS[0]) == encoder.encode([TEXTS[0]], "query")[0].tolist()
    assert encoder.embed_query(TEXTS[0]) != documents[0]
    assert encoder.embed_documents([]) == []


def test_embeddings_are_plain_floats(encoder: Encoder) -> None:
    """What json and the engines' clients take; numpy's own numbers they refuse."""
    for vector in (encoder.embed_query("a"), *encoder.embed_documents(["a", "man"])):
        assert len(vector) == HIDDEN
        assert {type(number) for number in vector} == {float}


def test_async_methods_do_not_block_the_loop(encoder: Encoder) -> None:
    async def together() -> tuple[list[list[float]], list[float]]:
        return await asyncio.gather(encoder.aembed_documents(TEXTS), encoder.aembed_query("a man"))

    documents, query = asyncio.run(together())
    assert documents == encoder.embed_documents(TEXTS)
    assert query == encoder.embed_query("a man")


def test_implements_the_elasticsearch_embedding_interface() -> None:
    assert EmbeddingService.__abstractmethods__ <= set(dir(Encoder))


def test_invalid_input_raises_usage_error(encoder: Encoder) -> None:
    with pytest.raises(UsageError, match="cannot be tokenized"):
        encoder.embed_query("\ud800")
