"""Elasticsearch and OpenSearch with one interface, `Engine`."""
