"""Indices with vector fields: mapping, metadata, document vectors, and adoption of existing vectors."""
