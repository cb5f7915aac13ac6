"""What an index type asks of a search: the method, and how much to compare again by float32 vectors."""

from __future__ import annotations

from es_sbert.engines.protocol import Flavour
from es_sbert.errors import UsageError
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.types import OVERSAMPLE, IndexType
from es_sbert.search.scores import Method


def method_for(flavour: Flavour, meta: VectorFieldMeta, exact: bool) -> Method:
    """How a field of this index type is searched.

    Args:
        exact: Whether every vector is to be compared.
    """
    flat = meta.index_type == IndexType.FLAT
    if flavour is Flavour.ELASTICSEARCH:
        # kNN over a flat field is exact, and needs no scripting.
        return Method.EXACT if exact and not flat else Method.KNN
    # OpenSearch has no kNN query over a field without a graph.
    return Method.EXACT if exact or flat else Method.KNN


def oversample_for(meta: VectorFieldMeta, asked: float | None = None) -> float | None:
    """How much to oversample: as asked for, else as suits the index type; None where nothing is quantised.

    Raises:
        UsageError: asked for on an index type that is not quantised.
    """
    usual = OVERSAMPLE.get(IndexType(meta.index_type))
    if asked is not None and usual is None:
        raise UsageError(
            f"{meta.index_type} compares float32 vectors, so there is nothing to oversample",
            "Leave oversample out.",
        )
    return usual if asked is None else asked
