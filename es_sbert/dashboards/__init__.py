"""Data views and dashboards for Kibana and OpenSearch Dashboards."""
