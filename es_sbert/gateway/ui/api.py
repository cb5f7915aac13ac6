"""What the page asks that no engine can tell: vectors' fields and texts, bodies in the engine's words, a map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.indices import Indices, read_indices
from es_sbert.gateway.rewrite.clauses import all_of, nearest
from es_sbert.gateway.rewrite.depths import Depths
from es_sbert.gateway.rewrite.hybrid import semantic_weight
from es_sbert.gateway.rewrite.texts import read_text
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.targets import FieldNames, FieldTarget
from es_sbert.gateway.ui.asking import Asking, expression
from es_sbert.gateway.ui.catalogue import WANTED, catalogue, hidden_fields
from es_sbert.gateway.ui.facets import facet_fields, facets, survey
from es_sbert.gateway.ui.projection import project
from es_sbert.gateway.ui.requests import BodyRequest, Document, LikeRequest, MapRequest
from es_sbert.gateway.wire.incoming import Headers
from es_sbert.search.like import mean_direction, without
from es_sbert.search.page import MARKED_CHARACTERS
from es_sbert.search.vector_query import VectorQuery


class PageApi:
    """Answers the page.

    Args:
        settings: The operator's.
        indices: Looks vector fields up.
        models: Their models.
        understanding: Rewrites bodies.
    """

    def __init__(
        self, settings: GatewaySettings, indices: Indices, models: Models, understanding: Understanding
    ) -> None:
        self._settings = settings
        self._indices = indices
        self._models = models
        self._understanding = understanding

    async def indices(self, asking: Asking) -> Json:
        """The indices that can be searched, and how.

        Raises:
            Refused, EngineUnreachable: they cannot be read.
        """
        meaning = self._settings.meaning
        answer = await asking.get(f"/_all?{WANTED}")
        with asking.reading("GET /_all"):
            listed = catalogue(answer, meaning.virtual_field)
        up = self._settings.listen.own_prefix.count("/") + 1
        return {
            # From the page to the engine's API: right behind any path that a reverse proxy has put in front.
            "engine": "../" * up,
            "k": meaning.k,
            "semantic_weight": semantic_weight(meaning, asking.flavour),
            "highlight": MARKED_CHARACTERS[asking.flavour],
            "indices": listed.indices,
            "problems": listed.problems,
        }

    async def facets(self, asking: Asking, index: str) -> Json:
        """What hits of an index can be narrowed down by.

        Raises:
            Refused, EngineUnreachable, IndexMismatch: it cannot be read.
        """
        answer = await asking.get(f"/{expression(index)}/_mapping")
        with asking.reading("GET _mapping"):
            hidden = {
                name
                for fields in read_indices(answer, self._settings.meaning.virtual_field).fields.values()
                for name in hidden_fields(fields)
            }
            fields = facet_fields((state["mappings"].get("properties", {}) for state in answer.values()), hidden)
        if not fields:
            return {"facets": []}
        found = await asking.search(index, survey(fields))
        with asking.reading("a survey of fields"):
            return {"facets": facets(fields, found)}

    async def body(self, asking: Asking, headers: Headers, asked: BodyRequest, size: int) -> Json:
        """A search body as the gateway sends it to the engine, to be used anywhere.

        Args:
            size: Bytes of the request.

        Raises:
            Refused: the caller may not search there.
            EsSbertError: it asks for something that cannot be.
        """
        await asking.may_search(asked.index)
        scope = Scope(expression(asked.index), {}, headers, Mode.ON, size=size)
        return {"body": (await self._understanding.rewrite(asked.body, scope)).body}

    async def like(self, asking: Asking, headers: Headers, asked: LikeRequest) -> Json:
        """A query in the engine's words for the documents nearest to one of them.

        Raises:
            Refused: the caller may not read it.
            UsageError: it has no vector, or a k out of range.
            IndexMismatch: no such vector field.
        """
        target = await self._target(asking, headers, asked.index, asked.field)
        vector = await self._direction(asking, asked.index, target, asked.document)
        narrowed = all_of([without(None, asked.document.index, asked.document.id), *asked.filter])
        query = VectorQuery(
            target.name, vector, asked.k, narrowed, passages=target.meta.passages is not None, inner_hits=target.name
        )
        return {"query": nearest(asking.flavour, target, query, Depths())}

    async def map(self, asking: Asking, headers: Headers, asked: MapRequest) -> Json:
        """Hits and what was searched for as points of a plane, each hit with its cosine.

        Raises:
            Refused: the caller may not read them.
            UsageError: an empty or too long text, or a document without a vector.
            IndexMismatch: no such vector field.
        """
        target = await self._target(asking, headers, asked.index, asked.field)
        if asked.document is None:
            origin = await self._embedded(target, asked.query)
        else:
            origin = await self._direction(asking, asked.index, target, asked.document)
        found = await asking.vectors(asked.index, target, asked.hits)
        nearest = {document: _nearest(vectors, origin) for document, vectors in found.items()}
        stacked = np.stack([origin, *(vector for vector, _ in nearest.values())])  # (1 + hits, dimensions)
        unit = stacked / np.linalg.norm(stacked, axis=1, keepdims=True)
        around, *points = project(unit.astype(np.float32)).tolist()
        hits = [
            {"index": document.index, "id": document.id, "x": x, "y": y, "cosine": cosine}
            for (document, (_, cosine)), (x, y) in zip(nearest.items(), points, strict=True)
        ]
        return {"query": {"x": around[0], "y": around[1]}, "hits": hits}

    async def _target(self, asking: Asking, headers: Headers, index: str, field: str) -> FieldTarget:
        await asking.may_search(index)
        virtual = self._settings.meaning.virtual_field
        names = FieldNames(await self._indices.known(expression(index), {}, headers), virtual)
        target = names.virtual(f"{virtual}.{field}")
        if target is None:
            raise UsageError(f"{index} has no vectors", "Embed its documents: es-sbert ingest --index INDEX.")
        return target

    async def _embedded(self, target: FieldTarget, text: str | None) -> Vectors:
        checked = read_text(text, "the map", self._settings.limits.query_characters)
        embedder = await self._models.of_field(target.meta, target.parts[0].indices[0])
        vector: Vectors = (await embedder.embed([checked], "query")).vectors[0]  # (dimensions,)
        return vector

    async def _direction(self, asking: Asking, index: str, target: FieldTarget, document: Document) -> Vectors:
        found = await asking.vectors(index, target, [document])
        if document not in found:
            raise UsageError(
                f"{document.index} has no document {document.id!r} with a vector in {target.name}",
                "Embed it first, if it is there: es-sbert ingest --index INDEX.",
            )
        return mean_direction(found[document])


def _nearest(vectors: Sequence[Vectors], origin: Vectors) -> tuple[Vectors, float]:
    """Of a document's vectors the one nearest to the origin, and its cosine; all of *shape* ``(dimensions,)``."""
    stacked = np.stack(vectors)  # (vectors, dimensions)
    cosines = stacked @ origin / (np.linalg.norm(stacked, axis=1) * np.linalg.norm(origin))
    best = int(cosines.argmax())
    return stacked[best], float(np.clip(cosines[best], -1.0, 1.0))
