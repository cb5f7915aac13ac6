"""`SearchScope`: the indices and vector fields of a search; `AliasResolver`: the scope that an alias points to now.

A running program follows an alias that is switched to another index, for example by `es-sbert index migrate`.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import orjson
from pydantic import Field

from es_sbert.config import DEFAULT_VECTOR_FIELD, MAX_TIMEOUT
from es_sbert.encoder.encoder import Encoder, ModelOptions, open_index_encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineError, IndexMismatch, UsageError, VectorIndexError
from es_sbert.forks import renew_after_fork
from es_sbert.index.derived_fields import nested_objects
from es_sbert.index.mapping import OVERSAMPLE, IndexType, VectorFieldMeta, and_query
from es_sbert.index.vector_field import (
    VectorField,
    check_field_model,
    has_vector_field,
    index_not_found,
    vector_field_from_state,
)
from es_sbert.search.vector_query import SearchMethod
from es_sbert.settings import VectorFieldName
from es_sbert.vectors import Vectors


def choose_method(engine_type: EngineType, meta: VectorFieldMeta, exact: bool) -> SearchMethod:
    """Choose the search method for a field, by its index type.

    Args:
        exact: Whether the query has to be compared with every vector.
    """
    flat = meta.index_type == IndexType.FLAT
    # On Elasticsearch, kNN over a flat field is exact, and needs no scripting. OpenSearch has no kNN over such a field.
    needs_script = exact and not flat if engine_type is EngineType.ELASTICSEARCH else exact or flat
    return SearchMethod.EXACT if needs_script else SearchMethod.KNN


def choose_oversample(meta: VectorFieldMeta, requested: float | None = None) -> float | None:
    """Return the oversampling factor: `requested`, else the default of the index type; None if it is not quantized.

    Raises:
        UsageError: `requested` is given, but the index type is not quantized.
    """
    usual = OVERSAMPLE.get(IndexType(meta.index_type))
    if requested is not None and usual is None:
        problem = f"oversample requires a quantized index type, not {meta.index_type}"
        raise UsageError(problem, "Leave oversample out.").about("oversample", requested)
    return usual if requested is None else requested


def find_incompatible(fields: Sequence[VectorField]) -> VectorField | None:
    """Return the first field that cannot be searched together with `fields[0]`; None if there is none.

    Such a field has a different model; or one of the two holds one vector per document, the other one per chunk.
    """
    first = fields[0]
    for other in fields[1:]:
        chunking_differs = (other.meta.passages is None) != (first.meta.passages is None)
        if other.meta.fingerprint != first.meta.fingerprint or chunking_differs:
            return other
    return None


@dataclass(frozen=True)
class SearchScope:
    """A vector field that is searched in one index or several; all hold vectors of one model.

    Attributes:
        fields: The field in each index that has it, at least one.
        filters: Concrete index → filter of the alias by which it is searched, if the alias has one.
        indices_without_field: Concrete indices of the search that lack the field, such as the newest index of
            an alias after a rollover. A vector search does not find their documents.
        routing: Routing values of the alias, which select the shards to search; None for all shards.
        shards: Primary shards of all indices, for the gateway; 0 if unknown.
        nested_paths: Concrete index → its objects of the mapping type `nested`, which queries on their fields must
            name.

    Raises:
        IndexMismatch: see `find_incompatible`.
    """

    fields: tuple[VectorField, ...]
    filters: Mapping[str, Json] = field(default_factory=dict)
    indices_without_field: tuple[str, ...] = ()
    routing: str | None = field(default=None, kw_only=True)
    shards: int = field(default=0, kw_only=True)
    nested_paths: Mapping[str, frozenset[str]] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        first, other = self.fields[0], find_incompatible(self.fields)
        if other is None:
            return
        reason = "one of them holds passages, the other one vector per document"
        if other.meta.fingerprint != first.meta.fingerprint:
            models = f"{other.meta.model!r} and {first.meta.model!r}"
            reason = f"their cosines cannot be compared, because their vectors are of {models}"
        raise IndexMismatch(
            f"{other.index}.{other.name} and {first.index}.{first.name} cannot be searched together: {reason}",
            "Search them one by one, or embed both in the same way: `es-sbert index migrate`.",
        )

    @property
    def name(self) -> str:
        """Name of the vector field."""
        return self.fields[0].name

    @property
    def meta(self) -> VectorFieldMeta:
        """Metadata of the field in the first index; in all others it has the same model."""
        return self.fields[0].meta

    @property
    def indices(self) -> tuple[str, ...]:
        """Concrete names of the indices that have the field."""
        return tuple(field.index for field in self.fields)

    @property
    def all_indices(self) -> tuple[str, ...]:
        """Concrete names of all indices, including those without the field, which a keyword search covers too."""
        return (*self.indices, *self.indices_without_field)

    @cached_property
    def groups(self) -> tuple[SearchScope, ...]:
        """The indices grouped by index type, alias filter and minimum cosine. One query can search a group."""
        groups: dict[tuple[str, bytes, float | None], list[VectorField]] = {}
        for searched in self.fields:
            alias_filter = orjson.dumps(self.filters.get(searched.index))
            key = searched.meta.index_type, alias_filter, searched.meta.min_cosine
            groups.setdefault(key, []).append(searched)
        return tuple(SearchScope(tuple(group), self.filters) for group in groups.values())

    @property
    def min_cosine(self) -> float | None:
        """The lowest calibrated minimum cosine of all indices; None unless each of them is calibrated."""
        stored = [field.meta.min_cosine for field in self.fields]
        limits = [value for value in stored if value is not None]
        return min(limits) if len(limits) == len(stored) else None

    def meta_in(self, index: str) -> VectorFieldMeta:
        """Metadata of the field in an index, which matters only for the text; of the first one for any other index."""
        return next((field.meta for field in self.fields if field.index == index), self.meta)

    def nested_path(self, index: str, name: str) -> str | None:
        """Path of the innermost `nested` object that contains a field of an index; None if there is none."""
        paths = [path for path in self.nested_paths.get(index, ()) if name.startswith(f"{path}.")]
        return max(paths, key=len, default=None)

    def combine_filter(self, filter: Json | None) -> Json | None:
        """Combine a filter with those of the aliases, which engines do not apply to searches of concrete indices."""
        if not self.filters:
            return filter
        alias_filters = [self.filters.get(index) for index in self.all_indices]
        if all(each == alias_filters[0] for each in alias_filters):
            return filter if alias_filters[0] is None else and_query(alias_filters[0], filter)
        pairs = zip(self.all_indices, alias_filters, strict=True)
        any_index = _any_of([and_query({"term": {"_index": index}}, each) for index, each in pairs])
        return and_query(any_index, filter)

    def method(self, engine_type: EngineType, exact: bool) -> SearchMethod:
        """The search method: a script if one of the indices needs it, for example because it has no graph."""
        methods = {choose_method(engine_type, field.meta, exact) for field in self.fields}
        return SearchMethod.EXACT if SearchMethod.EXACT in methods else SearchMethod.KNN

    def oversample(self, requested: float | None = None) -> float | None:
        """Like `choose_oversample`: the largest value that one of the indices needs.

        Raises:
            UsageError: `requested` is given, but no index is quantized.
        """
        metas = [field.meta for field in self.fields]
        quantized = [meta for meta in metas if meta.index_type in OVERSAMPLE] or metas[:1]
        return max((choose_oversample(meta, requested) for meta in quantized), key=lambda factor: factor or 0.0)


def read_search_scope(engine: Engine, names: Sequence[str], vector_field: str) -> SearchScope:
    """Read the vector field of these indices, to search in it.

    An index that lacks the field is left out, as engines do: a search of an alias still finds the documents of its
    other indices.

    Args:
        names: Indices, aliases, data streams, lists of them (`a,b`) or patterns (`logs-*`).

    Raises:
        UsageError: no index is given.
        IndexMissing: an index does not exist.
        IndexMismatch: no index has the field, the indices have several models, or the aliases have different routings.
    """
    if not names:
        raise UsageError("a search needs an index", "Pass at least one index.").about("index")
    found: dict[str, IndexState] = {}
    alias_filters: dict[str, list[Any]] = {}  # None if the alias has no filter
    routings: dict[str | None, str] = {}
    for name in names:
        states = engine.resolve_indices(name)
        if not states:
            raise index_not_found(name, engine)
        found |= {state.name: state for state in states}
        filters_of_name, routing = engine.alias_terms(name, states)
        routings.setdefault(routing, name)
        for index, filter in filters_of_name.items():
            alias_filters.setdefault(index, []).append(filter)
    if len(routings) > 1:
        raise IndexMismatch(
            f"{' and '.join(routings.values())} have different routings (`search_routing`)", "Search them one by one."
        )
    having = [state for state in found.values() if has_vector_field(state, vector_field)]
    lacking = sorted(state.name for state in found.values() if state not in having)
    # If no index has the vector field, the first one that has a field of that name raises the error.
    mapped = [state for state in found.values() if vector_field in state.mappings.get("properties", {})]
    fields = [
        vector_field_from_state(engine, state, vector_field) for state in having or (mapped or list(found.values()))[:1]
    ]
    # If two aliases of an index are searched, a document must pass the filter of one of them. If one of the aliases has
    # no filter, all documents are searched.
    filters = {index: _any_of(queries) for index, queries in alias_filters.items() if all(queries)}
    nested = {state.name: nested_objects(state.mappings.get("properties", {})) for state in found.values()}
    return SearchScope(tuple(fields), filters, tuple(lacking), routing=next(iter(routings)), nested_paths=nested)


def _any_of(queries: Sequence[Json]) -> Json:
    return queries[0] if len(queries) == 1 else {"bool": {"should": list(queries), "minimum_should_match": 1}}


logger = logging.getLogger(__name__)

# Seconds for which the target of an alias is cached.
REFRESH_SECONDS = 30.0


class OpenOptions(ModelOptions, VectorFieldName, total=False):
    """Keyword arguments that open an index; by default, the model is the one that the mapping names.

    Usage:
        ```python
        options: OpenOptions = {"model": "all-MiniLM-L6-v2", "device": "cpu"}
        with SemanticIndex("docs", "http://localhost:9200", **options) as index:
            print(index.encoder.info.device)
        ```

    Attributes:
        request_timeout: Seconds for one request to an engine that is given by its address; by default 60.
    """

    request_timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] | None


@dataclass(frozen=True)
class SearchTarget:
    """The scope of a search and the encoder of its vectors; they are replaced together.

    Attributes:
        scope: The vector field of concrete indices.
        encoder: Encoder of the field's model; None until it is needed.
    """

    scope: SearchScope
    encoder: Encoder | None

    @property
    def field(self) -> VectorField:
        """The field in the first index, which has the same model as in all others."""
        return self.scope.fields[0]

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Embed query texts. Returns the vectors, *shape:* ``(texts, dimensions)``."""
        assert self.encoder is not None, "AliasResolver.target() attaches the encoder"
        return self.encoder.encode(texts, "query")


