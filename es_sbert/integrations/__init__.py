"""es-sbert's models in other libraries' vector stores and pipelines; none of those libraries is needed to import this.

An `Encoder` by itself is what LangChain and elasticsearch-py's `VectorStore` call an embedding object. The modules here
are for what it cannot be at the same time:

| module | for | needs |
|---|---|---|
| `elasticsearch_vectorstore` | elasticsearch-py's `AsyncVectorStore` | nothing |
| `haystack` | Haystack's pipelines | `haystack-ai` (extra `haystack`) |
"""
