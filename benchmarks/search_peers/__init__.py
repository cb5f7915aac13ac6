"""Latency and rate of semantic searches, through es-sbert and through other libraries, on a running engine."""
