"""A contender of the comparison of searches, in its own process; adds to the requests of `encode_peers/worker.py`:

    {"do": "load", "library": …, "model": NAME OR FOLDER, "threads": N, "options": {"url": …, "index": …, …}}
    {"do": "run", "queries": JSON FILE, "clients": N, "seconds": S, "repeat": BOOLEAN}
        searches in a closed loop until the time is over or, without `repeat`, every query was sent
        → {"seconds": S, "processor_seconds": S, "checking": processor seconds after the run,
           "milliseconds": [of each answer]}
    {"do": "hits", "queries": JSON FILE}  → {"ids": [[ids of the hits] of each query]}

A query is a text, or for `http` a request body. A run fails if a search fails, has fewer hits than it should, or lacks
shards. Runs in the environments of the peers, with the folder of `benchmarks` on the path.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.encode_peers.worker import PACKAGES, Contender, Options, serve_contender

HITS, CANDIDATES = 10, 100  # what `es-sbert search` asks for
_TIMEOUT = 60.0  # seconds for an answer

Search = Callable[[str], Any]


class EsSbert:
    """`SemanticIndex.search`, one object for all clients."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from es_sbert import SemanticIndex

        self._index = SemanticIndex(options["index"], options["url"], device="cpu")
        self.details = self._index.encoder.info.variant

    def client(self) -> Search:
        return lambda text: self._index.search(text, HITS)

    def ids(self, answer: Any) -> list[str]:
        return [hit.id for hit in answer]

    def encode(self, texts: list[str]) -> Any:
        return self._index.encoder.encode(texts, "query")


class HttpClient:
    """One connection. It does as little as it can: at many clients, its work is what the engine lacks."""

    def __init__(self, url: str, path: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port or 80), timeout=_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"

    def __call__(self, body: str) -> bytes:
        """The body of the answer.

        Raises:
            ValueError: the status is not 200.
        """
        data = body.encode()
        self._socket.sendall(f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = self._file.readline().split(b" ", 2)[1]
        headers = dict(self._headers())
        answer = self._chunks() if headers.get(b"transfer-encoding") == b"chunked" else self._read(headers)
        if status != b"200":
            raise ValueError(f"{status.decode()}: {answer[:300].decode(errors='replace')}")
        return answer

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()

    def _headers(self) -> Iterator[tuple[bytes, bytes]]:
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            yield name.lower(), value.strip().lower()

    def _read(self, headers: dict[bytes, bytes]) -> bytes:
        return self._file.read(int(headers[b"content-length"]))

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._file.readline(), 16):
            parts.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(parts)


class Http:
    """Ready request bodies, sent by plain HTTP."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        self._place = options["url"], f"/{options['index']}/_search"

    def client(self) -> Search:
        return HttpClient(*self._place)

    def ids(self, answer: bytes) -> list[str]:
        return complete_hits(json.loads(answer))


def complete_hits(answer: Any) -> list[str]:
    """The ids of an engine's answer.

    Raises:
        ValueError: it lacks shards.
    """
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise ValueError(f"an answer lacks shards: {answer['_shards']}")
    return [hit["_id"] for hit in answer["hits"]["hits"]]


class LangChainElasticsearch:
    """LangChain's `ElasticsearchStore` over the index that es-sbert loaded."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from langchain_core.documents import Document
        from langchain_elasticsearch import DenseVectorStrategy, ElasticsearchStore

        self._embeddings = _langchain_embeddings(model, threads)
        self._store = ElasticsearchStore(
            options["index"],
            embedding=self._embeddings,
            es_url=options["url"],
            vector_query_field=options["field"],
            strategy=DenseVectorStrategy(),
        )
        # By default it leaves the ids out.
        self._document = lambda hit: Document(page_content=hit["_source"]["text"], id=hit["_id"])

    def client(self) -> Search:
        return lambda text: self._store.similarity_search(text, k=HITS, fetch_k=CANDIDATES, doc_builder=self._document)

    def ids(self, answer: Any) -> list[str]:
        return [document.id for document in answer]

    def encode(self, texts: list[str]) -> Any:
        return [self._embeddings.embed_query(text) for text in texts]


