"""Semantic, exact and hybrid search over an Elasticsearch or OpenSearch index, with typed results. No torch needed."""
