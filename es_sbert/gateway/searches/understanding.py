"""Searches that ask by meaning: their indices looked up, their texts embedded, their bodies rewritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import AccessDenied, IndexMismatch, RequestTooLarge
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.indices import Indices, Searched
from es_sbert.gateway.rewrite.body import defined_fields, rewritten_body
from es_sbert.gateway.rewrite.budget import SemanticBudget
from es_sbert.gateway.rewrite.extensions import without_extensions
from es_sbert.gateway.rewrite.hybrid import Hybrid, semantic_weight
from es_sbert.gateway.rewrite.queries import Answered, Filters, QueryRewriter
from es_sbert.gateway.rewrite.semantic import Reader, Semantic
from es_sbert.gateway.searches.cutting import Cutting, LeastCosines, cut_key
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.targets import FieldNames
from es_sbert.gateway.tasks import gather_all, run_by_size
from es_sbert.gateway.wire.callers import CallerKeys
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.index.vectors import vector_list
from es_sbert.search.vector_query import check_direction

NO_VECTORS = (
    "The indices searched have no vectors of es-sbert, so the gateway passed the query on as it came. If it was to be "
    "answered by meaning, make vectors: es-sbert ingest --index INDEX."
)

# Of full-text queries, which become hybrid ones.
_FULL_TEXT = (b"match", b"query_string", b"combined_fields")
_STEP_BYTES = 1024 * 1024

# Indices of which nothing is known: there the virtual field's name may not stand.
_UNSEEN = Searched({}, {}, ordinary=False)


# What a vector depends on: fingerprint of the model, and text.
_VectorKey = tuple[str, str]
# Told how many semantic queries a search has, as they are found; may refuse them.
Check = Callable[[int], None]


@dataclass(frozen=True)
class Understood:
    """A search body that was looked through.

    Attributes:
        body: In the engine's words; the very same object where nothing in it asks by meaning.
        asked: What asks by meaning in it.
        seconds: Until the vectors were there.
        hint: What to add to an error that the engine may answer with: what was asked may be our business after all.
        confirm: Asks whether the indices are still those that the body was rewritten for; None where that is certain.
    """

    body: Json
    asked: tuple[Semantic, ...] = ()
    seconds: float = 0.0
    hint: str | None = None
    confirm: Callable[[], Coroutine[Any, Any, bool]] | None = None


@dataclass
class _Wanted:
    """What a body asks by meaning.

    Attributes:
        asked: The queries, with what must match beside each.
        vectors: Of their texts, once these are embedded.
        lists: The numbers of these vectors, as they stand in the rewritten body; empty until the vectors are there.
        least: How near the k-th documents are, where that was asked.
    """

    asked: list[tuple[Semantic, Filters]] = field(default_factory=list)
    vectors: dict[_VectorKey, Vectors] = field(default_factory=dict)
    lists: dict[_VectorKey, list[float]] = field(default_factory=dict)
    least: LeastCosines = field(default_factory=dict)

    @property
    def queries(self) -> list[Semantic]:
        """The semantic queries alone."""
        return [semantic for semantic, _ in self.asked]

    def note(self, semantic: Semantic, filters: Filters) -> tuple[list[float], None]:
        self.asked.append((semantic, filters))
        return self.lists.setdefault(_key(semantic), []), None

    def fill_in(self) -> None:
        """Put the vectors' numbers where they stand in the rewritten body."""
        for key, numbers in self.lists.items():
            check_direction(self.vectors[key])
            numbers[:] = vector_list(self.vectors[key])

    def look_up(self, semantic: Semantic, filters: Filters) -> tuple[list[float], float | None]:
        least = None if filters is None else self.least.get(cut_key(semantic, filters))
        return self.lists[_key(semantic)], least

    def vector(self, semantic: Semantic) -> Vectors:
        return self.vectors[_key(semantic)]


