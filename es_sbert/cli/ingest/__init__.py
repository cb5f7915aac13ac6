"""`es-sbert ingest`: documents in, an index that is searchable by meaning out."""

from es_sbert.cli.ingest.command import ingest

__all__ = ["ingest"]
