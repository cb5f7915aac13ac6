"""Searches that ask by meaning: their indices looked up, their texts embedded, their bodies rewritten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.indices import Indices, Searched
from es_sbert.gateway.rewrite.body import defined_fields, rewritten_body
from es_sbert.gateway.rewrite.hybrid import Hybrid, semantic_weight
from es_sbert.gateway.rewrite.queries import Answered, Filters, QueryRewriter
from es_sbert.gateway.rewrite.semantic import Reader, Semantic
from es_sbert.gateway.searches.cutting import Cutting, LeastCosines, cut_key
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.targets import FieldNames
from es_sbert.gateway.wire.upstream import Upstream

NO_VECTORS = (
    "The indices searched have no vectors of es-sbert, so the gateway passed the query on as it came. If it was to be "
    "answered by meaning, make vectors: es-sbert ingest --index INDEX."
)

# Indices of which nothing is known: there the virtual field's name may not stand.
_UNSEEN = Searched({}, {}, ordinary=False)


@dataclass(frozen=True)
class Understood:
    """A search body that was looked through.

    Attributes:
        body: In the engine's words; the very same object where nothing in it asks by meaning.
        asked: What asks by meaning in it.
        seconds: Until the vectors were there.
        hint: What to add to an error that the engine may answer with: what was asked may be our business after all.
    """

    body: Json
    asked: tuple[Semantic, ...] = ()
    seconds: float = 0.0
    hint: str | None = None


@dataclass
class _Wanted:
    """What a body asks by meaning, found by a first reading, and the vectors of its texts for the second."""

    asked: list[tuple[Semantic, Filters]] = field(default_factory=list)
    vectors: dict[tuple[str, str], Vectors] = field(default_factory=dict)
    least: LeastCosines = field(default_factory=dict)

    def note(self, semantic: Semantic, filters: Filters) -> tuple[Vectors, None]:
        self.asked.append((semantic, filters))
        return np.ones(semantic.target.meta.dimensions, np.float32), None  # (dimensions,), never sent

    def look_up(self, semantic: Semantic, filters: Filters) -> tuple[Vectors, float | None]:
        return self.vector(semantic), None if filters is None else self.least.get(cut_key(semantic, filters))

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
        meaning = settings.meaning
        self._marks = tuple(
            mark.encode()
            for mark in ("query_vector_builder", '"neural"', '"semantic"', '"wrapper"', meaning.virtual_field)
        )

    def mode(self, header: bytes) -> Mode:
        """How a request wants to be understood; a header that says nothing known leaves it to the settings."""
        asked = header.decode("ascii", "replace").strip().lower()
        if asked in (Mode.OFF, Mode.HYBRID):
            return Mode(asked)
        return Mode.HYBRID if self._settings.meaning.hybrid and asked != Mode.ON else Mode.ON

    def may_ask(self, raw: bytes, mode: Mode) -> bool:
        """A quick look, before anything is parsed: False is certain, True is not."""
        if mode is Mode.OFF:
            return False
        if mode is Mode.HYBRID and (b"match" in raw or b"query_string" in raw or b"combined_fields" in raw):
            return True
        # A name may be written with escapes.
        return b"\\u" in raw or any(mark in raw for mark in self._marks)

    async def rewrite(self, body: Json, scope: Scope) -> Understood:
        """A search body in the engine's words.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine or a model cannot be asked.
        """
        start = time.perf_counter()
        try:
            searched = await self._indices.known(scope.expression, scope.options, scope.headers, listed=scope.listed)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied)
        while True:
            wanted = _Wanted()
            if self._read(body, searched, scope.mode, wanted.note) is body:
                return Understood(body, hint=None if searched or not searched.exists else NO_VECTORS)
            # The mapping is read again while the texts are embedded: an alias may stand for another index by now.
            latest, _ = await asyncio.gather(
                self._indices.now(scope.expression, scope.options, scope.headers, listed=scope.listed),
                self._embed(wanted),
            )
            if latest == searched:
                wanted.least = await self._cutting.least(wanted.asked, wanted.vector, body, scope)
                rewritten = self._read(body, searched, scope.mode, wanted.look_up)
                return Understood(
                    rewritten, tuple(semantic for semantic, _ in wanted.asked), time.perf_counter() - start
                )
            searched = latest

    async def asks(self, body: Json, scope: Scope) -> bool:
        """Whether a body asks by meaning, of the indices as they are now.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine cannot be asked.
        """
        try:
            searched = await self._indices.now(scope.expression, scope.options, scope.headers, listed=scope.listed)
        except AccessDenied as denied:
            return self._unseen(body, scope.mode, denied).body is not body
        return self._read(body, searched, scope.mode, _Wanted().note) is not body

    async def asks_by_name(self, queries: Sequence[Json], scope: Scope) -> bool:
        """Whether any of some queries can only mean the vectors of an index, whichever of the scope is searched.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        try:
            searched = await self._indices.known(scope.expression, scope.options, scope.headers, listed=scope.listed)
        except AccessDenied:
            return False
        if not searched or searched.ordinary:
            return False
        try:
            return any(self._read({"query": one}, searched, scope.mode, _Wanted().note)["query"] is not one
                       for one in queries)  # fmt: skip
        except (BadRequest, IndexMismatch):
            return True  # it names vectors, in whatever wrong way

    def _unseen(self, body: Json, mode: Mode, denied: AccessDenied) -> Understood:
        """A body for indices that nobody may look into: passed on, where nothing in it can only be meant for us.

        Raises:
            AccessDenied: it names the virtual field, or plain queries are to become hybrid.
        """
        if mode is Mode.HYBRID:
            raise denied
        try:
            self._read(body, _UNSEEN, mode, _Wanted().note)
        except IndexMismatch:
            raise denied from None
        return Understood(body, hint=f"{denied.message[0].upper()}{denied.message[1:]}. {denied.remedy}")

    def _read(self, body: Json, searched: Searched, mode: Mode, answered: Answered) -> Json:
        names = FieldNames(searched, self._settings.meaning.virtual_field, defined_fields(body))
        reader = Reader(names, self._settings.meaning, self._settings.limits)
        hybrid = None
        if mode is Mode.HYBRID:
            weight = semantic_weight(self._settings.meaning, self._flavour)
            hybrid = Hybrid(names, self._settings.meaning, self._settings.limits, weight)
        return rewritten_body(body, QueryRewriter(self._flavour, reader, answered, hybrid))

    @property
    def _flavour(self) -> Flavour:
        # The engine has answered the question for its indices by now.
        return self._upstream.known_flavour

    async def _embed(self, wanted: _Wanted) -> None:
        async def one(semantic: Semantic) -> None:
            meta = semantic.target.meta
            embedder = await self._models.get(meta.model, meta.fingerprint)
            wanted.vectors[_key(semantic)] = (await embedder.embed([semantic.text], "query")).vectors[
                0
            ]  # (dimensions,)

        await asyncio.gather(*map(one, {_key(semantic): semantic for semantic, _ in wanted.asked}.values()))


def _key(semantic: Semantic) -> tuple[str, str]:
    """What a vector depends on."""
    return semantic.target.meta.fingerprint, semantic.text
