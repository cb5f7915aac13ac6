"""What is compared: the engine alone, es-sbert as a library and as a gateway, and other libraries."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.encode_peers.environments import Environment
from benchmarks.search_peers.environments import (
    ELASTICSEARCH_PY,
    ELASTICSEARCH_PY_8,
    LANGCHAIN_ELASTICSEARCH,
    LANGCHAIN_OPENSEARCH,
)
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.index.mapping import OPENSEARCH_TYPES, IndexType

ENGINE = "engine alone, ready vector"
LIBRARY = "es-sbert, library"
GATEWAY = "es-sbert, gateway"

MAIN_TYPE = IndexType.HNSW
# Types that are exact on quantized vectors are not measured.
_TYPES = (IndexType.HNSW, IndexType.INT8_HNSW, IndexType.INT4_HNSW, IndexType.BBQ_HNSW, IndexType.FLAT)
_CLIENTS, _PEER_CLIENTS = (1, 8, 64), (1, 8)


@dataclass(frozen=True)
class SearchPath:
    """A way from a query to its hits.

    Attributes:
        label: In the tables.
        library: Of `worker.LIBRARIES`.
        clients: Numbers of concurrent clients.
        environment: Where its process runs; None for that of the benchmark.
    """

    label: str
    library: str
    clients: tuple[int, ...]
    environment: Environment | None = None


def own_paths() -> list[SearchPath]:
    """Those that every index type is searched by."""
    return [
        SearchPath(ENGINE, "http", _CLIENTS),
        SearchPath(LIBRARY, "es-sbert", _CLIENTS),
        SearchPath(GATEWAY, "http", _CLIENTS),
    ]


def peer_paths(info: EngineInfo) -> list[SearchPath]:
    """The libraries that a user of this engine could choose instead."""
    langchain = "LangChain, sentence-transformers"
    if info.engine_type is EngineType.OPENSEARCH:
        return [SearchPath(langchain, "langchain-opensearch", _PEER_CLIENTS, LANGCHAIN_OPENSEARCH)]
    client = ELASTICSEARCH_PY_8 if info.version[0] == 8 else ELASTICSEARCH_PY
    return [
        SearchPath(langchain, "langchain-elasticsearch", _PEER_CLIENTS, LANGCHAIN_ELASTICSEARCH),
        SearchPath("elasticsearch-py, sentence-transformers", "elasticsearch-py", _PEER_CLIENTS, client),
    ]


def offered_types(info: EngineInfo) -> list[IndexType]:
    """The index types that are measured on an engine."""
    opensearch = info.engine_type is EngineType.OPENSEARCH
    return [kind for kind in _TYPES if not opensearch or kind in OPENSEARCH_TYPES]
