"""Elasticsearch and OpenSearch behind one class, `Engine`."""
