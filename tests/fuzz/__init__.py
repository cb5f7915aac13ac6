"""Input as nobody should write it, and what must become of it: for tests and `python -m benchmarks.fuzz`."""
