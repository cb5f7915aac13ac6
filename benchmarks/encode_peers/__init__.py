"""Sentences per second of es-sbert and of every library that a user could choose instead, on this machine."""
