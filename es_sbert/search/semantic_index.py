"""`SemanticIndex`: semantic and hybrid search over an index from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from es_sbert.arguments import as_texts, check_arguments, other_names, spell_out
from es_sbert.batched import batched
from es_sbert.config import DEFAULT_MODEL, DEFAULT_VECTOR_FIELD, TOP_K
from es_sbert.encoder.encoder import Encoder, check_one_model
from es_sbert.engines.connect import EngineOrClient, address_settings, open_engine
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json, is_index_expression
from es_sbert.errors import IndexMissing, UsageError, renamed_setting
from es_sbert.index.vector_field import (
    VectorField,
    ensure_vector_field,
    request_vector_field,
)
from es_sbert.search.hybrid_search import hybrid_request
from es_sbert.search.reranking import rerank as rerank_hits
from es_sbert.search.reranking import scope_text_reader, search_depth
from es_sbert.search.search_request import (
    SearchRequest,
    as_one_query,
    build_vector_query,
    check_search,
    exclude_document,
    only_hit,
    read_document_vector,
    search_request,
)
from es_sbert.search.search_result import HybridResult, RankedHits, SearchResult, StoredDocument, read_partial
from es_sbert.search.search_scope import (
    AliasResolver,
    OpenOptions,
    SearchScope,
    SearchTarget,
)
from es_sbert.search.vector_query import vector_clause
from es_sbert.settings import RETRY_SECONDS, AddOptions, Count, HybridOptions, IndexOptions, SearchOptions, Seconds
from es_sbert.vectors import Vectors

if TYPE_CHECKING:
    from es_sbert.encoder.reranker import Reranker
    from es_sbert.ingest.load_report import LoadReport

Result = TypeVar("Result", bound=RankedHits[Any])
# Builds the requests of searches for the indices that an alias points to now.
BuildRequests: TypeAlias = Callable[[SearchTarget], Sequence[SearchRequest[Result]]]
# Searches in one request of `search_many`: each sends a whole query vector.
_SEARCHES_PER_REQUEST = 100


# Names of other clients.
INDEX_NAMES = """
add_documents=add add_texts=add bulk=add index=add update=add hybrid_search=hybrid knn_search=search_vector
more_like_this=similar_to msearch=search_many semantic_search=search similarity_search=search mget=get client=engine
"""


class CreateOptions(IndexOptions, OpenOptions, total=False):
    """Keyword arguments of `SemanticIndex.create`. The model is `all-MiniLM-L6-v2` by default.

    Usage:
        ```python
        options: CreateOptions = {"text_fields": ["title", "body"], "index_type": "int8_hnsw"}
        with SemanticIndex.create("news", "http://localhost:9200", **options) as index:
            print(index.field.meta.index_type)
        ```
    """


class SemanticIndex:
    """An index with a vector field, and the model that embeds its documents and queries.

    Usage:
        ```python
        with SemanticIndex.create("docs", "http://localhost:9200", text_template="{title}. {body}") as index:
            index.add([{"title": "Vaccines", "body": "How they train the immune system."}])
            for hit in index.search("how do vaccines work", k=5):
                print(hit.cosine, hit.source["title"])
        ```

    The mapping names the model of the embeddings. Unless `model` or `encoder` is given, this model is found by its
    fingerprint (see `find_index_model`) and loaded when a text is first embedded. A model with a different fingerprint
    is refused: its embeddings cannot be compared. If an alias is switched to another index, all searches except those
    by a vector follow within half a minute, with that index's model. If `model` or `encoder` was given and the new
    index has a different model, they stay with the old index while it exists. Thread-safe.

    Args:
        index: Index, alias or data stream; also a list of names (`a,b`) or a pattern (`logs-*`), or several of these.
            All fields must have the same model. Indices without the field are left out, see
            `RankedHits.indices_without_field`.
        engine: An address, a list of addresses of one cluster, settings, a client of elasticsearch-py (8 or 9) or
            opensearch-py, or an engine. An open client or engine is used with its own settings and is not closed by
            `close`.
        options: See `OpenOptions`.

    Raises:
        IndexMissing, IndexMismatch: an index or the field does not exist, the embeddings are of several models, or the
            encoder has a different model.
        UsageError: both a model and an encoder are given, or an asynchronous client (see `AsyncSemanticIndex`).
        EngineError: the engine cannot be used.
    """

    @check_arguments
    @spell_out(OpenOptions)
    def __init__(
        self, index: str | Sequence[str], engine: EngineOrClient = None, **options: Unpack[OpenOptions]
    ) -> None:
        check_one_model(options)
        self._names = (index,) if isinstance(index, str) else tuple(index)
        self._alias_resolver: AliasResolver | None = None
        self._owns_engine = address_settings(engine) is not None
        self._engine = open_engine(engine, options.get("request_timeout"))
        try:
            self._alias_resolver = AliasResolver(self._engine, self._names, options)
        except BaseException:
            self.close()
            raise

    @classmethod
    @check_arguments
    @spell_out(CreateOptions)
    @renamed_setting("index", "name")
    def create(cls, name: str, engine: EngineOrClient = None, **options: Unpack[CreateOptions]) -> SemanticIndex:
        """Create an index with a vector field and open it, as `es-sbert index create` does.

        A missing field is added to an existing index. An existing field is checked, and refused if its model differs.

        Args:
            name: Index or alias.
            engine: As for `SemanticIndex`.
            options: See `CreateOptions`.

        Raises:
            UsageError: options conflict, or the engine or the model does not support one.
            IndexMismatch: the field exists with a different model, text, index type or passages.
            ModelError: the model cannot be found or is broken.
            EngineError: the engine cannot be used.
        """
        check_one_model(options)
        model, encoder = options.get("model"), options.get("encoder")
        opening: Any = {name: value for name, value in options.items() if name in OpenOptions.__annotations__}
        if encoder is None and model is None:
            opening["model"] = DEFAULT_MODEL
        creating: Any = {name: value for name, value in options.items() if name in IndexOptions.__annotations__}
        vector_field = options.get("vector_field", DEFAULT_VECTOR_FIELD)
        request = request_vector_field(encoder or model, vector_field, **creating)
        shards, replicas = options.get("shards"), options.get("replicas")
        connection = open_engine(engine, opening.pop("request_timeout", None))
        try:
            ensure_vector_field(connection, name, request, shards=shards, replicas=replicas)
            index = cls(name, connection, **opening)
        except BaseException:
            if address_settings(engine) is not None:
                connection.close()
            raise
        index._owns_engine = address_settings(engine) is not None
        return index

    def __reduce__(self) -> str:
        # A copy would need the credentials of the connection, which must not get into a pickle.
        raise TypeError("a SemanticIndex cannot be pickled: open it in the other process with SemanticIndex(…)")

    def __repr__(self) -> str:
        return f"<SemanticIndex {','.join(self._names)!r}>"

    @property
    def field(self) -> VectorField:
        """The vector field that is searched now (that of the first index, if there are several), with its metadata."""
        return self._resolver.current.field

    @property
    def engine(self) -> Engine:
        """The engine that is searched."""
        return self._engine

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and checked against the mapping.

        Raises:
            IndexMismatch: the model is not the one that made the vectors.
            ModelError, DeviceError: the model cannot be loaded.
        """
        encoder = self._resolver.target().encoder
        assert encoder is not None, "see `target`"
        return encoder

    @property
    def _resolver(self) -> AliasResolver:
        if self._alias_resolver is None:
            raise UsageError("this SemanticIndex is closed", "Search before close, or open another: SemanticIndex(…).")
        return self._alias_resolver

    @check_arguments
    @spell_out(SearchOptions)
    def search(
        self,
        text: str,
        k: int = TOP_K,
        *,
        rerank: Reranker | None = None,
        window: Count | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """Semantic search: find the k documents nearest to a text.

        Args:
            rerank: A cross-encoder that reorders the hits, see `Hit.rerank_score` and `RankedHits.reranking`.
            window: Number of hits to rerank, of which the best k are returned; by default 50, or k if that is more.
            options: See `SearchOptions`.

        Raises:
            UsageError: the text is not a str, is empty or is too long, an option is out of range, or options conflict.
            FeatureMissing: exact search on a server without scripting.
            EngineError: the engine failed, or rejected the filter.
        """
        requests = self._text_requests(search_request, [text], search_depth(rerank, k, window), options)
        return self._rerank(text, self._run(requests, options)[0], rerank, k, window)

    @check_arguments
    @spell_out(SearchOptions)
    def search_many(self, texts: Iterable[str], k: int = TOP_K, **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """Do a `search` for each of several texts, which are embedded together and sent in a few requests.

        Returns:
            One result for each text, in their order.

        Raises:
            UsageError, FeatureMissing, EngineError: as for `search`.
        """
        listed, results = as_texts(texts), list[SearchResult]()
        for some in batched(listed, _SEARCHES_PER_REQUEST):
            results += self._run(self._text_requests(search_request, some, k, options), options)
        return results

    @check_arguments
    def count(self, filter: Json | Sequence[Json] | None = None) -> int:
        """Count the documents, or those that match a filter (as in `search`), with or without a vector."""
        scope = self._resolver.target(with_encoder=False).scope
        return self._engine.count(scope.all_indices, scope.combine_filter(as_one_query(filter)), routing=scope.routing)

    @check_arguments
    def exists(self, id: str) -> bool:
        """Whether a document has this id."""
        return bool(id) and self.count({"ids": {"values": [id]}}) > 0  # an engine refuses an empty id

    @check_arguments
    def get(self, id: str) -> StoredDocument:
        """Return a document without its vector.

        Raises:
            NotFoundError: there is no document with this id; `exists` says so without an error.
            UsageError: several documents have the id, in different indices or with different routings.
        """
        scope = self._resolver.target(with_encoder=False).scope
        query = scope.combine_filter({"ids": {"values": [id] if id else []}})  # an engine refuses an empty id
        body = {"query": query, "_source": {"excludes": [scope.name]}}
        hit = only_hit(self._engine.search(scope.all_indices, body, routing=scope.routing), id, scope.all_indices)
        return StoredDocument(id=id, source=hit.get("_source", {}), index=hit["_index"])

    @check_arguments
    @spell_out(SearchOptions)
    def search_vector(self, vector: Vectors, k: int = TOP_K, **options: Unpack[SearchOptions]) -> SearchResult:
        """Like `search`, but with a query vector instead of a text.

        Args:
            vector: A vector from the model in `field.meta`. *Shape:* ``(dimensions,)``.

        Raises:
            IndexMissing: the index was deleted. If its alias points to another index now, open the alias again.
        """
        check_search(k, options)
        scope = self._scope()
        return self._send([search_request(self._engine.info.engine_type, scope, vector, k, options)], scope, options)[0]

    @check_arguments
    @spell_out(SearchOptions)
    def similar_to(
        self, id: str, k: int = TOP_K, *, index: str | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Find the k documents most similar to a document of the index; the document itself is not among the hits.

        Args:
            id: The document's id. For a document with several passages, their mean direction is used.
            index: The concrete index that holds the document, if several are searched.

        Raises:
            NotFoundError: there is no document with this id.
            UsageError: as for `search`; or the document has no embedding.
        """
        return self._run(self._similar_request(id, index, k, options), options, with_encoder=False)[0]

    @check_arguments
    @spell_out(HybridOptions)
    def hybrid(
        self,
        text: str,
        k: int = TOP_K,
        *,
        rerank: Reranker | None = None,
        window: Count | None = None,
        **options: Unpack[HybridOptions],
    ) -> HybridResult:
        """Hybrid search: find the k best documents of semantic and keyword search combined.

        Args:
            rerank, window: See `search`.
            options: See `HybridOptions`.

        Raises:
            UsageError, EngineError: as for `search`.
        """
        requests = self._text_requests(hybrid_request, [text], search_depth(rerank, k, window), options)
        return self._rerank(text, self._run(requests, options)[0], rerank, k, window)

    @check_arguments
    @spell_out(AddOptions)
    def add(
        self,
        documents: Iterable[Mapping[str, Any]],
        *,
        id_field: str | None = None,
        routing_field: str | None = None,
        **options: Unpack[AddOptions],
    ) -> LoadReport:
        """Embed documents and write them to the index, as `es-sbert ingest` does.

        Documents that the index already holds with the same content are skipped. Documents that cannot be loaded are in
        the report, with the reason. The index is refreshed at the end, so that searches find the new documents.

        Args:
            documents: Dicts, from a list or any other iterable. An
                iterator is consumed once, in another thread. NumPy and pandas values, dates and decimals are converted.
            id_field: Field of the id, dotted if nested; by default `_id`, which does not become part of the document,
                or a hash of the content of documents without it.
            routing_field: Field of the custom routing, such as the parent of a join field.
            options: See `AddOptions`.

        Returns:
            The report of the load; `stopped` is the reason if the load ended early.

        Raises:
            UsageError: `documents` is not an iterable of dicts, or several names or a pattern are open.
            SourceError: no document can be loaded, or documents lack a field of the text; nothing has been written.
            IndexMismatch: the index was deleted or replaced during the load.
            EngineError: the engine failed before the first document was sent.
            OutputError: the dead-letter file cannot be written.
        """
        return self._load(documents, {"id_field": id_field, "routing_field": routing_field}, options)

    @check_arguments
    @spell_out(AddOptions)
    def embed_missing(self, **options: Unpack[AddOptions]) -> LoadReport:
        """Embed the documents of the index that lack an embedding or were changed since, as `es-sbert ingest` does.

        Args:
            options: See `AddOptions`.

        Raises:
            UsageError, SourceError, IndexMismatch, EngineError, OutputError: as for `add`.
            VectorIndexError: the index cannot keep embeddings that are written in place.
        """
        return self._load(None, {}, options)

    @check_arguments
    def delete(self, ids: str | Iterable[str], *, retry_seconds: Seconds = RETRY_SECONDS) -> int:
        """Delete documents by id and refresh the index.

        Args:
            ids: One id or several; ids without a document are ignored.
            retry_seconds: Seconds for which requests are retried if the engine is overloaded or does not respond.

        Returns:
            Number of deleted documents.

        Raises:
            UsageError: several names or a pattern are open, or an id is not a str or is empty.
            EngineError: the engine failed, or refused to delete a document.
        """
        from es_sbert.ingest.load_documents import delete_documents

        ids = as_texts([ids] if isinstance(ids, str) else list(ids) if isinstance(ids, set) else ids, "ids")
        if "" in ids:
            raise UsageError("`ids` contains an empty id", "Pass the ids of documents: hit.id.").about("ids", ids)
        self._scope()  # refuses a closed index
        return delete_documents(self._engine, self._single_name("deleted from"), ids, retry_seconds)

    @check_arguments
    @spell_out(SearchOptions)
    def body(self, text: str, k: int = TOP_K, **options: Unpack[SearchOptions]) -> Json:
        """Return the request body that `search` would send to `POST /index/_search`, for use with any client."""
        return self._text_requests(search_request, [text], k, options)(self._resolver.target())[0].bodies[0]

    @check_arguments
    def clause(
        self,
        text: str,
        k: int = TOP_K,
        *,
        filter: Json | Sequence[Json] | None = None,
        exact: bool = False,
        min_cosine: float | None = None,
        boost: float = 1.0,
    ) -> Json:
        """Return a semantic query for use in a larger one: as a clause of a bool, a filter or an aggregation.

        Args:
            filter, exact, min_cosine: See `SearchOptions`.
            boost: Factor of the scores.

        Raises:
            UsageError: as for `search`.
        """
        options: SearchOptions = {"filter": filter, "exact": exact, "min_cosine": min_cosine}
        check_search(k, options, text)
        target, engine_type = self._resolver.target(), self._engine.info.engine_type
        query = build_vector_query(target.scope, target.encode([text])[0], k, options)
        method = target.scope.method(engine_type, exact)
        return vector_clause(engine_type, method, replace(query, boost=boost, inner_hits=None))

    @check_arguments
    @spell_out(SearchOptions)
    def similar_body(
        self, id: str, k: int = TOP_K, *, index: str | None = None, **options: Unpack[SearchOptions]
    ) -> Json:
        """Return the request body that `similar_to` would send."""
        return self._similar_request(id, index, k, options)(self._resolver.target(with_encoder=False))[0].bodies[0]

    @check_arguments
    @spell_out(HybridOptions)
    def hybrid_bodies(self, text: str, k: int = TOP_K, **options: Unpack[HybridOptions]) -> tuple[Json, ...]:
        """Return the request bodies that `hybrid` would send: one for `_search`, or several for `_msearch`."""
        return self._text_requests(hybrid_request, [text], k, options)(self._resolver.target())[0].bodies

    def _load(
        self,
        documents: Iterable[Mapping[str, Any]] | None,
        more: dict[str, Any],
        options: AddOptions,
    ) -> LoadReport:
        # Import these only here: a program that only searches does not load the pipeline.
        from es_sbert.ingest.load_documents import load_documents
        from es_sbert.ingest.load_files import load_settings

        name = self._single_name("written to")
        settings = load_settings(name, (), {**more, **options, "vector_field": self._scope().name})
        report = load_documents(self._engine, self.encoder, settings, documents)
        if self._scope().indices_without_field:
            self._resolver.resolve_again(self._resolver.current)  # the load may have added the field
        return report

    def _single_name(self, action: str) -> str:
        if len(self._names) > 1 or is_index_expression(self._names[0]):
            raise UsageError(
                f"documents can be {action} one index only, not {', '.join(self._names)}",
                "Open the index alone: SemanticIndex(name).",
            ).about("index", self._names)
        return self._names[0]

    def _scope(self) -> SearchScope:
        return self._resolver.current.scope

    def _rerank(self, text: str, result: Result, reranker: Reranker | None, k: int, window: int | None) -> Result:
        if reranker is None:
            return result
        return rerank_hits(text, result, reranker, scope_text_reader(self._scope()), k=k, window=window)

    def _text_requests(
        self,
        build: Callable[[EngineType, SearchScope, Vectors, int, Any, str], SearchRequest[Result]],
        texts: Sequence[str],
        k: int,
        options: SearchOptions,
    ) -> BuildRequests[Result]:
        for text in texts:
            check_search(k, options, text)
        engine_type = self._engine.info.engine_type
        return lambda target: [
            build(engine_type, target.scope, vector, k, options, text)
            for text, vector in zip(texts, target.encode(texts), strict=True)
        ]

    def _similar_request(
        self, id: str, index: str | None, k: int, options: SearchOptions
    ) -> BuildRequests[SearchResult]:
        check_search(k, options)
        partial = options.get("allow_partial", False)

        def build(target: SearchTarget) -> Sequence[SearchRequest[SearchResult]]:
            where, vector = read_document_vector(self._engine, target.scope, id, index, allow_partial=partial)
            others: SearchOptions = {
                **options,
                "filter": exclude_document(as_one_query(options.get("filter")), where, id),
            }
            return [search_request(self._engine.info.engine_type, target.scope, vector, k, others)]

        return build

    def _run(self, build: BuildRequests[Result], options: SearchOptions, *, with_encoder: bool = True) -> list[Result]:
        target = self._resolver.target(with_encoder=with_encoder)
        try:
            return self._send(build(target), target.scope, options)
        except IndexMissing:
            # The alias may now point to another index, with a different model (`es-sbert index migrate`).
            target = self._resolver.resolve_again(target)
            return self._send(build(target), target.scope, options)

    def _send(
        self, requests: Sequence[SearchRequest[Result]], scope: SearchScope, options: SearchOptions
    ) -> list[Result]:
        """Send the searches as one request and read their results."""
        partial = options.get("allow_partial", False)
        shared: Any = {"allow_partial": partial, "default_pipeline": True, "routing": scope.routing}
        [indices], bodies = {each.indices for each in requests}, [body for each in requests for body in each.bodies]
        if len(bodies) > 1:
            answers = iter(self._engine.multi_search(indices, bodies, **shared))
        else:
            answers = iter([self._engine.search(indices, bodies[0], **shared)])
        results = []
        for request in requests:
            own = list(islice(answers, len(request.bodies)))
            missing = read_partial(own) if partial else None
            results.append(
                replace(request.read(own), partial=missing, indices_without_field=scope.indices_without_field)
            )
        return results

    if not TYPE_CHECKING:
        __getattr__ = other_names(INDEX_NAMES)

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
