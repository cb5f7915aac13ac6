"""Indices with a vector field: mapping, `_meta.es_sbert`, and the guard against mixed models."""
