"""API of the search page: vector fields, facets, rewritten bodies, similar documents and a map of hits.

Every request to the engine carries the credentials of the page's user, never the gateway's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from es_sbert.encoder.embeddings import Vectors
from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import UsageError
from es_sbert.gateway.callers import credential_headers
from es_sbert.gateway.embedding.model_registry import ModelRegistry
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import FieldResolver, ResolvedField
from es_sbert.gateway.index_lookup import IndexLookup, resolve_mappings
from es_sbert.gateway.proxy.incoming_request import Headers
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, parse_object
from es_sbert.gateway.proxy.upstream import Upstream, UpstreamReply
from es_sbert.gateway.search.full_text_queries import semantic_weight
from es_sbert.gateway.search.incoming_search import RewriteContext, RewriteMode
from es_sbert.gateway.search.knn_clauses import CandidateCounts, combine_filters, knn_clause
from es_sbert.gateway.search.search_rewriter import SearchRewriter
from es_sbert.gateway.search.semantic_query import parse_query_text
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.ui.facets import choose_facets, facet_fields, survey_body
from es_sbert.gateway.ui.searchable_indices import FILTER_PATH, hidden_fields, list_searchable_indices
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.mapping import CHUNK_VECTOR, vector_path
from es_sbert.search.search_request import HIGHLIGHT_LIMITS, exclude_document, mean_direction
from es_sbert.search.vector_query import VectorQuery

MAX_DOCUMENTS = 1000
NonEmptyName = Annotated[str, Field(min_length=1, max_length=1000)]


class _PageRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Asked = TypeVar("Asked", bound=_PageRequest)


class DocumentRef(_PageRequest):
    """A document's place."""

    index: NonEmptyName
    id: NonEmptyName


class RewriteBodyRequest(_PageRequest):
    """A search as callers of the gateway write it, to be shown in the engine's words.

    Attributes:
        index: Where it searches.
        body: Of `_search`.
    """

    index: NonEmptyName
    body: dict[str, Any]


class SimilarDocumentsRequest(_PageRequest):
    """A query for documents that are near another one.

    Attributes:
        index: Where to search.
        field: The vector field.
        document: The other one, which itself is no hit.
        k: How many, a shard.
        filter: Queries that all hits must match.
    """

    index: NonEmptyName
    field: NonEmptyName
    document: DocumentRef
    k: int
    filter: tuple[dict[str, Any], ...] = ()


class HitMapRequest(_PageRequest):
    """Hits to be drawn, around what was searched for: a text or a document.

    Attributes:
        index: Through which the hits were found.
        field: The vector field.
        query: A text.
        document: A document in its place.
        hits: Their places.
    """

    index: NonEmptyName
    field: NonEmptyName
    query: str | None = None
    document: DocumentRef | None = None
    hits: tuple[DocumentRef, ...] = Field(max_length=MAX_DOCUMENTS)

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.query is None) == (self.document is None):
            raise ValueError("give query or document")
        return self


def parse_page_request(kind: type[Asked], raw: bytes) -> Asked:
    """A request's body.

    Raises:
        BadRequest: it is something else.
    """
    try:
        return kind.model_validate(parse_object(raw))
    except UnsupportedJson as error:
        raise BadRequest(f"the body is no JSON object: {error}", "Open the page anew.") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise BadRequest(
            f"{where}: {first['msg']}", "Open the page anew: the gateway may be of another version."
        ) from None


class EngineErrorReply(Exception):
    """The engine answered with an error, which goes to the page as it is.

    Attributes:
        reply: The engine's.
    """

    def __init__(self, reply: UpstreamReply) -> None:
        super().__init__(f"the engine answered {reply.status}")
        self.reply = reply


