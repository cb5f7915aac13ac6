"""Find the vector fields of indices on remote clusters (`far:docs`), with the caller's credentials only.

No engine returns mappings across clusters. What a search needs is in other responses, which each engine gives to
callers who may search the remote indices:

- the vector fields, and whether they hold chunks: field capabilities
- the model: the fingerprint that every document carries (`embedding_meta.fingerprint`)
- on OpenSearch, whether a field has a graph: the error for a query vector of a wrong length

If something cannot be found out, the result is a `RemoteRefusal`. A cluster that does not respond must not look like
one without vectors, because the response to the search would then silently lack its documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlencode

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json, is_remote_name
from es_sbert.errors import AccessDenied, EngineUnreachable, EsSbertError, IndexMismatch, IndexMissing
from es_sbert.gateway.concurrency import gather_or_cancel
from es_sbert.gateway.proxy.incoming_request import Headers, credential_headers
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.index.mapping import (
    CHUNK_VECTOR,
    META_KEY,
    VECTOR_TYPES,
    ChunkRules,
    IndexType,
    VectorFieldMeta,
    document_meta_field,
)

# Any number above one will do: hits of several shards are cut off at the k-th.
_SEVERAL_SHARDS = 2
# No field has this name.
_UNMAPPED = f"{META_KEY}_unmapped"
# Placeholder for the rules of chunks: only their existence is known.
_SOME_CHUNKS = ChunkRules(tokens=1, overlap=0)
_FINGERPRINT = f"{document_meta_field('')}.fingerprint"
_MAPPED = ("indices", "failures", "fields.{0}*", "fields.*.dense_vector", "fields.*.knn_vector", "fields.*.nested",
           "fields.*fingerprint.keyword")  # fmt: skip


@dataclass(frozen=True)
class RemoteRefusal:
    """The reason why the vector fields of remote indices are unknown, so that semantic queries are refused.

    Attributes:
        kind: Class of the error, which decides the status of the response.
    """

    message: str
    remedy: str
    kind: type[EsSbertError] = IndexMismatch

    def error(self, name: str) -> EsSbertError:
        """The error for a query on the field of this name."""
        return self.kind(f"{name} cannot be used: {self.message}", self.remedy)


@dataclass(frozen=True)
class RemoteIndices:
    """The remote indices of an expression.

    Attributes:
        names: Concrete names, `CLUSTER:INDEX`.
        fields: Name → its vector fields by name; only indices that have any.
        ordinary: Whether the virtual field's name is an ordinary field in one of them.
        refusal: Reason why the vector fields are unknown.
        no_cluster: Whether the expression is a pattern that matches no remote cluster. Engines then search all local
            indices, unless others are named.
    """

    names: frozenset[str] = frozenset()
    fields: dict[str, dict[str, VectorFieldMeta]] = field(default_factory=dict)
    ordinary: bool = False
    refusal: RemoteRefusal | None = None
    no_cluster: bool = False

    @property
    def shards(self) -> dict[str, int]:
        """Name → number of primary shards, as far as it matters: one or several."""
        return dict.fromkeys(self.fields, _SEVERAL_SHARDS)


@dataclass(frozen=True)
class RemoteVectorField:
    """A vector field of remote indices.

    Attributes:
        plain: The indices where documents have one vector.
        chunked: The indices where documents have one vector per chunk.
    """

    name: str
    plain: frozenset[str]
    chunked: frozenset[str]

    @property
    def fingerprint_field(self) -> str:
        return f"{self.name}{_FINGERPRINT}"

    def vectors_query(self, plain: Json, chunked: Json) -> Json:
        """Combine a query for each of the two kinds of indices into a query for documents with matching vectors."""
        nested = {"nested": {"path": self.name, "query": chunked}}
        should = [
            {"bool": {"filter": [{"terms": {"_index": sorted(indices)}}, query]}}
            for indices, query in ((self.plain, plain), (self.chunked, nested))
            if indices
        ]
        return {"bool": {"should": should, "minimum_should_match": 1}}


def split_remote(expression: str) -> tuple[str | None, str | None]:
    """Split an expression into its local and its remote indices; None for a part without any.

    Args:
        expression: Percent-encoded; empty for all local indices.
    """
    names = expression.split(",")
    remote = [name for name in names if is_remote_name(unquote(name))]
    local = [name for name in names if not is_remote_name(unquote(name))]
    if all(name.startswith("-") for name in remote):
        remote = []  # exclusions alone select nothing
    return ",".join(local) if local else None, ",".join(remote) if remote else None


class RemoteLookup:
    """Finds the vector fields of remote indices.

    Args:
        upstream: The engine that connects to the remote clusters.
        virtual_field: Name that may be an ordinary field in a remote index.
    """

    def __init__(self, upstream: Upstream, virtual_field: str) -> None:
        self._upstream = upstream
        self._virtual = virtual_field

    async def resolve(self, parts: Sequence[str], options: Mapping[str, str], headers: Headers) -> RemoteIndices:
        """Look up the remote indices of an expression and their vector fields.

        Args:
            parts: The expression, percent-encoded, in parts that fit into the path of a request.
            options: Parameters that change how the expression is resolved.
            headers: The caller's headers.

        Raises:
            EngineUnreachable: the engine itself did not respond.
        """
        found = await gather_or_cancel(self._resolve(part, options, credential_headers(headers)) for part in parts)
        return RemoteIndices(
            frozenset(chain.from_iterable(each.names for each in found)),
            {index: fields for each in found for index, fields in each.fields.items()},
            any(each.ordinary for each in found),
            next((each.refusal for each in found if each.refusal is not None), None),
            all(each.no_cluster for each in found),
        )

    async def _resolve(self, part: str, options: Mapping[str, str], credentials: Headers) -> RemoteIndices:
        shown = unquote(part)
        filter_path = ",".join(_MAPPED).format(self._virtual)
        query = {**options, "fields": "*", "include_unmapped": "true", "filter_path": filter_path}
        reply = await self._upstream.request("GET", f"/{part}/_field_caps?{urlencode(query)}", credentials)
        if reply.status in (400, 401):
            return RemoteIndices()  # the engine rejects the search, too
        if reply.status != 200:
            return RemoteIndices(refusal=_refusal_of_status(shown, reply.status, reply.body))
        with self._upstream.parsing("GET /_field_caps"):
            capabilities, names = reply.body.get("fields", {}), frozenset(reply.body.get("indices", ()))
            if names and not any(map(is_remote_name, names)):
                return RemoteIndices(no_cluster=True)
            if reply.body.get("failures"):
                return RemoteIndices(names, refusal=_incomplete(shown, reply.body["failures"]))
            fields = remote_vector_fields(capabilities, names, VECTOR_TYPES[self._upstream.engine_type_or_default])
            ordinary = any(name == self._virtual or name.startswith(f"{self._virtual}.") for name in capabilities)
        target = f"/{part}/_search?{urlencode(options)}"
        models = await self._models(target, shown, fields, credentials)
        if isinstance(models, RemoteRefusal):
            return RemoteIndices(names, ordinary=ordinary, refusal=models)
        if names and not await self._understands_knn(target, credentials):
            return RemoteIndices(names, ordinary=ordinary, refusal=_foreign_knn(shown))
        graphs = await self._indices_with_graph(target, fields, credentials)
        by_index: dict[str, dict[str, VectorFieldMeta]] = {}
        for each in fields:
            if each.name in models:
                for index in each.plain | each.chunked:
                    by_index.setdefault(index, {})[each.name] = self._meta(each, index, models[each.name], graphs)
        return RemoteIndices(names, by_index, ordinary)

    def _meta(self, field: RemoteVectorField, index: str, fingerprint: str, graphs: frozenset[str]) -> VectorFieldMeta:
        """Return the metadata that a search needs. Its index type is one of those that share the same query."""
        if self._upstream.engine_type_or_default is EngineType.ELASTICSEARCH:
            # Oversampling for the coarsest type suits all types, and has no effect on those that are not quantized.
            index_type = IndexType.BBQ_HNSW
        else:
            # A kNN query fails on a field without a graph. A script searches any field, but compares all its vectors.
            index_type = IndexType.INT8_HNSW if index in graphs else IndexType.FLAT
        chunks = _SOME_CHUNKS if index in field.chunked else None
        return VectorFieldMeta(fingerprint=fingerprint, model="", dimensions=0, index_type=index_type, passages=chunks)

    async def _models(
        self, target: str, shown: str, fields: Sequence[RemoteVectorField], credentials: Headers
    ) -> dict[str, str] | RemoteRefusal:
        """Look up the fingerprint of each field's model, by a search. Fields that no document has are left out.

        The search also shows whether all clusters respond: OpenSearch leaves those that do not out of the field
        capabilities.
        """
        aggregations: Json = {}
        for number, each in enumerate(fields):
            any_vector = each.vectors_query(
                {"exists": {"field": each.name}}, {"exists": {"field": f"{each.name}.{CHUNK_VECTOR}"}}
            )
            unmarked = {"filter": [any_vector], "must_not": [{"exists": {"field": each.fingerprint_field}}]}
            aggregations[f"models-{number}"] = {"terms": {"field": each.fingerprint_field, "size": 2}}
            aggregations[f"unmarked-{number}"] = {"filter": {"bool": unmarked}}
        body = {"size": 0, "track_total_hits": False, "aggs": aggregations}
        reply = await self._upstream.search(target, credentials, body)
        if reply.status != 200:
            return _refusal_of_status(shown, reply.status, reply.body)
        with self._upstream.parsing("POST /_search"):
            if is_incomplete(reply.body):
                return _incomplete(shown, reply.body)
            models: dict[str, str] = {}
            for number, each in enumerate(fields):
                fingerprints = [bucket["key"] for bucket in reply.body["aggregations"][f"models-{number}"]["buckets"]]
                if len(fingerprints) > 1:
                    return RemoteRefusal(
                        f"{each.name} holds vectors of several models in {shown}",
                        "Search the remote indices separately, or migrate them to one model: "
                        "es-sbert index migrate INDEX --model MODEL.",
                    )
                if reply.body["aggregations"][f"unmarked-{number}"]["doc_count"]:
                    return RemoteRefusal(
                        f"{shown} has documents that do not record the model of their vector in {each.name}",
                        "Load them with es-sbert ingest, or send the search to a gateway of the remote cluster.",
                    )
                if fingerprints:
                    models[each.name] = fingerprints[0]
        return models

    async def _understands_knn(self, target: str, credentials: Headers) -> bool:
        """Whether the remote clusters understand a kNN query. OpenSearch 2 and 3 write it differently.

        If a cluster does not understand it, the response lacks its documents, whichever indices the query is for.
        """
        if self._upstream.engine_type_or_default is not EngineType.OPENSEARCH:
            return True
        body = {"size": 0, "query": {"knn": {_UNMAPPED: {"vector": [1.0], "k": 1, "ignore_unmapped": True}}}}
        reply = await self._upstream.search(target, credentials, body)
        with self._upstream.parsing("POST /_search"):
            return reply.status == 200 and not is_incomplete(reply.body)

    async def _indices_with_graph(
        self, target: str, fields: Sequence[RemoteVectorField], credentials: Headers
    ) -> frozenset[str]:
        """The indices in which a kNN query is known to work, on OpenSearch."""
        if self._upstream.engine_type_or_default is not EngineType.OPENSEARCH:
            return frozenset()
        bodies = [
            {"size": 0, "query": each.vectors_query(_short_knn(each.name), _short_knn(f"{each.name}.{CHUNK_VECTOR}"))}
            for each in fields
        ]
        replies = await gather_or_cancel(self._upstream.search(target, credentials, body) for body in bodies)
        with self._upstream.parsing("POST /_search"):
            return frozenset(chain.from_iterable(_with_dimension_error(reply.body) for reply in replies))


def remote_vector_fields(capabilities: Json, names: frozenset[str], vector_type: str) -> list[RemoteVectorField]:
    """The vector fields that es-sbert fills, sorted by name.

    Args:
        capabilities: `fields` of a response to `_field_caps`.
        names: The indices of that response.
        vector_type: The engine's type of vector fields.
    """

    def indices(field: str, field_type: str) -> frozenset[str]:
        entry = capabilities.get(field, {}).get(field_type)
        # The engine leaves out the list of indices if all have the field.
        return frozenset() if entry is None else frozenset(entry.get("indices") or names)

    fields = []
    for mapped in sorted(capabilities):
        name = mapped.removesuffix(_FINGERPRINT)
        keyword_indices = indices(mapped, "keyword") if name != mapped else frozenset()
        plain = keyword_indices & indices(name, vector_type)
        chunked = keyword_indices & indices(name, "nested") & indices(f"{name}.{CHUNK_VECTOR}", vector_type)
        if plain or chunked:
            fields.append(RemoteVectorField(name, plain, chunked))
    return fields


def is_incomplete(answer: Json) -> bool:
    """Whether a response to a search lacks shards or clusters."""
    shards = answer["_shards"]
    # OpenSearch does not count a shard without an active copy as failed.
    return lacks_clusters(answer) or answer["timed_out"] or shards["successful"] < shards["total"]


def lacks_clusters(answer: Json) -> bool:
    """Whether a response to a search lacks a remote cluster or a part of one."""
    clusters = answer.get("_clusters", {})
    return any(clusters.get(state) for state in ("skipped", "partial", "failed", "running"))


def _short_knn(path: str) -> Json:
    """Return a query that fails on every shard: because of the vector's length if the field has a graph, else because
    of the field.
    """
    return {"knn": {path: {"vector": [1.0], "k": 1}}}


def _with_dimension_error(body: Any) -> list[str]:
    error = body.get("error", {})
    failures = error.get("failed_shards") or body.get("_shards", {}).get("failures", [])
    return [each["index"] for each in failures if "dimension" in str(each["reason"].get("reason"))]


def _refusal_of_status(shown: str, status: int, body: Any) -> RemoteRefusal:
    if status == 404:
        return RemoteRefusal(
            f"{shown} names a remote cluster or index that does not exist",
            "Check the names (`GET _remote/info`), or search with ignore_unavailable=true.",
            IndexMissing,
        )
    if status == 403:
        return RemoteRefusal(
            f"the caller may not read the field capabilities of {shown}, or may not search it",
            "Grant the caller the privilege read on the remote indices, in both clusters.",
            AccessDenied,
        )
    return _incomplete(shown, body)


def _incomplete(shown: str, response: Any) -> RemoteRefusal:
    reason = next(iter(_error_types(response)), None)
    return RemoteRefusal(
        f"not all remote indices of {shown} can be searched" + ("" if reason is None else f" ({reason})"),
        "Check that they exist and that their cluster is connected (`GET _remote/info`), or leave them out.",
        EngineUnreachable,
    )


def _error_types(value: Any) -> Iterable[str]:
    """Types of the errors in a response, outermost first."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and "reason" in value:
            yield value["type"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _error_types(each)


def _foreign_knn(shown: str) -> RemoteRefusal:
    return RemoteRefusal(
        f"not all indices of {shown} can be searched: OpenSearch 2 and 3 do not understand each other's kNN queries",
        "Upgrade the cluster with OpenSearch 2, or send the search to a gateway of the remote cluster.",
    )
