"""`SearchRewriter`: resolve the indices of a search, embed its texts, rewrite its body."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from es_sbert.encoder.batching import Vectors
from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import AccessDenied, IndexMismatch, RequestTooLarge
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.embedding.model_registry import ModelRegistry
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import FieldResolver
from es_sbert.gateway.index_lookup import IndexLookup, ResolvedIndices
from es_sbert.gateway.proxy.forward import OutgoingRequest
from es_sbert.gateway.proxy.incoming_request import CallerCacheKeys, IncomingRequest
from es_sbert.gateway.proxy.json_bodies import to_utf8
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.full_text_queries import HybridDetector, semantic_weight
from es_sbert.gateway.search.incoming_search import (
    MODE_HEADER,
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    SemanticBudget,
    decompress_offloaded,
    has_json_body,
)
from es_sbert.gateway.search.knn_clauses import CutoffCosines, Filters, TopKCutoff, cutoff_key
from es_sbert.gateway.search.query_rewriter import QueryRewriter, VectorLookup
from es_sbert.gateway.search.search_body import request_defined_fields, rewrite_body, strip_extensions
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.index.document_vectors import to_float_list
from es_sbert.search.vector_query import check_query_vector

NO_VECTORS_HINT = (
    "The indices searched have no vectors of es-sbert, so the gateway passed the query on as it came. If it was to be "
    "answered by meaning, make vectors: es-sbert ingest --index INDEX."
)

# Of full-text queries, which become hybrid ones.
_FULL_TEXT_MARKS = (b"match", b"query_string", b"combined_fields")
_STEP_BYTES = 1024 * 1024

# Indices of which nothing is known: there the virtual field's name may not stand.
_UNREADABLE_INDICES = ResolvedIndices({}, {}, ordinary=False)


# What a vector depends on: fingerprint of the model, and text.
_VectorKey = tuple[str, str]
# Told how many semantic queries a search has, as they are found; may refuse them.
QueryCountCheck = Callable[[int], None]


@dataclass(frozen=True)
class RewriteResult:
    """A search body that was looked through.

    Attributes:
        body: In the engine's words; the very same object where nothing in it asks by meaning.
        asked: What asks by meaning in it.
        seconds: Until the vectors were there.
        hint: What to add to an error that the engine may answer with: what was asked may be our business after all.
        confirm: Asks whether the indices are still those that the body was rewritten for; None where that is certain.
    """

    body: Json
    asked: tuple[SemanticQuery, ...] = ()
    seconds: float = 0.0
    hint: str | None = None
    confirm: Callable[[], Coroutine[Any, Any, bool]] | None = None


@dataclass
class _CollectedQueries:
    """What a body asks by meaning.

    Attributes:
        asked: The queries, with what must match beside each.
        vectors: Of their texts, once these are embedded.
        lists: The numbers of these vectors, as they stand in the rewritten body; empty until the vectors are there.
        least: How near the k-th documents are, where that was asked.
    """

    asked: list[tuple[SemanticQuery, Filters]] = field(default_factory=list)
    vectors: dict[_VectorKey, Vectors] = field(default_factory=dict)
    lists: dict[_VectorKey, list[float]] = field(default_factory=dict)
    least: CutoffCosines = field(default_factory=dict)

    @property
    def queries(self) -> list[SemanticQuery]:
        """The semantic queries alone."""
        return [semantic for semantic, _ in self.asked]

    def note(self, semantic: SemanticQuery, filters: Filters) -> tuple[list[float], None]:
        self.asked.append((semantic, filters))
        return self.lists.setdefault(_vector_key(semantic), []), None

    def fill_vectors(self) -> None:
        """Put the vectors' numbers where they stand in the rewritten body."""
        for key, numbers in self.lists.items():
            check_query_vector(self.vectors[key])
            numbers[:] = to_float_list(self.vectors[key])

    def look_up(self, semantic: SemanticQuery, filters: Filters) -> tuple[list[float], float | None]:
        least = None if filters is None else self.least.get(cutoff_key(semantic, filters))
        return self.lists[_vector_key(semantic)], least

    def vector(self, semantic: SemanticQuery) -> Vectors:
        return self.vectors[_vector_key(semantic)]


