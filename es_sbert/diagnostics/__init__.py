"""Diagnostics of a model, a cluster and an index: health checks, recall, size, calibration and dashboards."""
