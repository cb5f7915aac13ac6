"""Vectors as OpenAI's API gives them."""