class CallerClient:
    """The engine, as one caller may use it.

    Args:
        upstream: The engine.
        headers: The caller's.
    """

    def __init__(self, upstream: Upstream, headers: Headers) -> None:
        self._upstream = upstream
        self._identity = credential_headers(headers)

    @property
    def engine_type(self) -> EngineType:
        """Of the engine; ask it something before."""
        return self._upstream.engine_type_or_default

    async def get(self, target: str) -> Json:
        """The answer to a GET.

        Raises:
            Refused: it is an error in the engine's words, or the engine wants to know who asks.
            EngineUnreachable: there is none, or it is not from an engine.
            EsSbertError: an error in no words of an engine.
        """
        return self._object(await self._upstream.ask("GET", target, self._identity), f"GET {target}")

    async def search(self, index: str, body: Json) -> Json:
        """The answer to a search; see `get`."""
        path = f"/{quote_expression(index)}/_search"
        return self._object(await self._upstream.ask("POST", path, self._identity, body), f"POST {path}")

    async def require_search_permission(self, index: str) -> None:
        """Let the engine say whether the caller may search there, before the gateway tells anything of the index.

        Raises:
            Refused, EngineUnreachable: see `get`.
        """
        await self.search(index, {"size": 0, "query": {"match_none": {}}})

    async def vectors(
        self, index: str, target: ResolvedField, documents: Iterable[DocumentRef]
    ) -> dict[DocumentRef, list[Vectors]]:
        """The vectors of documents, of each the one or those of its passages; documents without any are left out.

        Args:
            index: Through which they are read.
            target: The vector field.

        Raises:
            Refused, EngineUnreachable: see `get`.
        """
        wanted = set(documents)
        if not wanted:
            return {}
        path = vector_path(target.name, target.meta)
        places = sorted({document.index for document in wanted})
        named: list[Json] = [
            {"ids": {"values": sorted({document.id for document in wanted})}},
            {"terms": {"_index": places}},
        ]
        body: Json = {"query": {"bool": {"filter": named}}, "size": min(10_000, len(wanted) * len(places))}
        if self.engine_type is EngineType.ELASTICSEARCH:
            # From 9.2 on `_source` leaves vectors out, and older versions do not know how to ask for them.
            body |= {"_source": False, "fields": [path]}
        else:
            # A stand-in takes the place of a passage's vector unless it is named in full.
            body["_source"] = [target.name, path]
        found: dict[DocumentRef, list[Vectors]] = {}
        answer = await self.search(index, body)
        with self.reading("a search for vectors"):
            for hit in answer["hits"]["hits"]:
                document = DocumentRef(index=hit["_index"], id=hit["_id"])
                held = (hit.get("fields") or hit.get("_source") or {}).get(target.name)
                if document in wanted and held:
                    found[document] = _read_vectors(held)
        return found

    def reading(self, action: str) -> AbstractContextManager[None]:
        """Around code that reads an answer; see `Upstream.reading`."""
        return self._upstream.reading(action)

    def _object(self, reply: UpstreamReply, action: str) -> Json:
        if reply.status == 401 or (reply.status != 200 and isinstance(reply.body, dict)):
            raise EngineErrorReply(reply)
        return self._upstream.needed(reply, action)


def quote_expression(index: str) -> str:
    """An expression of indices as it stands in a path."""
    return quote(index, safe=",*")


def _read_vectors(held: Any) -> list[Vectors]:
    """What stands in a vector field, as `_source` has it or `fields`, which may wrap a vector in a list."""
    if not isinstance(held[0], dict):
        return [read_vector(held)]
    vectors = [passage[CHUNK_VECTOR] for passage in held]
    return [read_vector(vector[0] if isinstance(vector[0], list) else vector) for vector in vectors]


