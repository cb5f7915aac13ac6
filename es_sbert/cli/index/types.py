"""Index types in the help of several commands."""

INDEX_TYPES = (
    "hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat, bbq_flat; OpenSearch: hnsw, int8_hnsw, flat"
)
