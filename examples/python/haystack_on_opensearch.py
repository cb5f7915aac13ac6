"""A Haystack pipeline searches an OpenSearch index that es-sbert has filled; the text is in the field `content`.

pip install opensearch-haystack     # and es-sbert with the extra `haystack`, as in the README
python examples/python/haystack_on_opensearch.py "someone makes music" --index docs
"""

from __future__ import annotations

import argparse

from haystack import Pipeline
from haystack_integrations.components.retrievers.opensearch import OpenSearchEmbeddingRetriever
from haystack_integrations.document_stores.opensearch import OpenSearchDocumentStore

from es_sbert.integrations.haystack import SbertTextEmbedder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--index", required=True, help="filled by es-sbert ingest")
    parser.add_argument("--url", default="http://localhost:9200")
    given = parser.parse_args()

    store = OpenSearchDocumentStore(hosts=given.url, index=given.index)
    pipeline = Pipeline()
    pipeline.add_component("embedder", SbertTextEmbedder("all-MiniLM-L6-v2"))
    pipeline.add_component("retriever", OpenSearchEmbeddingRetriever(document_store=store, top_k=3))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    answer = pipeline.run({"embedder": {"text": given.question}})
    for document in answer["retriever"]["documents"]:
        print(f"{2 * document.score - 1:.4f}  {document.content}")
    pipeline.close()
    store.close()


if __name__ == "__main__":
    main()
