"""LangChain's ElasticsearchStore searches an index that es-sbert has filled; the text is in the field `text`.

pip install langchain-elasticsearch     # and es-sbert, as in the README
python examples/python/langchain_on_elasticsearch.py "someone makes music" --index docs
"""

from __future__ import annotations

import argparse

from elasticsearch import Elasticsearch
from langchain_elasticsearch import DenseVectorStrategy, ElasticsearchStore

from es_sbert import SemanticIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--index", required=True, help="filled by es-sbert ingest")
    parser.add_argument("--url", default="http://localhost:9200")
    given = parser.parse_args()

    with Elasticsearch(given.url) as client, SemanticIndex(given.index, client) as index:
        store = ElasticsearchStore(
            given.index, client=client, embedding=index.encoder, strategy=DenseVectorStrategy(),
            query_field="text", vector_query_field="embedding",
        )  # fmt: skip
        for document, score in store.similarity_search_with_score(given.question, k=3):
            print(f"{2 * score - 1:.4f}  {document.page_content}")


if __name__ == "__main__":
    main()
