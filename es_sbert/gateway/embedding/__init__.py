"""Texts of concurrent callers to vectors: models on demand, batches, a cache."""
