"""`es-sbert serve`: the gateway."""

from es_sbert.cli.serve.command import serve

__all__ = ["serve"]
