"""Adapters that let other libraries use es-sbert's models. Importing this package needs none of those libraries.

An `Encoder` is already an embedding object for LangChain and for elasticsearch-py's `VectorStore`. These modules cover
the rest:

| module | for | needs |
|---|---|---|
| `byte_embeddings` | any of them, over a vector field of the element type `byte` | nothing |
| `elasticsearch_vectorstore` | elasticsearch-py's `AsyncVectorStore` | nothing |
"""
