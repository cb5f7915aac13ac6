"""Every fault of `tests/faults` several times in a row on real servers: the table of docs/reliability.md."""
