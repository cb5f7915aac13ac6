"""Embed texts of concurrent requests: models on demand, batches, a cache."""
