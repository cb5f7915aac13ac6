"""Requests to the search APIs: what asks by meaning in them, put into the engine's words."""
