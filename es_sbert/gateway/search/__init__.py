"""Rewriting of semantic queries in search requests into native kNN queries."""
