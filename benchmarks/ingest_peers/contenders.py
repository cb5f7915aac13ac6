"""Who is compared: `es-sbert ingest`, and the libraries that a user could load documents with instead."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.encode_peers.environments import SENTENCE_TRANSFORMERS, Environment
from es_sbert.engines.engine_info import EngineInfo, EngineType

OWN = "es-sbert ingest"

# langchain-elasticsearch and elasticsearch-haystack need the client of Elasticsearch 8, which both versions answer.
_CLIENT_8 = "elasticsearch==8.19.3"
_OPENSEARCH_CLIENT = "opensearch-py==3.2.0"
_LANGCHAIN_EMBEDDINGS = "langchain-huggingface==1.2.3"
_HAYSTACK = ("haystack-ai==3.4.1", "sentence-transformers-haystack==2.0.0")
ELASTICSEARCH_9 = Environment("elasticsearch-9", ("elasticsearch==9.5.1",), SENTENCE_TRANSFORMERS)
ELASTICSEARCH_8 = Environment("elasticsearch-8", (_CLIENT_8,), SENTENCE_TRANSFORMERS)
OPENSEARCH = Environment("opensearch-py", (_OPENSEARCH_CLIENT,), SENTENCE_TRANSFORMERS)
LANGCHAIN_ELASTICSEARCH = Environment(
    "langchain-elasticsearch",
    ("langchain-elasticsearch==1.0.0", _LANGCHAIN_EMBEDDINGS, _CLIENT_8),
    SENTENCE_TRANSFORMERS,
)
LANGCHAIN_OPENSEARCH = Environment(
    "langchain-opensearch",
    ("langchain-community==0.4.2", _LANGCHAIN_EMBEDDINGS, _OPENSEARCH_CLIENT),
    SENTENCE_TRANSFORMERS,
)
HAYSTACK_ELASTICSEARCH = Environment(
    "haystack-elasticsearch", ("elasticsearch-haystack==7.1.0", *_HAYSTACK, _CLIENT_8), SENTENCE_TRANSFORMERS
)
HAYSTACK_OPENSEARCH = Environment(
    "haystack-opensearch", ("opensearch-haystack==9.0.0", *_HAYSTACK, _OPENSEARCH_CLIENT), SENTENCE_TRANSFORMERS
)


@dataclass(frozen=True)
class Contender:
    """A way to load documents.

    Attributes:
        label: In the tables.
        library: Of `worker.LIBRARIES`; empty for es-sbert, whose command is run.
        environment: Where it runs; None for es-sbert, which runs where the benchmark does.
        settings: How it is called, for the page.
    """

    label: str
    library: str = ""
    environment: Environment | None = None
    settings: str = ""

    @property
    def ours(self) -> bool:
        """Whether this is es-sbert."""
        return self.environment is None


def contenders(engine: EngineInfo) -> list[Contender]:
    """es-sbert and the libraries that load into this engine."""
    own = Contender(OWN, settings="its defaults, on the CPU; they disable refreshes until the load ends")
    peers = _for_elasticsearch(engine) if engine.engine_type is EngineType.ELASTICSEARCH else _for_opensearch()
    return [own, *peers]


def _for_elasticsearch(engine: EngineInfo) -> list[Contender]:
    client = ELASTICSEARCH_9 if engine.version[0] >= 9 else ELASTICSEARCH_8
    return [
        Contender(
            "LangChain ElasticsearchStore",
            "langchain-elasticsearch",
            LANGCHAIN_ELASTICSEARCH,
            "one call of `add_texts`, which embeds all texts and then sends bulk requests of 500 documents",
        ),
        Contender(
            "elasticsearch-py VectorStore",
            "vectorstore",
            client,
            "one call of `add_texts`, which embeds all texts and then sends bulk requests of 500 documents",
        ),
        Contender(
            "Haystack ElasticsearchDocumentStore",
            "haystack-elasticsearch",
            HAYSTACK_ELASTICSEARCH,
            "`SentenceTransformersDocumentEmbedder`, then `write_documents` with `refresh=False`, which its "
            "documentation recommends for bulk operations, in requests of 500 documents",
        ),
        *_scripts("elasticsearch-py", client),
    ]


def _for_opensearch() -> list[Contender]:
    return [
        Contender(
            "LangChain OpenSearchVectorSearch",
            "langchain-opensearch",
            LANGCHAIN_OPENSEARCH,
            "one call of `add_texts` with `bulk_size` raised to the number of documents, as its error message asks; it "
            "sends bulk requests of 500 documents or 1 MB",
        ),
        Contender(
            "Haystack OpenSearchDocumentStore",
            "haystack-opensearch",
            HAYSTACK_OPENSEARCH,
            "`SentenceTransformersDocumentEmbedder`, then `write_documents` with `refresh=False`, in requests of 500 "
            "documents",
        ),
        *_scripts("opensearch-py", OPENSEARCH),
    ]


def _scripts(client: str, environment: Environment) -> list[Contender]:
    return [
        Contender(
            f"script with {client}, streaming_bulk",
            f"{client} streaming_bulk",
            environment,
            "a generator that embeds 2,000 texts at a time; bulk requests of 500 documents",
        ),
        Contender(
            f"script with {client}, parallel_bulk",
            f"{client} parallel_bulk",
            environment,
            "the same generator; 4 threads send bulk requests of 500 documents while it embeds",
        ),
    ]
