"""Index types: how a vector field is stored and searched, and which of them an engine takes.

| name | what it is | where |
|---|---|---|
| `hnsw` | graph over float32 vectors; the default: approximate search, exact scores | both |
| `int8_hnsw` | graph over vectors quantised to one byte a dimension | both (OpenSearch: Lucene's 7-bit `sq` encoder) |
| `int4_hnsw`, `bbq_hnsw` | graph over half a byte, over one bit a dimension | Elasticsearch |
| `flat` | no graph: every search looks at all vectors, which makes it exact | both |
| `int8_flat`, `int4_flat`, `bbq_flat` | quantised, no graph | Elasticsearch |
"""

from __future__ import annotations

from enum import StrEnum

from es_sbert.engines.protocol import EngineInfo, Flavour
from es_sbert.errors import UsageError


class IndexType(StrEnum):
    HNSW = "hnsw"
    INT8_HNSW = "int8_hnsw"
    INT4_HNSW = "int4_hnsw"
    BBQ_HNSW = "bbq_hnsw"
    FLAT = "flat"
    INT8_FLAT = "int8_flat"
    INT4_FLAT = "int4_flat"
    BBQ_FLAT = "bbq_flat"


# Elasticsearch can raise hnsw to a quantised type in place, but not the other way round, so the type that
# loses nothing is the one to begin with.
DEFAULT_INDEX_TYPE = IndexType.HNSW

# Candidates to compare again by their float32 vectors, as a multiple of k: the coarser the numbers that the
# search compares, the more of the true neighbours stand just below its first k. Types that are not listed
# compare float32 vectors to begin with.
OVERSAMPLE = {
    IndexType.INT8_HNSW: 1.5,
    IndexType.INT8_FLAT: 1.5,
    IndexType.INT4_HNSW: 2.0,
    IndexType.INT4_FLAT: 2.0,
    IndexType.BBQ_HNSW: 3.0,
    IndexType.BBQ_FLAT: 3.0,
}

OPENSEARCH_TYPES = (IndexType.HNSW, IndexType.INT8_HNSW, IndexType.FLAT)
MAX_DIMENSIONS = {Flavour.ELASTICSEARCH: 4096, Flavour.OPENSEARCH: 16_000}
BBQ_MIN_DIMENSIONS = 64


def read_index_type(text: str, info: EngineInfo, dimensions: int) -> IndexType:
    """An index type by name, checked against what the engine takes for vectors of this length.

    Raises:
        UsageError: unknown, paid, or not for this engine or number of dimensions.
    """
    if text == "bbq_disk":
        raise UsageError(
            "the index type bbq_disk needs a paid Elasticsearch licence",
            "Use bbq_hnsw, which every licence includes, or int8_hnsw.",
        )
    try:
        index_type = IndexType(text)
    except ValueError:
        raise UsageError(f"there is no index type {text!r}", f"Use one of {', '.join(IndexType)}.") from None
    if info.flavour is Flavour.OPENSEARCH and index_type not in OPENSEARCH_TYPES:
        raise UsageError(f"{info.label} has no index type {index_type}", f"Use one of {', '.join(OPENSEARCH_TYPES)}.")
    if dimensions > MAX_DIMENSIONS[info.flavour]:
        raise UsageError(
            f"{info.label} takes vectors of up to {MAX_DIMENSIONS[info.flavour]} dimensions, the model has "
            f"{dimensions}",
            "Use a model with shorter vectors.",
        )
    if index_type in (IndexType.INT4_HNSW, IndexType.INT4_FLAT) and dimensions % 2:
        raise UsageError(
            f"{index_type} packs two dimensions into a byte, and the model has {dimensions}, an odd number",
            "Use int8_hnsw or hnsw.",
        )
    if index_type in (IndexType.BBQ_HNSW, IndexType.BBQ_FLAT) and dimensions < BBQ_MIN_DIMENSIONS:
        raise UsageError(
            f"{index_type} needs at least {BBQ_MIN_DIMENSIONS} dimensions, the model has {dimensions}",
            "Use int8_hnsw or hnsw.",
        )
    return index_type
