"""Proxy that adds semantic search to Elasticsearch or OpenSearch, with an embeddings API and a search page."""
