"""elasticsearch-py sends the request that es-sbert makes; the text is in the field `text`.

pip install elasticsearch     # and es-sbert, as in the README
python examples/python/elasticsearch_py.py "someone makes music" --index docs
"""

from __future__ import annotations

import argparse

from elasticsearch import Elasticsearch

from es_sbert import SemanticIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--index", required=True, help="filled by es-sbert ingest")
    parser.add_argument("--url", default="http://localhost:9200")
    given = parser.parse_args()

    with Elasticsearch(given.url) as client, SemanticIndex(given.index, client) as index:
        answer = client.search(index=given.index, **index.body(given.question, k=3))
        for hit in answer["hits"]["hits"]:
            print(f"{2 * hit['_score'] - 1:.4f}  {hit['_source']['text']}")


if __name__ == "__main__":
    main()
