"""Searches that ask by meaning: their indices looked up, their texts embedded, their bodies rewritten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.gateway.incoming import Headers
from es_sbert.gateway.indices import Indices, Searched
from es_sbert.gateway.models import Models
from es_sbert.gateway.rewrite.body import rewritten_body
from es_sbert.gateway.rewrite.hybrid import Hybrid
from es_sbert.gateway.rewrite.queries import QueryRewriter, VectorOf
from es_sbert.gateway.rewrite.semantic import Reader, Semantic
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.targets import FieldNames
from es_sbert.gateway.upstream import Upstream


class Mode(StrEnum):
    """What a request's header `X-Es-Sbert` asks for."""

    OFF = "off"
    ON = "on"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class Scope:
    """Where a search looks, and for whom.

    Attributes:
        expression: Of indices, percent-encoded; empty for all.
        options: The request's parameters.
        headers: The caller's.
        mode: How it wants to be understood.
    """

    expression: str
    options: Mapping[str, str]
    headers: Headers
    mode: Mode


@dataclass(frozen=True)
class Understood:
    """A search body that was looked through.

    Attributes:
        body: In the engine's words; the very same object where nothing in it asks by meaning.
        asked: What asks by meaning in it.
        seconds: Until the vectors were there.
    """

    body: Json
    asked: tuple[Semantic, ...] = ()
    seconds: float = 0.0


@dataclass
class _Wanted:
    """What a body asks by meaning, found by a first reading, and the vectors of its texts for the second."""

    asked: list[Semantic] = field(default_factory=list)
    vectors: dict[tuple[str, str], Vectors] = field(default_factory=dict)

    def note(self, semantic: Semantic) -> Vectors:
        self.asked.append(semantic)
        return np.ones(semantic.target.meta.dimensions, np.float32)  # (dimensions,), never sent

    def look_up(self, semantic: Semantic) -> Vectors:
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
        meaning = settings.meaning
        self._marks = tuple(
            mark.encode() for mark in ("query_vector_builder", '"neural"', '"semantic"', meaning.virtual_field)
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
        searched = await self._indices.known(scope.expression, scope.options, scope.headers)
        while True:
            wanted = _Wanted()
            if not searched or self._read(body, searched, scope.mode, wanted.note) is body:
                return Understood(body)
            # The mapping is read again while the texts are embedded: an alias may stand for another index by now.
            latest, _ = await asyncio.gather(
                self._indices.now(scope.expression, scope.options, scope.headers), self._embed(wanted)
            )
            if latest == searched:
                rewritten = self._read(body, searched, scope.mode, wanted.look_up)
                return Understood(rewritten, tuple(wanted.asked), time.perf_counter() - start)
            searched = latest

    def _read(self, body: Json, searched: Searched, mode: Mode, vector_of: VectorOf) -> Json:
        names = FieldNames(searched, self._settings.meaning.virtual_field)
        reader = Reader(names, self._settings.meaning, self._settings.limits)
        hybrid = Hybrid(names, self._settings.meaning, self._settings.limits) if mode is Mode.HYBRID else None
        flavour = self._upstream.flavour or Flavour.ELASTICSEARCH
        return rewritten_body(body, QueryRewriter(flavour, reader, vector_of, hybrid))

    async def _embed(self, wanted: _Wanted) -> None:
        async def one(semantic: Semantic) -> None:
            meta = semantic.target.meta
            embedder = await self._models.get(meta.model, meta.fingerprint)
            wanted.vectors[_key(semantic)] = (await embedder.embed([semantic.text], "query")).vectors[
                0
            ]  # (dimensions,)

        await asyncio.gather(*map(one, {_key(semantic): semantic for semantic in wanted.asked}.values()))


def _key(semantic: Semantic) -> tuple[str, str]:
    """What a vector depends on."""
    return semantic.target.meta.fingerprint, semantic.text
