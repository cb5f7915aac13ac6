"""Faults that a load must outlive, each defined once: tests run them quickly, `benchmarks.reliability` at length."""