class AliasResolver:
    """Resolves what an alias points to now. Thread-safe.

    A search takes the target once and uses its index and its encoder: even if another thread replaces the target
    at the same time, the vectors of one model are never compared with those of another.

    Args:
        engine: The engine to use.
        indices: Names, lists of names or patterns, see `read_search_scope`.
        options: Their vector field, and how to load its model; a given encoder is not closed by `close`.

    Attributes:
        current: The last known target, perhaps without its encoder.

    Raises:
        IndexMissing, IndexMismatch: an index or field does not exist, or the encoder has a different model.
        EngineError: the engine cannot be used.
    """

    def __init__(self, engine: Engine, indices: Sequence[str], options: OpenOptions) -> None:
        self._engine = engine
        self._indices = indices
        self._vector_field = options.get("vector_field", DEFAULT_VECTOR_FIELD)
        self._options = options
        encoder = options.get("encoder")
        self._model_given = encoder is not None or options.get("model") is not None
        self._loaded: list[Encoder] = []
        self._renew_lock()
        renew_after_fork(self, AliasResolver._renew_lock)
        self.current = SearchTarget(read_search_scope(engine, indices, self._vector_field), encoder)
        if encoder is not None:
            check_field_model(self.current.field, encoder.info.fingerprint, encoder.info.model)
        self._log_indices_without_field()
        self._refreshed_at = time.monotonic()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def target(self, *, with_encoder: bool = True) -> SearchTarget:
        """Return the target. The alias is looked up again if that was more than `REFRESH_SECONDS` ago.

        While the model of the next index is being loaded, other threads continue with the current index. If the caller
        gave a model or an encoder that does not fit the next index, the current one stays in use while it exists.

        Args:
            with_encoder: Whether to load the target's model, if it is not loaded yet.

        Raises:
            IndexMismatch: the model that was named is not the field's.
            ModelError, DeviceError: the model cannot be loaded.
        """
        if with_encoder and self.current.encoder is None:
            with self._lock:
                self.current = self._attach_encoder(self.current)
        if time.monotonic() - self._refreshed_at > REFRESH_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._refresh_scope()
            except (EngineError, VectorIndexError) as error:
                # Only warn: the index in use may still respond, and if not, the errors of its searches say why.
                still = ", ".join(self.current.scope.indices)
                logger.warning("%s still searches %s: %s", ", ".join(self._indices), still, error.message)
            finally:
                self._refreshed_at = time.monotonic()
                self._lock.release()
        return self.current

    def resolve_again(self, stale: SearchTarget) -> SearchTarget:
        """Return the target that replaces `stale`, whose index was deleted, or got the field by a load.

        Raises:
            IndexMissing, IndexMismatch: the alias was deleted too, or the next index has a model other than the
                caller's.
            EngineError, ModelError, DeviceError: the next index cannot be read, or its model cannot be loaded.
        """
        with self._lock:
            if self.current is stale:
                self._refresh_scope()
            return self.current

    def _refresh_scope(self) -> None:
        """Read the scope again, and replace the target if the scope has changed. The caller must hold the lock."""
        scope = read_search_scope(self._engine, self._indices, self._vector_field)
        before = self.current
        if scope == before.scope:
            return
        if before.encoder is None:
            self.current = SearchTarget(scope, None)
        else:
            same = scope.fields[0].meta.fingerprint == before.field.meta.fingerprint
            keeps = same or self._model_given
            self.current = self._attach_encoder(SearchTarget(scope, before.encoder if keeps else None))
        if scope.indices_without_field != before.scope.indices_without_field:
            self._log_indices_without_field()

    def _log_indices_without_field(self) -> None:
        scope = self.current.scope
        if scope.indices_without_field:
            logger.warning(
                "%s lacks the vector field %s, so semantic searches of %s do not find its documents. "
                "`es-sbert doctor --index %s` says how to add it",
                ", ".join(scope.indices_without_field),
                self._vector_field,
                ", ".join(self._indices),
                shlex.quote(",".join(self._indices)),
            )

    def _attach_encoder(self, target: SearchTarget) -> SearchTarget:
        encoder = target.encoder
        if encoder is None:
            options: Any = {
                name: value
                for name, value in self._options.items()
                if name not in ("encoder", "vector_field", "request_timeout")
            }
            field = target.field
            encoder = open_index_encoder(field.index, field.meta.model, field.meta.fingerprint, **options)
            self._loaded.append(encoder)
        try:
            check_field_model(target.field, encoder.info.fingerprint, encoder.info.model)
        except IndexMismatch:
            if encoder is not target.encoder:
                self._loaded.remove(encoder)
                encoder.close()
            raise
        return SearchTarget(target.scope, encoder)

    def close(self) -> None:
        """Close the encoders that this object loaded, including those of earlier models."""
        for encoder in self._loaded:
            encoder.close()
        self._loaded.clear()
