"""LangChain's OpenSearchVectorSearch searches an index that es-sbert has filled; the text is in the field `text`.

pip install langchain-community opensearch-py     # and es-sbert, as in the README
python examples/python/langchain_on_opensearch.py "someone makes music" --index docs
"""

from __future__ import annotations

import argparse

from langchain_community.vectorstores import OpenSearchVectorSearch

from es_sbert import SemanticIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--index", required=True, help="filled by es-sbert ingest")
    parser.add_argument("--url", default="http://localhost:9200")
    given = parser.parse_args()

    with SemanticIndex(given.index, given.url) as index:
        store = OpenSearchVectorSearch(given.url, given.index, index.encoder, engine="lucene")
        found = store.similarity_search_with_score(
            given.question, k=3, text_field="text", vector_field="embedding", metadata_field="*"
        )  # fmt: skip
        for document, score in found:
            print(f"{2 * score - 1:.4f}  {document.page_content}")
        store.client.close()


if __name__ == "__main__":
    main()
