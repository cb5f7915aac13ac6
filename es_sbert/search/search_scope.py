"""`SearchScope`: the indices and vector fields of a search, and how each index type is searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from es_sbert.engines.protocol import Engine, EngineType, Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.mapping import OVERSAMPLE, IndexType, VectorFieldMeta, and_query
from es_sbert.index.vector_field import VectorField, index_not_found, vector_field_from_state
from es_sbert.search.vector_query import SearchMethod


def choose_method(engine_type: EngineType, meta: VectorFieldMeta, exact: bool) -> SearchMethod:
    """How a field of this index type is searched.

    Args:
        exact: Whether every vector is to be compared.
    """
    flat = meta.index_type == IndexType.FLAT
    if engine_type is EngineType.ELASTICSEARCH:
        # kNN over a flat field is exact, and needs no scripting.
        return SearchMethod.EXACT if exact and not flat else SearchMethod.KNN
    # OpenSearch has no kNN query over a field without a graph.
    return SearchMethod.EXACT if exact or flat else SearchMethod.KNN


def choose_oversample(meta: VectorFieldMeta, asked: float | None = None) -> float | None:
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


@dataclass(frozen=True)
class SearchScope:
    """Vector fields that are searched together; all hold vectors of one model.

    Attributes:
        fields: Every field of every index, at least one.
        filters: Concrete index → filter of the alias by which it is searched, where that has one.
    """

    fields: tuple[VectorField, ...]
    filters: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self.fields[0]
        for other in self.fields[1:]:
            if other.meta.fingerprint != first.meta.fingerprint:
                raise IndexMismatch(
                    f"{other.index}.{other.name} holds vectors of {other.meta.model!r}, {first.index}.{first.name} of "
                    f"{first.meta.model!r}: their cosines cannot be compared",
                    "Search them one by one, or embed both with one model: `es-sbert index migrate`.",
                )
            if other.name == first.name and (other.meta.passages is None) != (first.meta.passages is None):
                raise IndexMismatch(
                    f"{other.name} holds passages in one of {other.index} and {first.index}, and one vector a document "
                    "in the other",
                    "Search them one by one, or give the fields different names.",
                )

    @property
    def indices(self) -> tuple[str, ...]:
        """Concrete names, each once."""
        return tuple(dict.fromkeys(field.index for field in self.fields))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the vector fields, each once."""
        return tuple(dict.fromkeys(field.name for field in self.fields))

    def meta(self, name: str, index: str | None = None) -> VectorFieldMeta:
        """What the mapping says about a field; in which of the indices matters for the text alone."""
        wanted = [field.meta for field in self.fields if field.name == name]
        return next((f.meta for f in self.fields if (f.name, f.index) == (name, index)), wanted[0])

    def combine_filter(self, filter: Json | None) -> Json | None:
        """A filter together with those of the aliases, which searches of concrete indices would pass by."""
        if not self.filters:
            return filter
        own = [self.filters.get(index) for index in self.indices]
        if all(each == own[0] for each in own):
            return and_query(self.filters[self.indices[0]], filter)
        pairs = zip(self.indices, own, strict=True)
        return and_query(_any_of([and_query({"term": {"_index": index}}, each) for index, each in pairs]), filter)

    def method(self, engine_type: EngineType, exact: bool) -> SearchMethod:
        """How they are searched: by a script where one of them has no graph that could be."""
        methods = {choose_method(engine_type, field.meta, exact) for field in self.fields}
        return SearchMethod.EXACT if SearchMethod.EXACT in methods else SearchMethod.KNN

    def oversample(self, name: str, asked: float | None) -> float | None:
        """As `choose_oversample`, the most that one of the indices needs.

        Raises:
            UsageError: asked for where no index is quantised.
        """
        metas = [field.meta for field in self.fields if field.name == name]
        quantised = [meta for meta in metas if meta.index_type in OVERSAMPLE] or metas[:1]
        return max((choose_oversample(meta, asked) for meta in quantised), key=lambda factor: factor or 0.0)


def read_search_scope(engine: Engine, indices: Sequence[str], vector_fields: Sequence[str]) -> SearchScope:
    """The vector fields of these indices, to search in them.

    Args:
        indices: Indices or aliases; each must have every field.

    Raises:
        UsageError: no index or no field.
        IndexMissing: no such index.
        IndexMismatch: no such field, or fields of several models.
    """
    if not indices or not vector_fields:
        raise UsageError("there is nothing to search in", "Name an index and a vector field.")
    fields = []
    ways: dict[str, list[Json | None]] = {}
    for name in indices:
        states = engine.get_indices(name)
        if not states:
            raise index_not_found(name, engine)
        fields += [vector_field_from_state(engine, state, field) for state in states for field in vector_fields]
        for state in states:
            ways.setdefault(state.name, []).append(state.alias_filter(name))
    # By two aliases the documents of both are searched, and all where one way to the index has no filter.
    filters = {index: _any_of([way for way in found if way]) for index, found in ways.items() if all(found)}
    return SearchScope(tuple(fields), filters)


def _any_of(queries: Sequence[Json]) -> Json:
    return queries[0] if len(queries) == 1 else {"bool": {"should": list(queries), "minimum_should_match": 1}}
