"""A library that loads documents, in its own process; speaks the protocol of `encode_peers/worker.py`.

Runs in the environments of the peers, where neither es-sbert nor this package is installed. Requests:

    {"do": "load", "library": …, "model": FOLDER, "threads": N, "options": {"url": …, "index": …}}
        loads the model and connects → as in `encode_peers/worker.py`
    {"do": "ingest", "documents": JSONL FILE}
        loads the documents (`id`, `text`) into the index and refreshes it → {"seconds": S}
    {"do": "memory"}  → {"megabytes": the process's largest resident set}

The index exists and is empty. The vector's field is `embedding`.
"""

from __future__ import annotations

import importlib.util
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VECTOR = "embedding"
_CHUNK = 500  # documents of a bulk request: the default of both clients' helpers
_WINDOW = 2_000  # texts that a script embeds at a time
_PIPELINE_SECONDS = 300  # for a bulk request whose documents the engine embeds

Options = dict[str, Any]


def _protocol() -> Any:
    """`encode_peers/worker.py`, by its path."""
    file = Path(__file__).resolve().parents[1] / "encode_peers/worker.py"
    spec = importlib.util.spec_from_file_location("encode_worker", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


protocol = _protocol()


def _sentence_transformer(model: str, threads: int) -> Any:
    """The model with the defaults of its library."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return SentenceTransformer(model, device="cpu", local_files_only=True)


class Library(ABC):
    """A library with its client and its model."""

    details = ""

    @abstractmethod
    def ingest(self, ids: list[str], texts: list[str]) -> None:
        """Load documents; searches see them afterwards."""


class LangChainElasticsearch(Library):
    """`ElasticsearchStore` with `HuggingFaceEmbeddings`."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from langchain_elasticsearch import DenseVectorStrategy, ElasticsearchStore

        self._store = ElasticsearchStore(
            options["index"],
            embedding=_langchain_embeddings(model, threads),
            es_url=options["url"],
            query_field="text",
            vector_query_field=VECTOR,
            strategy=DenseVectorStrategy(),
        )

    def ingest(self, ids: list[str], texts: list[str]) -> None:
        self._store.add_texts(texts, ids=ids)


class LangChainOpenSearch(Library):
    """`OpenSearchVectorSearch` with `HuggingFaceEmbeddings`."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from langchain_community.vectorstores import OpenSearchVectorSearch

        embeddings = _langchain_embeddings(model, threads)
        self._store = OpenSearchVectorSearch(options["url"], options["index"], embeddings, engine="lucene")

    def ingest(self, ids: list[str], texts: list[str]) -> None:
        self._store.add_texts(texts, ids=ids, bulk_size=len(texts), vector_field=VECTOR, text_field="text")


def _langchain_embeddings(model: str, threads: int) -> Any:
    import torch
    from langchain_huggingface import HuggingFaceEmbeddings

    torch.set_num_threads(threads)
    return HuggingFaceEmbeddings(model_name=model, model_kwargs={"device": "cpu", "local_files_only": True})


class VectorStore(Library):
    """elasticsearch-py's own vector store, with sentence-transformers as its embedding service."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from elasticsearch import Elasticsearch
        from elasticsearch.helpers.vectorstore import DenseVectorStrategy, EmbeddingService
        from elasticsearch.helpers.vectorstore import VectorStore as Store

        encoder = _sentence_transformer(model, threads)

        class Service(EmbeddingService):
            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                vectors: list[list[float]] = encoder.encode(texts, show_progress_bar=False).tolist()
                return vectors

            def embed_query(self, query: str) -> list[float]:
                return self.embed_documents([query])[0]

        self._store = Store(
            Elasticsearch(options["url"]),
            index=options["index"],
            retrieval_strategy=DenseVectorStrategy(),
            embedding_service=Service(),
            text_field="text",
            vector_field=VECTOR,
        )

    def ingest(self, ids: list[str], texts: list[str]) -> None:
        self._store.add_texts(texts, ids=ids)


class _Haystack(Library):
    """`SentenceTransformersDocumentEmbedder` and a document store; refreshed once, at the end."""

    def __init__(self, model: str, threads: int, store: Any) -> None:
        import torch
        from haystack.utils import ComponentDevice
        from haystack_integrations.components.embedders.sentence_transformers import (
            SentenceTransformersDocumentEmbedder,
        )

        torch.set_num_threads(threads)
        self._embedder = SentenceTransformersDocumentEmbedder(
            model=model, device=ComponentDevice.from_str("cpu"), progress_bar=False, local_files_only=True
        )
        self._embedder.warm_up()
        self._store = store
        store.count_documents()  # connects

    def ingest(self, ids: list[str], texts: list[str]) -> None:
        from haystack import Document

        documents = [Document(id=id_, content=text) for id_, text in zip(ids, texts, strict=True)]
        self._store.write_documents(self._embedder.run(documents)["documents"], refresh=False)
        self._refresh()

    @abstractmethod
    def _refresh(self) -> None:
        """Let searches see the documents."""


class HaystackElasticsearch(_Haystack):
    """`ElasticsearchDocumentStore`."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from haystack_integrations.document_stores.elasticsearch import ElasticsearchDocumentStore

        self._index = options["index"]
        super().__init__(model, threads, ElasticsearchDocumentStore(hosts=options["url"], index=self._index))

    def _refresh(self) -> None:
        self._store.client.indices.refresh(index=self._index)


class HaystackOpenSearch(_Haystack):
    """`OpenSearchDocumentStore`."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from haystack_integrations.document_stores.opensearch import OpenSearchDocumentStore

        self._url, self._index = options["url"], options["index"]
        super().__init__(model, threads, OpenSearchDocumentStore(hosts=self._url, index=self._index))

    def _refresh(self) -> None:
        from opensearchpy import OpenSearch

        OpenSearch(self._url).indices.refresh(index=self._index)


class _Script(Library):
    """What one writes by hand: a generator of bulk actions that embeds a window of texts at a time.

    Args:
        client: Of either engine.
        helpers: The module of its bulk helpers.
        parallel: Whether several threads send.
    """

    def __init__(self, model: str, threads: int, options: Options, client: Any, helpers: Any, parallel: bool) -> None:
        self._encoder = _sentence_transformer(model, threads)
        self._index, self._client = options["index"], client
        self._send = helpers.parallel_bulk if parallel else helpers.streaming_bulk
        self._packed: Callable[[Any], Any] = lambda vector: vector.tolist()

    def ingest(self, ids: list[str], texts: list[str]) -> None:
        for sent, item in self._send(self._client, self._actions(ids, texts), chunk_size=_CHUNK):
            if not sent:
                raise RuntimeError(f"not indexed: {item}")
        self._client.indices.refresh(index=self._index)

    def _actions(self, ids: list[str], texts: list[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(texts), _WINDOW):
            window = texts[start : start + _WINDOW]
            vectors = self._encoder.encode(window, show_progress_bar=False)
            for id_, text, vector in zip(ids[start : start + _WINDOW], window, vectors, strict=True):
                source = {"text": text, VECTOR: self._packed(vector)}
                yield {"_op_type": "index", "_index": self._index, "_id": id_, "_source": source}


class ElasticsearchScript(_Script):
    """With elasticsearch-py; vectors as base64 where the client has `pack_dense_vector` and the engine reads it."""

    def __init__(self, model: str, threads: int, options: Options, *, parallel: bool = False) -> None:
        from elasticsearch import Elasticsearch, helpers

        super().__init__(model, threads, options, Elasticsearch(options["url"]), helpers, parallel)
        if options["base64"] and hasattr(helpers, "pack_dense_vector"):
            self._packed = helpers.pack_dense_vector
            self.details = "vectors as base64"


class OpenSearchScript(_Script):
    """With opensearch-py."""

    def __init__(self, model: str, threads: int, options: Options, *, parallel: bool = False) -> None:
        from opensearchpy import OpenSearch, helpers

        super().__init__(model, threads, options, OpenSearch(options["url"]), helpers, parallel)


def _parallel(script: Any) -> Callable[[str, int, Options], Any]:
    return lambda model, threads, options: script(model, threads, options, parallel=True)


LIBRARIES = {
    "langchain-elasticsearch": LangChainElasticsearch,
    "langchain-opensearch": LangChainOpenSearch,
    "vectorstore": VectorStore,
    "haystack-elasticsearch": HaystackElasticsearch,
    "haystack-opensearch": HaystackOpenSearch,
    "elasticsearch-py streaming_bulk": ElasticsearchScript,
    "elasticsearch-py parallel_bulk": _parallel(ElasticsearchScript),
    "opensearch-py streaming_bulk": OpenSearchScript,
    "opensearch-py parallel_bulk": _parallel(OpenSearchScript),
}


class Loader(protocol.Contender):  # type: ignore[misc, name-defined]  # of a module that is loaded by its path
    """Answers the requests."""

    def _ingest(self, request: dict[str, Any]) -> dict[str, Any]:
        with Path(request["documents"]).open(encoding="utf-8") as file:
            documents = [json.loads(line) for line in file]
        ids, texts = ([document[field] for document in documents] for field in ("id", "text"))
        begin = time.perf_counter()
        self._model.ingest(ids, texts)
        return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    protocol.serve(LIBRARIES, Loader)
