"""Real Elasticsearch and OpenSearch servers on this machine, without Docker."""
