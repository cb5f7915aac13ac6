"""The engine's own API with search by meaning: a proxy, embeddings as OpenAI's API gives them, a search page."""