class Understanding:
    """Puts searches by meaning into the engine's words.

    Args:
        settings: The operator's.
        upstream: The engine.
        indices: Looks indices up.
        models: Their models.
    """

    def __init__(self, settings: GatewaySettings, upstream: Upstream, indices: Indices, models: Models) -> None:
        self._settings = settings
        self._upstream = upstream
        self._indices = indices
        self._models = models
        self._cutting = Cutting(upstream)
        self._callers = CallerKeys()
        meaning = settings.meaning
        self._marks = tuple(
            mark.encode()
            # A name may be written with escapes.
            for mark in ("query_vector_builder", '"neural"', '"semantic"', '"wrapper"', meaning.virtual_field, "\\u")
        )

    def mode(self, header: bytes) -> Mode:
        """How a request wants to be understood.

        Args:
            header: The value of `X-Es-Sbert`, as `check_mode` has let it through; empty leaves it to the settings.
        """
        asked = header.decode("ascii", "replace").strip().lower()
        if asked in (Mode.OFF, Mode.HYBRID):
            return Mode(asked)
        return Mode.HYBRID if self._settings.meaning.hybrid and asked != Mode.ON else Mode.ON

    def budget(self) -> SemanticBudget:
        """What one request may ask for."""
        return SemanticBudget(self._settings.limits)

    async def may_ask(self, raw: bytes, mode: Mode) -> bool:
        """A quick look, before anything is parsed: False is certain, True is not.

        Raises:
            RequestTooLarge: it may, and is larger than a search that is read.
        """
        if mode is Mode.OFF:
            return False
        marks = self._marks if mode is Mode.ON else (*self._marks, *_FULL_TEXT)
        if not await run_by_size(len(raw), _holds_any, raw, marks):
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

    async def rewrite(self, body: Json, scope: Scope, *, confirm_later: bool = False) -> Understood:
        """A search body in the engine's words.

        Args:
            confirm_later: Whether the caller confirms, before it gives an answer, that the body is still right.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine or a model cannot be asked.
        """
        start = time.perf_counter()
        try:
            searched = await self._known(scope)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied)
        if not searched.exists:
            # The engine says so, unless it takes exception to what only the gateway understands.
            return Understood(without_extensions(body, self._settings.meaning.virtual_field))
        budget = scope.budget or self.budget()
        check: Check = partial(budget.check, size=scope.size)
        while True:
            wanted = _Wanted()
            rewritten = await self._read(body, searched, scope, wanted.note, check)
            if rewritten is body:
                return Understood(body, hint=None if searched else NO_VECTORS)
            if check is not _unlimited:
                budget.spend([_key(semantic) for semantic in wanted.queries])
                check = _unlimited  # counted
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
                await run_by_size(scope.size, wanted.fill_in)
                wanted.least = await self._cutting.least(wanted.asked, wanted.vector, body, scope)
                if wanted.least:
                    rewritten = await self._read(body, searched, scope, wanted.look_up, check, checked=True)
                seconds = time.perf_counter() - start
                return Understood(rewritten, tuple(wanted.queries), seconds, confirm=confirm)
            searched = latest

    async def asks(self, body: Json, scope: Scope) -> bool:
        """Whether a body asks by meaning, of the indices as they are now.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine cannot be asked.
        """
        try:
            searched = await self._now(scope)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied).body is not body
        check = partial(self.budget().check, size=scope.size)
        return await self._read(body, searched, scope, _Wanted().note, check) is not body

    async def asks_by_name(self, queries: Sequence[Json], scope: Scope) -> bool:
        """Whether any of some queries can only mean the vectors of an index, whichever of the scope is searched.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        try:
            searched = await self._known(scope)
        except AccessDenied:
            return False
        if not searched or searched.ordinary:
            return False
        try:
            for one in queries:
                check = partial(self.budget().check, size=scope.size)
                read = await self._read({"query": one}, searched, scope, _Wanted().note, check)
                if read["query"] is not one:
                    return True
        except (BadRequest, IndexMismatch):
            return True  # it names vectors, in whatever wrong way
        return False

    async def _known(self, scope: Scope) -> Searched:
        return await self._indices.known(scope.expression, scope.options, scope.headers, listed=scope.listed)

    async def _now(self, scope: Scope) -> Searched:
        return await self._indices.now(scope.expression, scope.options, scope.headers, listed=scope.listed)

    def _unseen(self, body: Json, mode: Mode, denied: AccessDenied) -> Understood:
        """A body for indices that nobody may look into: passed on, where nothing in it can only be meant for us.

        Raises:
            AccessDenied: it names the virtual field, or plain queries are to become hybrid.
        """
        if mode is Mode.HYBRID:
            raise denied
        try:
            self._rewritten(body, _UNSEEN, mode, _Wanted().note, _unlimited)
        except IndexMismatch:
            raise denied from None
        return Understood(body, hint=f"{denied.message[0].upper()}{denied.message[1:]}. {denied.remedy}")

    async def _unchanged(self, scope: Scope, searched: Searched) -> bool:
        return await self._now(scope) == searched

    async def _now_while(self, scope: Scope, embedding: Coroutine[Any, Any, None]) -> Searched:
        """What the indices are, looked up while the texts are embedded."""
        latest, _ = await gather_all([self._now(scope), embedding])
        return cast(Searched, latest)

    async def _read(
        self, body: Json, searched: Searched, scope: Scope, answered: Answered, check: Check, *, checked: bool = False
    ) -> Json:
        return await run_by_size(scope.size, self._rewritten, body, searched, scope.mode, answered, check, checked)

    def _rewritten(
        self, body: Json, searched: Searched, mode: Mode, answered: Answered, check: Check,
        checked: bool = False,
    ) -> Json:  # fmt: skip
        names = FieldNames(searched, self._settings.meaning.virtual_field, defined_fields(body))
        reader = Reader(names, self._settings.meaning, self._settings.limits, check)
        hybrid = None
        if mode is Mode.HYBRID:
            weight = semantic_weight(self._settings.meaning, self._flavour)
            hybrid = Hybrid(names, self._settings.meaning, self._settings.limits, weight)
        try:
            return rewritten_body(body, QueryRewriter(self._flavour, reader, answered, hybrid), checked=checked)
        except RecursionError:
            raise BadRequest(
                "the queries of the search are nested too deep", "Engines themselves take 20 to 30 levels."
            ) from None

    @property
    def _flavour(self) -> Flavour:
        # The engine has answered the question for its indices by now.
        return self._upstream.known_flavour

    async def _embed(self, wanted: _Wanted, caller: bytes) -> None:
        """All texts of one model together: either all of them wait for their vectors, or none."""
        texts: dict[str, dict[str, Semantic]] = {}
        for semantic in wanted.queries:
            texts.setdefault(semantic.target.meta.fingerprint, {}).setdefault(semantic.text, semantic)
        await gather_all(self._embed_by_one(list(by_text.values()), wanted, caller) for by_text in texts.values())

    async def _embed_by_one(self, queries: Sequence[Semantic], wanted: _Wanted, caller: bytes) -> None:
        """Vectors of different texts that are for one model."""
        target = queries[0].target
        embedder = await self._models.of_field(target.meta, target.parts[0].indices[0])
        encoded = await embedder.embed([semantic.text for semantic in queries], "query", caller)
        for semantic, vector in zip(queries, encoded.vectors, strict=True):
            wanted.vectors[_key(semantic)] = vector  # (dimensions,)


def _key(semantic: Semantic) -> _VectorKey:
    return semantic.target.meta.fingerprint, semantic.text


def _unlimited(queries: int) -> None:
    """Takes any number of semantic queries."""


def _holds_any(raw: bytes, marks: Sequence[bytes]) -> bool:
    """Whether any of some words stands in a body; in steps, since a search in bytes lets no other thread run."""
    overlap = max(map(len, marks)) - 1
    for start in range(0, max(1, len(raw)), _STEP_BYTES):
        step = raw if len(raw) <= _STEP_BYTES else raw[start : start + _STEP_BYTES + overlap]
        if any(mark in step for mark in marks):
            return True
    return False


def check_mode(header: bytes) -> None:
    """Refuse a header `X-Es-Sbert` that says nothing known: it was meant to change something.

    Raises:
        BadRequest: it does.
    """
    if header.strip().lower() not in (b"", *(mode.encode() for mode in Mode)):
        raise BadRequest("the header X-Es-Sbert says nothing known", "Write off, on or hybrid, or leave it out.")
