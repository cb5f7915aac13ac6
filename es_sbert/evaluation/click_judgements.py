"""Derive judgements from clicks: find documents that users opened more often than their positions explain.

Users open the first hits more often than later ones, even if these are equally relevant. The grade therefore depends on
clicks over expected clicks (COEC; Zhang and Jones 2007, "Comparing click logs and editorial labels for training query
rewriting"): the clicks on a document in searches of one query, divided by the clicks that the average document at its
position gets in as many searches. The log does not record which hits were shown. A document therefore counts as shown
in every search of the query, at the positions where it was opened; this is right as long as the index and the model do
not change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from es_sbert.batched import batched
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, IndexMissing, SourceError
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import read_vector_field
from es_sbert.io.text_formats import format_csv_line
from es_sbert.messages import pluralize

MIN_SEARCHES, MIN_CLICKS = 5, 2
# Grades with their lowest COEC.
_GRADES = ((3, 2.0), (2, 1.0), (1, 0.0))
_TRAINING_GRADE = 2
_IDS_PER_REQUEST = 500


@dataclass(frozen=True)
class Click:
    """A document that was opened.

    Attributes:
        search_id: Id of the search that returned the document.
        document: Id of the document.
        position: Position among the hits, from 1.
    """

    search_id: str
    document: str
    position: int


@dataclass(frozen=True)
class ClickLog:
    """The contents of a gateway's logs.

    Attributes:
        searches: Id → text of the query.
        clicks: Clicks on hits of these and other searches.
        without_text: Number of searches whose text is not in the log.
    """

    searches: Mapping[str, str]
    clicks: Sequence[Click]
    without_text: int = 0


@dataclass(frozen=True)
class ClickJudgement:
    """A judgement of a document for a query.

    Attributes:
        query: The text of the query in its most frequent spelling.
        document: Id of the document.
        clicks: Number of searches of the query in which the document was opened.
        searches: Number of searches of the query.
        expected: Clicks that the average document at its positions gets in as many searches.
    """

    query: str
    document: str
    clicks: int
    searches: int
    expected: float

    @property
    def ratio(self) -> float:
        """Clicks over expected clicks."""
        return self.clicks / self.expected

    @property
    def grade(self) -> int:
        """1: opened less often than expected; 2: at least as often; 3: at least twice as often."""
        return next(grade for grade, least in _GRADES if self.ratio >= least)


def click_judgements(
    log: ClickLog, *, min_searches: int = MIN_SEARCHES, min_clicks: int = MIN_CLICKS
) -> list[ClickJudgement]:
    """Judge the documents that were opened; sort by query, then with the highest ratio first.

    Queries that differ only in case and white space count as one. Clicks of unknown searches are ignored.

    Args:
        log: Searches and clicks.
        min_searches: Minimum number of searches of a query; queries with fewer are left out.
        min_clicks: Minimum number of searches in which a document was opened.
    """
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    for text in log.searches.values():
        texts[_normalize(text)][text] += 1
    searches = {query: sum(counts.values()) for query, counts in texts.items()}
    at_position: Counter[int] = Counter()
    positions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for click in {(click.search_id, click.document): click for click in log.clicks}.values():
        if click.search_id in log.searches:
            at_position[click.position] += 1
            positions[_normalize(log.searches[click.search_id]), click.document].append(click.position)
    found = []
    for (query, document), own in positions.items():
        if searches[query] < min_searches or len(own) < min_clicks:
            continue
        rate = sum(at_position[position] for position in own) / len(own) / len(log.searches)
        [(text, _)] = texts[query].most_common(1)
        found.append(ClickJudgement(text, document, len(own), searches[query], searches[query] * rate))
    return sorted(found, key=lambda each: (each.query, -each.ratio, -each.clicks, each.document))


def _normalize(text: str) -> str:
    """Normalize a text like the hashes of the search log."""
    return " ".join(text.casefold().split())


def judgement_csv(judgements: Iterable[ClickJudgement]) -> Iterator[bytes]:
    """Format judgements as the lines of a CSV file that `read_judgements` can read."""
    rows = (
        (each.query, each.document, each.grade, each.clicks, each.searches, f"{each.ratio:.3f}") for each in judgements
    )
    yield format_csv_line(["query", "document", "grade", "clicks", "searches", "clicks_over_expected"])
    yield from map(format_csv_line, rows)


def training_pairs(
    engine: Engine, index: str, vector_field: str, judgements: Sequence[ClickJudgement]
) -> Iterator[bytes]:
    """Read the texts of documents that were opened at least as often as expected; yield lines of JSON with the query.

    Documents that are no longer in the index, or have no text, are left out.

    Raises:
        IndexMissing, IndexMismatch: the index or the vector field does not exist, or the mapping does not say which
            text is embedded.
        EngineError: the engine failed.
    """
    field = read_vector_field(engine, index, vector_field)
    if field.meta.text is None:
        raise IndexMismatch(
            f"the mapping of {index} does not say which text is embedded in {vector_field}",
            f"Set it: `es-sbert index create {index} --text-field FIELD`.",
        )
    template = TextTemplate.parse(field.meta.text)
    chosen = [each for each in judgements if each.grade >= _TRAINING_GRADE]
    ids = list(dict.fromkeys(each.document for each in chosen))
    hits = {
        id: hit
        for some in batched(ids, _IDS_PER_REQUEST)
        for (id, _), hit in multi_get(engine, index, some, source={"includes": list(template.fields)}).items()
    }
    for each in chosen:
        hit = hits.get(each.document, {})
        if text := template.readable_text(hit.get("_source") or {}):
            yield orjson.dumps({"anchor": each.query, "positive": text}) + b"\n"


def read_click_log(
    engine: Engine, searches_pattern: str, clicks_pattern: str, searched: Sequence[str], since: str | None = None
) -> ClickLog:
    """Read the searches of some indices, and all clicks.

    Args:
        engine: The engine of the logs.
        searches_pattern, clicks_pattern: Index patterns of the two logs.
        searched: Index expressions as the gateway's clients wrote them.
        since: Earliest time in the engine's date format, e.g. `now-90d`; None for all.

    Raises:
        IndexMissing: one of the logs does not exist.
        SourceError: the log has no search of these indices, or does not have the texts of their queries.
        EngineError: the engine failed.
    """
    recent: list[Json] = [] if since is None else [{"range": {"@timestamp": {"gte": since}}}]
    filters = [
        {"terms": {"index": list(searched)}},
        {"terms": {"kind": ["semantic", "hybrid"]}},
        {"term": {"status": 200}},
        {"term": {"returns_hits": True}},
        *recent,
    ]
    searches, without_text = {}, 0
    for hit in _scan(engine, searches_pattern, {"bool": {"filter": filters}}, ["query"]):
        texts = (hit.get("_source") or {}).get("query") or []
        if len(texts) == 1:
            searches[hit["_id"]] = texts[0]
        else:
            without_text += 1
    names = ", ".join(searched)
    if not searches and without_text:
        raise SourceError(
            f"the log has {pluralize(without_text, 'semantic search')} of {names} without a text",
            "Run the gateway with `es-sbert serve --log-queries`, and collect searches again.",
        )
    if not searches:
        raise SourceError(
            f"{searches_pattern} has no semantic search of {names}",
            "Set `searched` to the index name that applications use. Keyword searches are not used.",
        )
    clicks = [
        Click(source["search_id"], source["document_id"], source["position"])
        for hit in _scan(engine, clicks_pattern, {"bool": {"filter": recent}}, ["search_id", "document_id", "position"])
        for source in [hit["_source"]]
    ]
    return ClickLog(searches, clicks, without_text)


def _scan(engine: Engine, pattern: str, query: Json, fields: Sequence[str]) -> Iterator[Json]:
    """Read the documents of all indices of a pattern."""
    states = engine.resolve_indices(pattern)
    if not states:
        raise IndexMissing(
            f"there is no index {pattern}",
            "Run the gateway with `es-sbert serve --search-log NAME --log-queries --log-clicks`.",
        )
    for state in states:
        for page in scan_index(engine, state.name, query=query, source_includes=fields):
            yield from page.hits
