"""A Haystack pipeline searches an index that es-sbert has filled; the text is in the field `content`.

pip install elasticsearch-haystack opensearch-haystack
python examples/python/haystack_pipeline.py "someone makes music" --index docs
"""

from __future__ import annotations

import argparse

from haystack import Pipeline, component
from haystack_integrations.components.retrievers.elasticsearch import ElasticsearchEmbeddingRetriever
from haystack_integrations.components.retrievers.opensearch import OpenSearchEmbeddingRetriever
from haystack_integrations.document_stores.elasticsearch import ElasticsearchDocumentStore
from haystack_integrations.document_stores.opensearch import OpenSearchDocumentStore

from es_sbert import Encoder, SemanticIndex


@component
class TextEmbedder:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        return {"embedding": self.encoder.embed_query(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--index", required=True, help="filled by es-sbert ingest")
    parser.add_argument("--url", default="http://localhost:9200")
    parser.add_argument("--opensearch", action="store_true")
    given = parser.parse_args()

    if given.opensearch:
        store = OpenSearchDocumentStore(hosts=given.url, index=given.index, create_index=False)
        retriever = OpenSearchEmbeddingRetriever(document_store=store, top_k=3)
    else:
        store = ElasticsearchDocumentStore(hosts=given.url, index=given.index)
        retriever = ElasticsearchEmbeddingRetriever(document_store=store, top_k=3)
    with SemanticIndex(given.index, given.url) as index:
        pipeline = Pipeline()
        pipeline.add_component("embedder", TextEmbedder(index.encoder))
        pipeline.add_component("retriever", retriever)
        pipeline.connect("embedder.embedding", "retriever.query_embedding")
        for document in pipeline.run({"embedder": {"text": given.question}})["retriever"]["documents"]:
            print(f"{2 * document.score - 1:.4f}  {document.content}")
    store.close()


if __name__ == "__main__":
    main()
