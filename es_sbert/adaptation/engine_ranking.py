"""BM25 rankings by the engine, for many queries at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from es_sbert.batched import batched
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, without_retries
from es_sbert.index.document_sample import DocumentSelection

_SEARCHES_PER_REQUEST = 50


def rank_by_bm25(
    engine: Engine,
    selection: DocumentSelection,
    queries: Sequence[str],
    fields: Sequence[str],
    rows: Mapping[str, int],
    *,
    depth: int,
    retrying: Retrier = without_retries,
) -> NDArray[np.int64]:
    """Search for each query, and return the rows of the known documents among its top hits, best first.

    Args:
        engine: The engine of the index.
        selection: Index and filter.
        queries: The queries.
        fields: Fields to search.
        rows: Id of a known document → its row. Hits that are not in it are ignored.
        depth: Hits per search.
        retrying: Retries each request.

    Returns:
        The row of each hit, padded with −1. *Shape:* ``(queries, depth)``.

    Raises:
        EngineError: the engine failed.
    """
    ranking = np.full((len(queries), depth), -1, np.int64)
    number = 0
    for part in batched(list(queries), _SEARCHES_PER_REQUEST):
        bodies = [bm25_body(query, fields, selection.filter, depth) for query in part]
        for answer in retrying(partial(engine.multi_search, selection.index, bodies)):
            found = [rows[hit["_id"]] for hit in answer["hits"]["hits"] if hit["_id"] in rows]
            distinct = list(dict.fromkeys(found))
            ranking[number, : len(distinct)] = distinct
            number += 1
    return ranking


def bm25_body(query: str, fields: Sequence[str], filter: Json | None, size: int) -> Json:
    """Build the body of a lexical search without `_source`."""
    matches: Json = {"multi_match": {"query": query, "fields": list(fields)}}
    restricted: Json = {"bool": {"must": [matches], **({} if filter is None else {"filter": [filter]})}}
    return {"query": restricted, "size": size, "_source": False, "track_total_hits": False}
