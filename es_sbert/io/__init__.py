"""Reading files: compression, lines, JSON, CSV, Parquet, and whole tables."""
