"""Get documents by id across all routings, in batches, with a search instead of `_mget`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.rest import Json

# Documents with the same id but different routings are in different shards; an index has at most this many.
_MAX_SHARDS = 1024


def multi_get(
    engine: Engine,
    name: str,
    ids: Iterable[str],
    *,
    query: Json | None = None,
    source: Json | bool = False,
    shards: bool = False,
    result_window: int | None = None,
    hit_fields: Sequence[str] = (),
    extra: Json | None = None,
) -> dict[DocumentKey, Json]:
    """Read the documents with these ids as of the last refresh, by id and routing, with `_seq_no` and `_primary_term`.

    Args:
        name: Index or alias.
        ids: Ids of the documents; if a search cannot return that many, each half is requested separately.
        query: Return only documents that match it.
        source: The part of `_source` to return.
        shards: Return the `_shard` of each document.
        result_window: The index's `index.max_result_window`; None to read it from the index.
        hit_fields: Members of a hit to return in addition to `_id` and `_routing`; empty for all.
        extra: Further members of the search body.

    Raises:
        EngineError: the engine failed.
    """
    window = engine.result_window(name) if result_window is None else result_window
    members = ["_id", "_routing", *hit_fields] if hit_fields else []

    def find(wanted: Sequence[str]) -> dict[DocumentKey, Json]:
        body: Json = {
            "query": {"bool": {"must": query or {"match_all": {}}, "filter": {"ids": {"values": wanted}}}},
            "_source": source,
            "seq_no_primary_term": True,
            "explain": shards,  # the only way to get the shard
            "size": min(len(wanted) + _MAX_SHARDS, window),
            "track_total_hits": False,
            **(extra or {}),
        }
        # If there are no hits, `filter_path` leaves out `hits` as well.
        hits: list[Json] = engine.search(name, body, hit_fields=members).get("hits", {}).get("hits", [])
        if len(hits) < body["size"] or len(wanted) == 1:
            return {document_key(hit): hit for hit in hits}
        half = len(wanted) // 2
        return find(wanted[:half]) | find(wanted[half:])

    return find(list(dict.fromkeys(ids)))
