"""`SemanticIndex`: semantic and hybrid search over an index from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.embeddings import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.reranker import Reranker
from es_sbert.engines.connect import open_engine
from es_sbert.engines.error_mapping import SCRIPTS_MODULE, servers_with_module
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import FeatureMissing, IndexMissing, UsageError
from es_sbert.index.vector_field import VectorField
from es_sbert.search.alias_resolver import AliasResolver, SearchTarget
from es_sbert.search.hybrid_search import HybridOptions, hybrid_request, read_hybrid_params, split_hybrid_options
from es_sbert.search.rerank import search_and_rerank
from es_sbert.search.search_request import (
    SearchOptions,
    SearchParams,
    SearchRequest,
    check_query_text,
    exclude_document,
    read_document_vectors,
    search_request,
)
from es_sbert.search.search_result import HybridResult, RankedHits, SearchResult
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch
    from opensearchpy import OpenSearch


Result = TypeVar("Result", bound=RankedHits[Any])


class SemanticIndex:
    """An index with a vector field, and the model that fills it.

    Usage:
        with SemanticIndex("docs", "http://localhost:9200") as index:
            for hit in index.search("how do vaccines work", k=5):
                print(hit.cosine, hit.source["title"])

    The mapping says which model made the vectors. That model is found by its fingerprint (see `find_index_model`) and
    loaded on the first search by text, unless another is named; a model with another fingerprint is refused, since its
    vectors mean something else. Where an alias goes over to another index, all searches but those by a vector follow
    within half a minute, with that index's model; where the model or the encoder was given, they go on with the old
    index as long as it stands. Many threads may search.

    Args:
        index: Index or alias, or several; all of one model.
        engine: An address, settings, a client of elasticsearch-py (8 or 9) or opensearch-py, or an engine. A client or
            an engine that is open already is used as it is, with its own settings, and stays open on `close`.
        model: Model folder, bundle, hub id, installed or registered name.
        encoder: A loaded encoder in place of a model's name; it stays open on `close`.
        vector_field: Field that holds the vectors, or several; a document is then as near as by the nearest of them.
        device, precision, threads, report: For loading the model, see `Encoder`.

    Raises:
        IndexMissing, IndexMismatch: no such index, no such field, vectors of several models, or an encoder of another.
        UsageError: both a model and an encoder, or an asynchronous client (see `AsyncSemanticIndex`).
        EngineError: the engine cannot be used.
    """

    def __init__(
        self,
        index: str | Sequence[str],
        engine: Engine | Elasticsearch | OpenSearch | EngineSettings | str | None = None,
        *,
        model: str | None = None,
        encoder: Encoder | None = None,
        vector_field: str | Sequence[str] = DEFAULT_VECTOR_FIELD,
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        if model is not None and encoder is not None:
            raise UsageError("both a model and an encoder are given", "Give one of the two.")

        def load(field: VectorField) -> Encoder:
            return Encoder.for_index(
                field.index,
                field.meta.model,
                field.meta.fingerprint,
                model=model,
                device=device,
                precision=precision,
                threads=threads,
                report=report,
            )

        self._alias_resolver: AliasResolver | None = None
        self._owns_engine = engine is None or isinstance(engine, str | EngineSettings)
        self._engine = open_engine(engine)
        try:
            self._alias_resolver = AliasResolver(
                self._engine,
                _as_tuple(index),
                _as_tuple(vector_field),
                load,
                is_chosen=model is not None,
                encoder=encoder,
            )
        except BaseException:
            self.close()
            raise

    @property
    def field(self) -> VectorField:
        """The vector field that is searched now (of several, the first) and what the mapping says about it."""
        return self._resolver.cached_target.field

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and checked against the mapping.

        Raises:
            IndexMismatch: the model is not the one that made the vectors.
            ModelError, DeviceError: it cannot be loaded.
        """
        return self._resolver.target().loaded

    @property
    def _resolver(self) -> AliasResolver:
        if self._alias_resolver is None:
            raise UsageError("this index is closed", "Search before close, or open it again: SemanticIndex(…).")
        return self._alias_resolver

    def search(
        self,
        text: str,
        k: int = 10,
        *,
        rerank: Reranker | None = None,
        window: int | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The k documents nearest in meaning to a text.

        Args:
            rerank: A cross-encoder that puts the hits in order, see `Hit.rerank_score` and `RankedHits.reranking`.
            window: How many hits it reads, of which it chooses k; by default 50, or k if that is more.
            options: See `SearchOptions`.

        Raises:
            UsageError: no text, an empty or a huge one, an option out of range, or options that do not go together.
            FeatureMissing: exact search on a server without scripting.
            EngineError: the engine failed, or does not understand the filter.
        """
        return search_and_rerank(
            text,
            k,
            lambda depth: self._find(self._resolver.target, self._text_request(text, SearchParams.of(depth, options))),
            self._searched,
            rerank,
            window,
            options,
        )

    def search_vector(self, vector: Vectors, k: int = 10, **options: Unpack[SearchOptions]) -> SearchResult:
        """As `search`, by a vector of the fields' own model.

        Args:
            vector: *Shape:* ``(dimensions,)``, of the model in `field.meta`.

        Raises:
            IndexMissing: the index is gone, though its alias may stand for another one: open it again.
        """
        searched = self._searched()
        vectors = dict.fromkeys(searched.names, vector)
        return self._send(search_request(self._engine.info.engine_type, searched, vectors, SearchParams.of(k, options)))

    def like(self, id: str, k: int = 10, *, index: str | None = None, **options: Unpack[SearchOptions]) -> SearchResult:
        """The k documents nearest in meaning to a document of the index, itself left out.

        Args:
            id: The document's id. Of one with several passages, their mean direction counts.
            index: Where several indices are searched: the concrete one that holds it.

        Raises:
            UsageError: as for `search`; no such document, or one without a vector.
        """
        return self._find(self._resolver.current, self._similar_request(id, index, SearchParams.of(k, options)))

    def hybrid(
        self,
        text: str,
        k: int = 10,
        *,
        rerank: Reranker | None = None,
        window: int | None = None,
        **options: Unpack[HybridOptions],
    ) -> HybridResult:
        """The k best documents by meaning and words together.

        Args:
            rerank, window: See `search`.
            options: See `HybridOptions`.

        Raises:
            UsageError, EngineError: as for `search`.
            UnsupportedEngine: a fusion that the engine lacks.
        """
        return search_and_rerank(
            text,
            k,
            lambda depth: self._find(self._resolver.target, self._hybrid_request(text, depth, options)),
            self._searched,
            rerank,
            window,
            options,
        )

    def body(self, text: str, k: int = 10, **options: Unpack[SearchOptions]) -> Json:
        """The request body that `search` would send to `POST /index/_search`, to use anywhere."""
        return self._text_request(text, SearchParams.of(k, options))(self._resolver.target()).bodies[0]

    def like_body(self, id: str, k: int = 10, *, index: str | None = None, **options: Unpack[SearchOptions]) -> Json:
        """The request body that `like` would send."""
        return self._similar_request(id, index, SearchParams.of(k, options))(self._resolver.current()).bodies[0]

    def hybrid_bodies(self, text: str, k: int = 10, **options: Unpack[HybridOptions]) -> tuple[Json, ...]:
        """The request bodies that `hybrid` would send: one for `_search`, or several for `_msearch`."""
        return self._hybrid_request(text, k, options)(self._resolver.target()).bodies

    def _searched(self) -> SearchScope:
        return self._resolver.cached_target.searched

    def _text_request(self, text: str, asked: SearchParams) -> Callable[[SearchTarget], SearchRequest[SearchResult]]:
        check_query_text(text)
        engine_type = self._engine.info.engine_type
        return lambda target: search_request(engine_type, target.searched, target.encode(text), asked, text)

    def _similar_request(
        self, id: str, index: str | None, asked: SearchParams
    ) -> Callable[[SearchTarget], SearchRequest[SearchResult]]:
        def request(target: SearchTarget) -> SearchRequest[SearchResult]:
            place, vectors = read_document_vectors(self._engine, target.searched, id, index)
            others = replace(asked, filter=exclude_document(asked.filter, place, id))
            return search_request(self._engine.info.engine_type, target.searched, vectors, others)

        return request

    def _hybrid_request(
        self, text: str, k: int, options: HybridOptions
    ) -> Callable[[SearchTarget], SearchRequest[HybridResult]]:
        check_query_text(text)
        own, rest = split_hybrid_options(options)
        asked = SearchParams.of(k, rest)
        engine_type = self._engine.info.engine_type

        def request(target: SearchTarget) -> SearchRequest[HybridResult]:
            blend = read_hybrid_params(engine_type, target.searched, text, k, own)
            return hybrid_request(engine_type, target.searched, target.encode(text), asked, blend, text)

        return request

    def _find(
        self, take: Callable[[], SearchTarget], request: Callable[[SearchTarget], SearchRequest[Result]]
    ) -> Result:
        target = take()
        try:
            return self._send(request(target))
        except IndexMissing:
            # Its alias may stand for another index by now, of another model (`es-sbert index migrate`).
            return self._send(request(self._resolver.after(target)))

    def _send(self, request: SearchRequest[Result]) -> Result:
        try:
            if len(request.bodies) > 1:
                return request.read(self._engine.multi_search(request.indices, request.bodies))
            [body] = request.bodies
            return request.read([self._engine.search(request.indices, body, named_scores=request.named_scores)])
        except FeatureMissing as error:
            if request.method is not SearchMethod.EXACT or error.module != SCRIPTS_MODULE.name:
                raise
            raise FeatureMissing(
                f"{self._engine.info.label} has no scripting (its build lacks the module {SCRIPTS_MODULE.name}), "
                f"which exact "
                f"search in an index of type {self.field.meta.index_type} needs",
                "Search without exact, or load the documents with --index-type flat, where kNN is exact. "
                + servers_with_module(SCRIPTS_MODULE),
                error.status,
                error.module,
            ) from error

    def close(self) -> None:
        """Close what this object opened itself."""
        if self._alias_resolver is not None:
            self._alias_resolver.close()
            self._alias_resolver = None
        if self._owns_engine:
            self._engine.close()

    def __enter__(self) -> SemanticIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