class PageApi:
    """Answers the page.

    Args:
        settings: The operator's.
        indices: Looks vector fields up.
        models: Their models.
        understanding: Rewrites bodies.
    """

    def __init__(
        self, settings: GatewaySettings, indices: IndexLookup, models: ModelRegistry, understanding: SearchRewriter
    ) -> None:
        self._settings = settings
        self._indices = indices
        self._models = models
        self._understanding = understanding

    async def indices(self, asking: CallerClient) -> Json:
        """The indices that can be searched, and how.

        Raises:
            Refused, EngineUnreachable: they cannot be read.
        """
        meaning = self._settings.meaning
        answer = await asking.get(f"/_all?{FILTER_PATH}")
        with asking.reading("GET /_all"):
            listed = list_searchable_indices(answer, meaning.virtual_field)
        up = self._settings.listen.own_prefix.count("/") + 1
        return {
            # From the page to the engine's API: right behind any path that a reverse proxy has put in front.
            "engine": "../" * up,
            "k": meaning.k,
            "semantic_weight": semantic_weight(meaning, asking.engine_type),
            "highlight": HIGHLIGHT_LIMITS[asking.engine_type],
            "indices": listed.indices,
            "problems": listed.problems,
        }

    async def facets(self, asking: CallerClient, index: str) -> Json:
        """What hits of an index can be narrowed down by.

        Raises:
            Refused, EngineUnreachable, IndexMismatch: it cannot be read.
        """
        answer = await asking.get(f"/{quote_expression(index)}/_mapping")
        with asking.reading("GET _mapping"):
            hidden = {
                name
                for fields in resolve_mappings(answer, self._settings.meaning.virtual_field).fields.values()
                for name in hidden_fields(fields)
            }
            fields = facet_fields((state["mappings"].get("properties", {}) for state in answer.values()), hidden)
        if not fields:
            return {"facets": []}
        found = await asking.search(index, survey_body(fields))
        with asking.reading("a survey of fields"):
            return {"facets": choose_facets(fields, found)}

    async def body(self, asking: CallerClient, headers: Headers, asked: RewriteBodyRequest, size: int) -> Json:
        """A search body as the gateway sends it to the engine, to be used anywhere.

        Args:
            size: Bytes of the request.

        Raises:
            Refused: the caller may not search there.
            EsSbertError: it asks for something that cannot be.
        """
        await asking.require_search_permission(asked.index)
        scope = RewriteContext(quote_expression(asked.index), {}, headers, RewriteMode.ON, size=size)
        return {"body": (await self._understanding.rewrite(asked.body, scope)).body}

    async def like(self, asking: CallerClient, headers: Headers, asked: SimilarDocumentsRequest) -> Json:
        """A query in the engine's words for the documents nearest to one of them.

        Raises:
            Refused: the caller may not read it.
            UsageError: it has no vector, or a k out of range.
            IndexMismatch: no such vector field.
        """
        target = await self._target(asking, headers, asked.index, asked.field)
        vector = await self._direction(asking, asked.index, target, asked.document)
        narrowed = combine_filters([exclude_document(None, asked.document.index, asked.document.id), *asked.filter])
        query = VectorQuery(
            target.name, vector, asked.k, narrowed, passages=target.meta.passages is not None, inner_hits=target.name
        )
        return {"query": knn_clause(asking.engine_type, target, query, CandidateCounts())}

    async def map(self, asking: CallerClient, headers: Headers, asked: HitMapRequest) -> Json:
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
        nearest = {document: _nearest_vector(vectors, origin) for document, vectors in found.items()}
        stacked = np.stack([origin, *(vector for vector, _ in nearest.values())])  # (1 + hits, dimensions)
        unit = stacked / np.linalg.norm(stacked, axis=1, keepdims=True)
        around, *points = project_to_plane(unit.astype(np.float32)).tolist()
        hits = [
            {"index": document.index, "id": document.id, "x": x, "y": y, "cosine": cosine}
            for (document, (_, cosine)), (x, y) in zip(nearest.items(), points, strict=True)
        ]
        return {"query": {"x": around[0], "y": around[1]}, "hits": hits}

    async def _target(self, asking: CallerClient, headers: Headers, index: str, field: str) -> ResolvedField:
        await asking.require_search_permission(index)
        virtual = self._settings.meaning.virtual_field
        names = FieldResolver(await self._indices.known(quote_expression(index), {}, headers), virtual)
        target = names.virtual(f"{virtual}.{field}")
        if target is None:
            raise UsageError(f"{index} has no vectors", "Embed its documents: es-sbert ingest --index INDEX.")
        return target

    async def _embedded(self, target: ResolvedField, text: str | None) -> Vectors:
        checked = parse_query_text(text, "the map", self._settings.limits.query_characters)
        embedder = await self._models.for_field(target.meta, target.parts[0].indices[0])
        vector: Vectors = (await embedder.embed([checked], "query")).vectors[0]  # (dimensions,)
        return vector

    async def _direction(
        self, asking: CallerClient, index: str, target: ResolvedField, document: DocumentRef
    ) -> Vectors:
        found = await asking.vectors(index, target, [document])
        if document not in found:
            raise UsageError(
                f"{document.index} has no document {document.id!r} with a vector in {target.name}",
                "Embed it first, if it is there: es-sbert ingest --index INDEX.",
            )
        return mean_direction(found[document])


def _nearest_vector(vectors: Sequence[Vectors], origin: Vectors) -> tuple[Vectors, float]:
    """Of a document's vectors the one nearest to the origin, and its cosine; all of *shape* ``(dimensions,)``."""
    stacked = np.stack(vectors)  # (vectors, dimensions)
    cosines = stacked @ origin / (np.linalg.norm(stacked, axis=1) * np.linalg.norm(origin))
    best = int(cosines.argmax())
    return stacked[best], float(np.clip(cosines[best], -1.0, 1.0))


def project_to_plane(vectors: Vectors) -> NDArray[np.float64]:
    """The two directions in which vectors differ most, by principal component analysis.

    Args:
        vectors: *Shape:* ``(points, dimensions)``.

    Returns:
        *Shape:* ``(points, 2)``, within [-1, 1], both axes in the same unit. Vectors that are all alike (or one alone)
        lie at the origin. The same vectors always give the same picture: of the two signs that each axis may have, the
        one is taken by which its greatest weight is positive.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    found = min(2, len(sizes))
    greatest = np.abs(axes[:found]).argmax(axis=1)
    signs = np.where(axes[np.arange(found), greatest] < 0, -1.0, 1.0)
    points = np.zeros((len(vectors), 2))
    points[:, :found] = left[:, :found] * sizes[:found] * signs
    extent = np.abs(points).max(initial=0.0)
    # What is left of identical vectors is rounding.
    return points / extent if extent > 1e-6 else np.zeros_like(points)
