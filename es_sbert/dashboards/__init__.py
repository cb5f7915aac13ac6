"""Saved objects for Kibana and OpenSearch Dashboards: pure builders, and the import API that takes them."""