class SearchRewriter:
    """Puts searches by meaning into the engine's words.

    Args:
        settings: The operator's.
        upstream: The engine.
        indices: Looks indices up.
        models: Their models.
    """

    def __init__(
        self, settings: GatewaySettings, upstream: Upstream, indices: IndexLookup, models: ModelRegistry
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._indices = indices
        self._models = models
        self._cutting = TopKCutoff(upstream)
        self._callers = CallerCacheKeys()
        meaning = settings.semantic
        self._marks = tuple(
            mark.encode()
            # A name may be written with escapes.
            for mark in ("query_vector_builder", '"neural"', '"semantic"', '"wrapper"', meaning.virtual_field, "\\u")
        )

    async def receive(self, incoming: IncomingRequest, to_utf8: Callable[[bytes], bytes] = to_utf8) -> ReceivedRequest:
        """Read the body of a request.

        Args:
            to_utf8: Decodes the body.

        Raises:
            RequestTooLarge, BadRequest: the body is too large, or its content encoding is invalid.
        """
        raw = await incoming.body()
        mode = self.mode(incoming.header(MODE_HEADER))
        plain = None
        if has_json_body(incoming) and mode is not RewriteMode.OFF:
            plain = await decompress_offloaded(raw, incoming)
        if plain is not None:
            plain = await offload_if_large(len(plain), to_utf8, plain)
        return ReceivedRequest(OutgoingRequest.unchanged(incoming, raw), mode, plain)

    def mode(self, header: bytes) -> RewriteMode:
        """How a request wants to be understood.

        Args:
            header: The value of `X-Es-Sbert`, as `check_mode` has let it through; empty leaves it to the settings.
        """
        asked = header.decode("ascii", "replace").strip().lower()
        if asked in (RewriteMode.OFF, RewriteMode.HYBRID):
            return RewriteMode(asked)
        return RewriteMode.HYBRID if self._settings.semantic.hybrid and asked != RewriteMode.ON else RewriteMode.ON

    def budget(self) -> SemanticBudget:
        """What one request may ask for."""
        return SemanticBudget(self._settings.limits)

    async def maybe_semantic(self, raw: bytes, mode: RewriteMode) -> bool:
        """A quick look, before anything is parsed: False is certain, True is not.

        Raises:
            RequestTooLarge: it may, and is larger than a search that is read.
        """
        if mode is RewriteMode.OFF:
            return False
        marks = self._marks if mode is RewriteMode.ON else (*self._marks, *_FULL_TEXT_MARKS)
        if not await offload_if_large(len(raw), _contains_any, raw, marks):
            return False
        self.check_size(raw)
        return True

    def check_size(self, raw: bytes) -> None:
        """Refuse a search that is too large to be read.

        Raises:
            RequestTooLarge: it is.
        """
        if len(raw) > (most := self._settings.limits.search_bytes):
            raise RequestTooLarge(
                f"the search has {len(raw):,} bytes, and of those that may hold semantic queries {most:,} are read",
                "Send fewer searches at a time, or raise --max-search of es-sbert serve. "
                "X-Es-Sbert: off passes the request as it is.",
            )

    async def rewrite(self, body: Json, scope: RewriteContext, *, confirm_later: bool = False) -> RewriteResult:
        """A search body in the engine's words.

        Args:
            confirm_later: Whether the caller confirms, before it gives an answer, that the body is still right.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine or a model cannot be asked.
        """
        start = time.perf_counter()
        try:
            searched = await self._indices.get(scope)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied)
        if not searched.exists:
            # The engine says so, unless it takes exception to what only the gateway understands.
            return RewriteResult(strip_extensions(body, self._settings.semantic.virtual_field))
        budget = scope.budget or self.budget()
        check: QueryCountCheck = partial(budget.check, size=scope.size)
        while True:
            wanted = _CollectedQueries()
            rewritten = await self._read(body, searched, scope, wanted.note, check)
            if rewritten is body:
                return RewriteResult(body, hint=None if searched else NO_VECTORS_HINT)
            if check is not _no_limit:
                budget.spend([_vector_key(semantic) for semantic in wanted.queries])
                check = _no_limit  # counted
            embedding = self._embed(wanted, self._callers.key(scope.headers))
            confirm = partial(self._unchanged, scope, searched) if confirm_later else None
            # The mapping is read again, while the texts are embedded or while the search runs: an alias may stand for
            # another index by now.
            if confirm is None:
                latest = await self._now_while(scope, embedding)
            else:
                await embedding
                latest = searched
            if latest == searched:
                await offload_if_large(scope.size, wanted.fill_vectors)
                wanted.least = await self._cutting.least(wanted.asked, wanted.vector, body, scope)
                if wanted.least:
                    rewritten = await self._read(body, searched, scope, wanted.look_up, check, checked=True)
                seconds = time.perf_counter() - start
                return RewriteResult(rewritten, tuple(wanted.queries), seconds, confirm=confirm)
            searched = latest

    async def asks(self, body: Json, scope: RewriteContext) -> bool:
        """Whether a body asks by meaning, of the indices as they are now.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine cannot be asked.
        """
        try:
            searched = await self._indices.get(scope, fresh=True)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied).body is not body
        check = partial(self.budget().check, size=scope.size)
        return await self._read(body, searched, scope, _CollectedQueries().note, check) is not body

    async def names_vectors(self, queries: Sequence[Json], scope: RewriteContext) -> bool:
        """Whether any of some queries can only mean the vectors of an index, whichever of the scope is searched.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        try:
            searched = await self._indices.get(scope)
        except AccessDenied:
            return False
        if not searched or searched.ordinary:
            return False
        try:
            for one in queries:
                check = partial(self.budget().check, size=scope.size)
                read = await self._read({"query": one}, searched, scope, _CollectedQueries().note, check)
                if read["query"] is not one:
                    return True
        except (BadRequest, IndexMismatch):
            return True  # it names vectors, in whatever wrong way
        return False

    def _unseen(self, body: Json, mode: RewriteMode, denied: AccessDenied) -> RewriteResult:
        """A body for indices that nobody may look into: passed on, where nothing in it can only be meant for us.

        Raises:
            AccessDenied: it names the virtual field, or plain queries are to become hybrid.
        """
        if mode is RewriteMode.HYBRID:
            raise denied
        try:
            self._rewritten(body, _UNREADABLE_INDICES, mode, _CollectedQueries().note, _no_limit)
        except IndexMismatch:
            raise denied from None
        return RewriteResult(body, hint=f"{denied.message[0].upper()}{denied.message[1:]}. {denied.remedy}")

    async def _unchanged(self, scope: RewriteContext, searched: ResolvedIndices) -> bool:
        return await self._indices.get(scope, fresh=True) == searched

    async def _now_while(self, scope: RewriteContext, embedding: Coroutine[Any, Any, None]) -> ResolvedIndices:
        """What the indices are, looked up while the texts are embedded."""
        latest, _ = await gather_or_cancel([self._indices.get(scope, fresh=True), embedding])
        return cast(ResolvedIndices, latest)

    async def _read(
        self,
        body: Json,
        searched: ResolvedIndices,
        scope: RewriteContext,
        answered: VectorLookup,
        check: QueryCountCheck,
        *,
        checked: bool = False,
    ) -> Json:
        return await offload_if_large(scope.size, self._rewritten, body, searched, scope.mode, answered, check, checked)

    def _rewritten(
        self,
        body: Json,
        searched: ResolvedIndices,
        mode: RewriteMode,
        answered: VectorLookup,
        check: QueryCountCheck,
        checked: bool = False,
    ) -> Json:
        names = FieldResolver(searched, self._settings.semantic.virtual_field, request_defined_fields(body))
        reader = SemanticQueryParser(names, self._settings.semantic, self._settings.limits, check)
        hybrid = None
        if mode is RewriteMode.HYBRID:
            weight = semantic_weight(self._settings.semantic, self._engine_type)
            hybrid = HybridDetector(names, self._settings.semantic, self._settings.limits, weight)
        try:
            return rewrite_body(body, QueryRewriter(self._engine_type, reader, answered, hybrid), checked=checked)
        except RecursionError:
            raise BadRequest(
                "the queries of the search are nested too deep", "Engines themselves take 20 to 30 levels."
            ) from None

    @property
    def _engine_type(self) -> EngineType:
        # The engine has answered the question for its indices by now.
        return self._upstream.engine_type_or_default

    async def _embed(self, wanted: _CollectedQueries, caller: bytes) -> None:
        """All texts of one model together: either all of them wait for their vectors, or none."""
        texts: dict[str, dict[str, SemanticQuery]] = {}
        for semantic in wanted.queries:
            texts.setdefault(semantic.target.meta.fingerprint, {}).setdefault(semantic.text, semantic)
        await gather_or_cancel(self._embed_by_one(list(by_text.values()), wanted, caller) for by_text in texts.values())

    async def _embed_by_one(self, queries: Sequence[SemanticQuery], wanted: _CollectedQueries, caller: bytes) -> None:
        """Vectors of different texts that are for one model."""
        target = queries[0].target
        embedder = await self._models.for_field(target.meta, target.parts[0].indices[0])
        encoded = await embedder.embed([semantic.text for semantic in queries], "query", caller)
        for semantic, vector in zip(queries, encoded.vectors, strict=True):
            wanted.vectors[_vector_key(semantic)] = vector  # (dimensions,)


def _vector_key(semantic: SemanticQuery) -> _VectorKey:
    return semantic.target.meta.fingerprint, semantic.text


def _no_limit(queries: int) -> None:
    """Takes any number of semantic queries."""


def _contains_any(raw: bytes, marks: Sequence[bytes]) -> bool:
    """Whether any of some words stands in a body; in steps, since a search in bytes lets no other thread run."""
    overlap = max(map(len, marks)) - 1
    for start in range(0, max(1, len(raw)), _STEP_BYTES):
        step = raw if len(raw) <= _STEP_BYTES else raw[start : start + _STEP_BYTES + overlap]
        if any(mark in step for mark in marks):
            return True
    return False
