"""Embedding of documents on their way to the engine: `_bulk`, `_doc`, `_create` and `_update`."""
