"""The environments of the libraries that search is compared with."""

from __future__ import annotations

from benchmarks.encode_peers.environments import SENTENCE_TRANSFORMERS, Environment

_EMBEDDINGS = SENTENCE_TRANSFORMERS.requirements
_TORCH = SENTENCE_TRANSFORMERS.base

# LangChain's package needs version 8 of the client, which servers of version 9 understand.
LANGCHAIN_ELASTICSEARCH = Environment(
    "langchain-elasticsearch",
    (*_EMBEDDINGS, "langchain-huggingface==1.2.3", "langchain-elasticsearch==1.0.0", "elasticsearch==8.19.3"),
    _TORCH,
)
ELASTICSEARCH_PY = Environment("elasticsearch-py", (*_EMBEDDINGS, "elasticsearch==9.5.1"), _TORCH)
# Servers of version 8 refuse a client of version 9.
ELASTICSEARCH_PY_8 = Environment("elasticsearch-py-8", (*_EMBEDDINGS, "elasticsearch==8.19.3"), _TORCH)
LANGCHAIN_OPENSEARCH = Environment(
    "langchain-opensearch",
    (*_EMBEDDINGS, "langchain-huggingface==1.2.3", "langchain-community==0.4.2", "opensearch-py==3.2.0"),
    _TORCH,
)
