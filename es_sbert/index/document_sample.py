"""Read all documents of an index that match a query, or a random sample of them, determined by a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, without_retries
from es_sbert.index.mapping import random_order_query
from es_sbert.index.vector_field import require_index

_PAGE = 500
# From a large index, the engine returns only a random part. That part is larger than the sample by this factor and by
# this many standard deviations of a binomial distribution, so that it is practically never too small.
_SURPLUS = 1.2
_DEVIATIONS = 8


@dataclass(frozen=True)
class DocumentSelection:
    """Documents of an index.

    Attributes:
        index: Index, or alias of one. An alias with a filter selects only the documents that match the filter.
        filter: Query that every document must match; None for all.
        sample: Maximum number of documents, drawn at random; None for all.
        seed: Seed of the sample. A document is drawn by a hash of the seed and its id, so the sample of an index is the
            same on every machine and changes little when documents are added.
    """

    index: str
    filter: Json | None = None
    sample: int | None = None
    seed: int = 0


class SampledDocument(NamedTuple):
    """A document that was read.

    Attributes:
        key: Id and routing of the document; the routing is None if it has no custom one.
        source: The requested fields.
    """

    key: DocumentKey
    source: Json


def read_documents(
    engine: Engine,
    selection: DocumentSelection,
    fields: Sequence[str],
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    retrying: Retrier = without_retries,
) -> list[SampledDocument]:
    """Read documents shard by shard, each from a point in time (see `scan_index`).

    Args:
        engine: The engine with the index.
        selection: The documents to read.
        fields: The fields of `_source` to read, at least one.
        on_progress: Called with the number of documents read so far and the approximate total.
        retrying: Retries each request.

    Returns:
        The documents in the order of their hashes, so that the first documents of the list are a random sample too.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the name is an alias of several indices, or the index was replaced while it was read.
        EngineError: the engine failed.
    """
    state = retrying(lambda: require_index(engine, selection.index))
    total = retrying(lambda: engine.count(selection.index, selection.filter))
    query = selection.filter or {"match_all": {}}
    if selection.sample is not None:
        wanted = selection.sample * _SURPLUS + _DEVIATIONS * math.sqrt(selection.sample)
        if wanted < total:
            query = random_order_query(query, selection.seed)
            query["function_score"]["min_score"] = 1 - wanted / total
            total = math.ceil(wanted)
    found: dict[DocumentKey, Json] = {}
    for page in scan_index(
        engine,
        selection.index,
        query=query,
        source_includes=fields,
        page=min(_PAGE, state.result_window),
        retrying=retrying,
    ):
        # A document that was written again while a node was lost appears twice; the later version counts.
        found |= {document_key(hit): hit.get("_source") or {} for hit in page.hits}
        on_progress(len(found), max(len(found), total))
    ordered = sorted(found, key=lambda key: draw_order(key, selection.seed))
    return [SampledDocument(key, found[key]) for key in ordered[: selection.sample]]


def random_hits(
    engine: Engine,
    index: str,
    query: Json,
    count: int,
    *,
    source: Json | bool,
    extra: Json | None = None,
    page: int = _PAGE,
) -> Iterator[Json]:
    """Read hits of a query in random order, without duplicates.

    The hits are the same as long as the index does not change.

    Args:
        count: Maximum number of hits; no more than the index's `index.max_result_window`.
        source: `_source` of the search.
        extra: Further members of its body.
        page: Number of hits per request.

    Raises:
        EngineError: the engine failed.
    """
    body: Json = {"query": random_order_query(query, seed=0), "_source": source, **(extra or {})}
    # While the index is being written to, a document may appear on two pages.
    seen: set[DocumentKey] = set()
    for begin in range(0, count, page):
        size = min(page, count - begin)
        hits: list[Json] = engine.search(index, body | {"from": begin, "size": size})["hits"]["hits"]
        for hit in hits:
            if document_key(hit) not in seen:
                seen.add(document_key(hit))
                yield hit
        if len(hits) < size:
            return


def draw_order(key: DocumentKey, seed: int) -> bytes:
    """The rank of a document in the sample of a seed; ranks of different seeds are independent."""
    identifier, routing = key
    return hashlib.sha256(f"{seed}\0{identifier}\0{routing or ''}".encode("utf-8", "surrogatepass")).digest()
