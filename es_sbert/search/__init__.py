"""Text into kNN and cosine queries, and typed results. No torch."""
