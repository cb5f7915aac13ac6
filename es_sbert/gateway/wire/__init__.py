"""Requests as bytes: read within limits, passed on, and the one connection to the engine."""
