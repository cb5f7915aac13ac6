"""Adapters that let other libraries use es-sbert's models. Importing this package needs none of those libraries.

An `Encoder` is already an embedding object for LangChain and for elasticsearch-py's `VectorStore`. The module
`elasticsearch_vectorstore` is for elasticsearch-py's `AsyncVectorStore`.
"""
