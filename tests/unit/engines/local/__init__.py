"""Tests of `es_sbert.engines.local` that start no server."""
