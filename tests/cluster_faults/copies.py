"""Every copy of every shard against what the index must hold, document by document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import read_vector
from tests.cluster import Cluster

MIN_COSINE = 0.99999  # of different texts, the tiny models make vectors with cosines up to 0.9995
_MOST_DOCUMENTS = 10_000  # of a shard: what one search may return


@dataclass(frozen=True)
class Expected:
    """What an index must hold.

    Attributes:
        documents: id → fields, without those of the vector.
        encoder: Makes the vectors.
        without_vector: Ids of documents whose vector is not compared, because they may have none.
    """

    documents: Mapping[str, Json]
    encoder: Encoder
    without_vector: Set[str] = frozenset()


@dataclass
class Comparison:
    """Documents that are wrong on at least one copy.

    Attributes:
        copies: Copies of shards that were compared.
        documents: Found on the primaries.
        lost: They are not there, or have no vector or no metadata of it.
        doubled: They are there twice, or should not be there.
        stale: Their vector is not that of the text that they have.
        wrong: Their text or another field is not as it was written.
        unequal: Their last write is another one on the primary than on a replica.
        examples: Some of them, with the reason.
    """

    copies: int = 0
    documents: int = 0
    lost: set[str] = field(default_factory=set)
    doubled: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    unequal: set[str] = field(default_factory=set)
    examples: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.stale or self.wrong or self.unequal)

    def note(self, kind: set[str], document_id: str, reason: str) -> None:
        """Count a document."""
        kind.add(document_id)
        if len(self.examples) < 20:
            self.examples.append(f"{document_id}: {reason}")


def compare_copies(cluster: Cluster, engine: Engine, index: str, expected: Expected) -> Comparison:
    """Compare an index, of which every shard must have a replica, with what it must hold."""
    engine.refresh(index)
    result = Comparison()
    rows = cluster.call(f"/_cat/shards/{quote(index)}?format=json&h=shard,prirep,state,id,node")
    primaries = [(row["shard"], row["id"], row["node"]) for row in rows if row["prirep"] == "p"]
    replicas = [(row["shard"], row["id"], row["node"]) for row in rows if row["prirep"] == "r"]
    assert all(row["state"] == "STARTED" for row in rows), rows
    assert {shard for shard, *_ in primaries} == {shard for shard, *_ in replicas}, rows
    result.copies = len(rows)
    read = {place: _documents(cluster, engine, index, *place[:2]) for place in (*primaries, *replicas)}
    texts = {hit["_source"].get("text") for hits in read.values() for hit in hits}
    known = sorted(text for text in texts if isinstance(text, str))
    vectors = dict(zip(known, expected.encoder.encode(known, "document"), strict=True)) if known else {}
    for copies in (primaries, _one_replica_each(replicas)):
        hits = [(place, hit) for place in copies for hit in read[place]]
        compare_hits(hits, expected, vectors, result)
    result.documents = sum(len(read[place]) for place in primaries)
    writes = {hit["_id"]: _last_write(hit) for place in primaries for hit in read[place]}
    for place in replicas:
        for hit in read[place]:
            if writes.get(hit["_id"]) != _last_write(hit):
                result.note(result.unequal, hit["_id"], f"primary {writes.get(hit['_id'])}, {place} {_last_write(hit)}")
    return result


def _one_replica_each(replicas: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return list({shard: (shard, node, name) for shard, node, name in replicas}.values())


def _last_write(hit: Json) -> tuple[int, int]:
    return hit["_seq_no"], hit["_primary_term"]


def _documents(cluster: Cluster, engine: Engine, index: str, shard: str, node: str) -> list[Json]:
    """What one copy of a shard holds."""
    preference = quote(f"_shards:{shard}|_only_nodes:{node}", safe="")
    body = {
        "size": _MOST_DOCUMENTS,
        "query": {"match_all": {}},
        "_source": engine.hit_source(["*"], vectors=True),
        "seq_no_primary_term": True,
        "track_total_hits": True,
    }
    answer = cluster.call(f"/{quote(index)}/_search?preference={preference}", "POST", body)
    assert answer["_shards"]["failed"] == 0, answer["_shards"]
    hits: list[Json] = answer["hits"]["hits"]
    assert len(hits) == answer["hits"]["total"]["value"]
    return hits


def compare_hits(
    hits: list[tuple[Any, Json]], expected: Expected, vectors: Mapping[str, Any], result: Comparison
) -> None:
    """Compare the documents of one copy of each shard.

    Args:
        hits: With the place where each was found.
        vectors: Text → the vector of it.
    """
    field, meta = DEFAULT_VECTOR_FIELD, f"{DEFAULT_VECTOR_FIELD}_meta"
    counts = Counter(hit["_id"] for _, hit in hits)
    for document_id in expected.documents.keys() - counts.keys():
        result.note(result.lost, document_id, "is missing")
    for place, hit in hits:
        document_id, source = hit["_id"], hit["_source"]
        wanted = expected.documents.get(document_id)
        if wanted is None or counts[document_id] > 1:
            result.note(result.doubled, document_id, f"is there {counts[document_id]} times, on {place}: {source}")
            continue
        found = {name: value for name, value in source.items() if name not in (field, meta)}
        if found != wanted:
            result.note(result.wrong, document_id, f"is {found} on {place}, not {wanted}")
        if document_id in expected.without_vector:
            continue
        if (
            source.get(field) is None
            or (source.get(meta) or {}).get("fingerprint") != expected.encoder.info.fingerprint
        ):
            result.note(result.lost, document_id, f"has no vector or metadata on {place}: {source}")
        elif not _is_same(read_vector(source[field]), vectors.get(source.get("text"))):
            result.note(result.stale, document_id, f"has the vector of another text on {place}: {source}")


def _is_same(found: Any, wanted: Any) -> bool:
    if wanted is None:
        return False
    lengths = np.linalg.norm(found) * np.linalg.norm(wanted)
    return bool(found @ wanted >= MIN_COSINE * lengths)
