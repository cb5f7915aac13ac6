"""`SearchRewriter`: find the semantic queries of a search, embed their texts, substitute native kNN queries."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EsSbertError, IndexMismatch, RequestTooLarge
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.forward import OutgoingRequest, StaleRewriteError
from es_sbert.gateway.incoming_request import (
    IncomingRequest,
    caller_cache_key,
    read_json,
    require_json_type,
    require_utf8,
    without_byte_order_marks,
)
from es_sbert.gateway.index_lookup import IndexLookup, ResolvedIndices
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.search.compound_queries import Place
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.search.hybrid_queries import HybridDetector, hybrid_queries, ranks_hits
from es_sbert.gateway.search.incoming_search import (
    PitResolver,
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    SemanticBudget,
    is_from_query_bar,
    query_parameters,
    request_defined_fields,
    requested_mode,
)
from es_sbert.gateway.search.knn_clauses import (
    CandidateCounts,
    Placeholder,
    QueryPlaceholder,
    SectionPlaceholder,
    cutoff_cosines,
    exceeding_k,
)
from es_sbert.gateway.search.query_finder import QueryFinder, strip_extensions
from es_sbert.gateway.search.search_log import SearchTrace
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.upstream import Upstream
from es_sbert.index.document_vectors import to_float_list
from es_sbert.messages import pluralize
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import check_query_vector
from es_sbert.vectors import Vectors

# Parts of the names of full-text queries, which become hybrid.
_FULL_TEXT_MARKS = (b"match", b"query_string", b"combined_fields")
_STEP_BYTES = 1024 * 1024

# Indices with unknown mappings, for which only native semantic queries can be passed through.
_UNREADABLE_INDICES = ResolvedIndices({}, {}, ordinary=False)

# A vector depends on the model's fingerprint and the text.
_VectorKey = tuple[str, str]


@dataclass(frozen=True)
class RewriteResult:
    """The result of rewriting a search body.

    Attributes:
        body: The body.
        is_changed: Whether it was changed.
        queries: Its semantic queries.
        preference: Parameter to add to the search, so that it uses the same shard copies as the gateway's request for
            the cosine of the k-th document; None if there was no such request.
        confirm: Checks whether the indices are still those that the body was rewritten for; None if that is certain.
    """

    body: Json
    is_changed: bool = False
    queries: tuple[SemanticQuery, ...] = ()
    preference: str | None = None
    confirm: Callable[[], Coroutine[Any, Any, bool]] | None = None


class SearchRewriter:
    """Rewrites searches with semantic queries into native kNN searches.

    Args:
        settings: Settings of the gateway.
        upstream: The engine.
        indices: Resolves index expressions.
        models: The models of the vector fields.

    Attributes:
        limits: Limits of a request.
    """

    def __init__(
        self, settings: GatewaySettings, upstream: Upstream, indices: IndexLookup, models: ModelRegistry
    ) -> None:
        self._settings = settings.semantic
        self.limits = settings.limits
        self._upstream = upstream
        self._indices = indices
        self._models = models
        self._pits = PitResolver(upstream)
        virtual_field = settings.semantic.virtual_field
        # A name may be written with escapes, or in UTF-16 or UTF-32, which the parser refuses.
        marks = ("query_vector_builder", '"neural"', '"semantic"', '"wrapper"', virtual_field, "\\u", "\0")
        self._marks = tuple(mark.encode() for mark in marks)

    async def receive(self, incoming: IncomingRequest) -> ReceivedRequest:
        """Read the body of a request.

        Raises:
            RequestTooLarge, BadRequest: the body is too large, or the gateway cannot read it; see `read_json`.
        """
        raw = await incoming.body()
        unchanged = OutgoingRequest.unchanged(incoming, raw)
        mode = requested_mode(incoming) or (RewriteMode.HYBRID if self._settings.hybrid else RewriteMode.ON)
        if mode is RewriteMode.OFF:
            return ReceivedRequest(unchanged, mode, None)
        plain = await read_json(incoming, raw)
        parameters = {} if raw else dict(query_parameters(incoming))
        if "source" in parameters:
            require_json_type(parameters.get("source_content_type", ""))
            plain = parameters["source"].encode()
        plain = await offload_if_large(len(plain), without_byte_order_marks, plain)
        await offload_if_large(len(plain), require_utf8, plain)
        return ReceivedRequest(unchanged, mode, plain)

    async def maybe_semantic(self, raw: bytes, mode: RewriteMode, *, template: bool = False) -> bool:
        """Whether valid UTF-8 may contain semantic queries, checked without parsing it. False is certain.

        Args:
            template: Whether the body is a template, whose search is unknown until it is rendered.

        Raises:
            RequestTooLarge: the body may contain semantic queries, and is too large to be parsed.
        """
        marks = self._marks if mode is RewriteMode.ON else (*self._marks, *_FULL_TEXT_MARKS)
        if mode is RewriteMode.OFF or not (template or await offload_if_large(len(raw), _contains_any, raw, marks)):
            return False
        if len(raw) > (limit := self.limits.search_bytes):
            raise RequestTooLarge(
                f"the search has {pluralize(len(raw), 'byte')}; the limit for searches with semantic "
                f"queries is {limit:,}",
                "Send fewer searches at a time. X-Es-Sbert: off passes the request through unchanged.",
            )
        return True

    async def rewrite(self, body: Json, context: RewriteContext, *, confirm_later: bool = False) -> RewriteResult:
        """Rewrite a search body, which is changed.

        Args:
            confirm_later: Whether the caller awaits `RewriteResult.confirm` before it sends a response.

        Raises:
            StaleRewriteError: the indices have changed since the body was rewritten for them; only without
                `confirm_later`.
            EsSbertError: a semantic query is invalid, or the engine or a model is not available.
        """
        if "pit" in body:
            context = replace(context, expression=await self._pits.expression(body, context.headers), listed=True)
        trace = context.trace or SearchTrace()
        denied: AccessDenied | None = None
        try:
            indices = await self._indices.get(context)
        except AccessDenied as error:
            indices, denied = _UNREADABLE_INDICES, error
        if not indices.exists:
            # The engine reports the error, unless it rejects the gateway's options first.
            return RewriteResult(body, is_changed=strip_extensions(body, self._settings.virtual_field))
        try:
            if denied is not None and _may_become_hybrid(body, context):
                raise denied
            return await self._rewrite_resolved(body, context, indices, trace, confirm_later=confirm_later)
        except EsSbertError as error:
            trace.is_semantic = True  # only semantic queries are refused from here on
            if denied is not None and isinstance(error, IndexMismatch):
                raise denied from None  # the search names the virtual field
            raise

    async def _rewrite_resolved(
        self, body: Json, context: RewriteContext, indices: ResolvedIndices, trace: SearchTrace, *, confirm_later: bool
    ) -> RewriteResult:
        """Rewrite a search body by the mappings of its indices: find, embed, substitute."""
        start = time.perf_counter()
        budget = context.budget or SemanticBudget(self.limits)
        found = await offload_if_large(context.size, self._find, body, indices, context, budget)
        if not found:
            return RewriteResult(body)
        queries = trace.queries = tuple(placeholder.semantic for placeholder in found)
        budget.spend([_vector_key(semantic) for semantic in queries])
        embedding = self._embed(queries, caller_cache_key(context.headers))
        # Look the mapping up again, while the texts are embedded or while the search runs: the target of an alias may
        # have changed.
        confirm = partial(self._is_current, context, indices)
        if confirm_later:
            vectors = await embedding
        else:
            both = await gather_or_cancel([confirm(), embedding])
            is_current, vectors = cast(tuple[bool, dict[_VectorKey, list[float]]], both)
            if not is_current:
                raise StaleRewriteError
        limited, preference = exceeding_k(self._upstream, found), None
        hybrid = [each for each in found if isinstance(each, QueryPlaceholder) and each.words is not None]
        # A search with a point in time needs no preference: it is bound to its shard copies.
        if (limited or hybrid) and "pit" not in body and "preference" not in context.options:
            preference = f"es-sbert-{secrets.token_hex(8)}"  # random, so that searches are spread over the copies
            context = replace(context, options={**context.options, "preference": preference})

        def vector(query: SemanticQuery) -> list[float]:
            return vectors[_vector_key(query)]

        cutoffs = await cutoff_cosines(self._upstream, limited, vector, body, context)
        weight = self._settings.semantic_weight
        ranked = await hybrid_queries(self._upstream, weight, hybrid, vector, body, context)
        await offload_if_large(context.size, self._substitute, found, vector, cutoffs, ranked)
        trace.seconds = time.perf_counter() - start
        return RewriteResult(
            body, is_changed=True, queries=queries, preference=preference, confirm=confirm if confirm_later else None
        )

    def _find(
        self, body: Json, indices: ResolvedIndices, context: RewriteContext, budget: SemanticBudget
    ) -> dict[Placeholder, Place]:
        """Find the semantic queries of a body. For a large body, this runs in a thread (`offload_if_large`)."""
        engine_type = self._upstream.engine_type_or_default  # known since the lookup of the indices
        # Indices whose mappings the caller is not allowed to read may have vectors.
        lenient = indices is not _UNREADABLE_INDICES and is_from_query_bar(body)
        virtual_field, defined = self._settings.virtual_field, request_defined_fields(body)
        names = FieldResolver(indices, virtual_field, defined, lenient=lenient)
        check = partial(budget.check, size=context.size)
        parser = SemanticQueryParser(names, self._settings, self.limits.query_characters, check)
        if context.find is not None:
            return context.find(parser)
        hybrid = HybridDetector(parser) if _may_become_hybrid(body, context) else None
        matches_candidates = self._upstream.knn_matches_candidates
        try:
            return QueryFinder(engine_type, parser, hybrid, knn_matches_candidates=matches_candidates).find(body)
        except RecursionError:
            error = BadRequest("the queries of the search are nested too deeply", "Engines accept 20 to 30 levels.")
            raise error from None

    async def _embed(self, queries: Sequence[SemanticQuery], caller: bytes) -> dict[_VectorKey, list[float]]:
        """Embed all texts of one model together, so that either all of them are queued or none.

        Raises:
            UsageError: a vector has no direction.
            EsSbertError: the model is not available.
        """
        texts: dict[str, dict[str, SearchScope]] = {}
        for semantic in queries:
            texts.setdefault(semantic.target.meta.fingerprint, {})[semantic.text] = semantic.target

        async def embed(by_text: Mapping[str, SearchScope]) -> Vectors:
            target = next(iter(by_text.values()))
            embedder = await self._models.for_field(target.meta, target.indices[0])
            return (await embedder.embed(list(by_text), "query", caller)).vectors

        numbers: dict[_VectorKey, list[float]] = {}
        embedded = await gather_or_cancel(map(embed, texts.values()))
        for (fingerprint, by_text), vectors in zip(texts.items(), embedded, strict=True):
            for text, vector in zip(by_text, vectors, strict=True):
                check_query_vector(vector)
                numbers[fingerprint, text] = to_float_list(vector)
        return numbers

    def _substitute(
        self,
        found: Mapping[Placeholder, Place],
        vector: Callable[[SemanticQuery], list[float]],
        cutoffs: Mapping[QueryPlaceholder, float | None],
        ranked: Mapping[QueryPlaceholder, Json],
    ) -> None:
        """Replace the placeholders with native kNN queries. For a large body, this runs in a thread."""
        engine_type, counts = self._upstream.engine_type_or_default, CandidateCounts()
        for placeholder, (holder, name) in found.items():
            numbers = vector(placeholder.semantic)
            if isinstance(placeholder, SectionPlaceholder):
                holder[name] = placeholder.native_section(numbers)
            elif placeholder.words is not None:
                holder[name] = ranked[placeholder]
            else:
                holder[name] = placeholder.native_query(engine_type, numbers, cutoffs.get(placeholder), counts)

    async def is_semantic(
        self, searches: Sequence[Json], context: RewriteContext, *, indices_unknown: bool, has_templates: bool = False
    ) -> bool:
        """Whether any of the searches has a semantic query, even an invalid one, by the current mappings.

        Args:
            indices_unknown: Whether the request may search other indices than those of the context.
            has_templates: Whether there are searches that are unknown, which count as semantic if there are vectors.

        Raises:
            AccessDenied: a query names the virtual field or may become hybrid, and the mappings may not be read.
            IndexMismatch: `_meta.es_sbert` of a mapping is invalid; unless `indices_unknown`.
            EsSbertError: the engine is not available.
        """
        denied: AccessDenied | None = None
        try:
            indices = await self._indices.get(context, fresh=not indices_unknown)
            if indices_unknown and not indices.remote and (not indices or indices.ordinary):
                return False
        except AccessDenied as error:
            if indices_unknown:
                return False
            denied, indices = error, _UNREADABLE_INDICES
        except IndexMismatch:
            if not indices_unknown:
                raise
            indices = _UNREADABLE_INDICES  # other indices may have vectors
        if denied is not None and (has_templates or any(_may_become_hybrid(each, context) for each in searches)):
            raise denied
        if has_templates and (indices or indices.remote):
            return True
        try:
            for search in searches:
                if await offload_if_large(
                    context.size, self._find, search, indices, context, SemanticBudget(self.limits)
                ):
                    return True
        except (BadRequest, IndexMismatch):  # an invalid semantic query
            if denied is not None:
                raise denied from None
            return True
        return False

    async def _is_current(self, context: RewriteContext, indices: ResolvedIndices) -> bool:
        return await self._indices.get(context, fresh=True) == indices


def _may_become_hybrid(body: Json, context: RewriteContext) -> bool:
    """Whether full-text queries of a search may become hybrid."""
    return context.mode is RewriteMode.HYBRID and ranks_hits(body, context.options)


def _vector_key(semantic: SemanticQuery) -> _VectorKey:
    return semantic.target.meta.fingerprint, semantic.text


def _contains_any(raw: bytes, marks: Sequence[bytes]) -> bool:
    """Whether a body contains any of the marks; in steps, because `in` holds the interpreter lock."""
    overlap = max(map(len, marks)) - 1
    for start in range(0, max(1, len(raw)), _STEP_BYTES):
        step = raw if len(raw) <= _STEP_BYTES else raw[start : start + _STEP_BYTES + overlap]
        if any(mark in step for mark in marks):
            return True
    return False
