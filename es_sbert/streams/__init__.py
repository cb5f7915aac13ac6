"""Bytes to lines to rows: what reading documents and reading tables share. Nothing here knows what a row is for."""