class LangChainOpenSearch:
    """LangChain's `OpenSearchVectorSearch` over the index that es-sbert loaded."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from langchain_community.vectorstores import OpenSearchVectorSearch

        self._embeddings = _langchain_embeddings(model, threads)
        self._store = OpenSearchVectorSearch(options["url"], options["index"], self._embeddings, engine="lucene")
        self._field = options["field"]

    def client(self) -> Search:
        return lambda text: self._store.similarity_search(text, k=HITS, vector_field=self._field, text_field="text")

    def ids(self, answer: Any) -> list[str]:
        return [document.id for document in answer]

    def encode(self, texts: list[str]) -> Any:
        return [self._embeddings.embed_query(text) for text in texts]


def _langchain_embeddings(model: str, threads: int) -> Any:
    import torch
    from langchain_huggingface import HuggingFaceEmbeddings

    torch.set_num_threads(threads)
    return HuggingFaceEmbeddings(model_name=model, model_kwargs={"device": "cpu", "local_files_only": True})


class ElasticsearchPy:
    """elasticsearch-py's `VectorStore` over the index that es-sbert loaded, with sentence-transformers."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        import torch
        from elasticsearch import Elasticsearch
        from elasticsearch.helpers.vectorstore import DenseVectorStrategy, VectorStore
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(model, device="cpu", local_files_only=True)
        self._store = VectorStore(
            Elasticsearch(options["url"]),
            index=options["index"],
            retrieval_strategy=DenseVectorStrategy(),
            embedding_service=self,
            text_field="text",
            vector_field=options["field"],
        )

    def embed_query(self, query: str) -> list[float]:
        """As the vector store calls it."""
        vector: list[float] = self._model.encode(query, show_progress_bar=False).tolist()
        return vector

    def client(self) -> Search:
        return lambda text: self._store.search(query=text, k=HITS, num_candidates=CANDIDATES)

    def ids(self, answer: Any) -> list[str]:
        return [hit["_id"] for hit in answer]

    def encode(self, texts: list[str]) -> Any:
        return [self.embed_query(text) for text in texts]


LIBRARIES = {
    "es-sbert": EsSbert,
    "http": Http,
    "langchain-elasticsearch": LangChainElasticsearch,
    "langchain-opensearch": LangChainOpenSearch,
    "elasticsearch-py": ElasticsearchPy,
}
_PACKAGES = {name: PACKAGES[name] for name in ("es-sbert", "sentence-transformers", "torch", "transformers")} | {
    "elasticsearch": "elasticsearch",
    "opensearch-py": "opensearchpy",
    "langchain-core": "langchain_core",
    "langchain-huggingface": "langchain_huggingface",
    "langchain-elasticsearch": "langchain_elasticsearch",
    "langchain-community": "langchain_community",
    "onnxruntime-gpu": "onnxruntime",
    "openvino": "openvino",
}


class SearchContender(Contender):
    """Answers the requests.

    Args:
        libraries: Name → class with `client`, `ids`, `encode` and `details`, made from model, threads and options.
    """

    def __init__(self, libraries: dict[str, Any]) -> None:
        super().__init__(libraries, _PACKAGES)

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        clients = [self._model.client() for _ in range(request["clients"])]
        read = _read(request["queries"])
        queries = itertools.cycle(read) if request["repeat"] else iter(read)
        begin = time.process_time()
        seconds, answers = closed_loop(clients, queries, request["seconds"])
        end = time.process_time()
        for _, answer in answers:
            check_count(self._model.ids(answer))
        return {
            "seconds": seconds,
            "processor_seconds": end - begin,
            "checking": time.process_time() - end,
            "milliseconds": [round(1000 * took, 3) for took, _ in answers],
        }

    def _hits(self, request: dict[str, Any]) -> dict[str, Any]:
        search = self._model.client()
        return {"ids": [self._model.ids(search(query)) for query in _read(request["queries"])]}


def _read(file: str) -> list[str]:
    queries: list[str] = json.loads(Path(file).read_text(encoding="utf-8"))
    return queries


def check_count(ids: Sequence[str]) -> None:
    """Refuse an answer with too few hits.

    Raises:
        ValueError: it has.
    """
    if len(ids) != HITS:
        raise ValueError(f"an answer has {len(ids)} hits in place of {HITS}")


def closed_loop(
    clients: Sequence[Search], queries: Iterator[str], seconds: float
) -> tuple[float, list[tuple[float, Any]]]:
    """Each client sends its next query once it has the answer to the one before.

    Args:
        clients: One function for each client, called in its own thread.
        queries: Sent as far as they and the time suffice.
        seconds: No query is sent later than this.

    Returns:
        The time until the last answer, and seconds and answer of each query.
    """
    lock = threading.Lock()
    start = threading.Barrier(len(clients) + 1)
    found: list[tuple[float, Any]] = []

    def work(search: Search) -> None:
        start.wait()
        begin = time.perf_counter()
        sent = begin
        while sent - begin < seconds:
            with lock:
                query = next(queries, None)
            if query is None:
                return
            answer = search(query)
            now = time.perf_counter()
            found.append((now - sent, answer))
            sent = now

    with ThreadPoolExecutor(len(clients)) as pool:
        futures = [pool.submit(work, client) for client in clients]
        start.wait()
        begin = time.perf_counter()
        for future in futures:
            future.result()
    return time.perf_counter() - begin, found


if __name__ == "__main__":
    serve_contender(SearchContender(LIBRARIES))
