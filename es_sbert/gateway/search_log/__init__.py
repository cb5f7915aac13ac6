"""The log of searches: an index that dashboards read."""
