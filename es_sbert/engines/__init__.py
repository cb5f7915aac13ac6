"""Elasticsearch and OpenSearch behind one `Engine` protocol."""
