"""Hits and request bodies as text for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson
from rich.table import Table
from rich.text import Text

from es_sbert.engines.protocol import Json
from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.printable import printable
from es_sbert.search.results import Hit, HybridHit, HybridResult, SearchResult

_TEMPLATE_FIELD = re.compile(r"\{([^{}]+)\}")
SNIPPET = 300  # characters
_WIDEST_ID = 40  # columns; a longer id is folded
_VECTOR_MARK = "\ufdd0vector"  # a noncharacter: no text of a document or filter holds it


def snippet(source: Json, vector_field: str, meta: VectorFieldMeta, length: int = SNIPPET) -> str:
    """The beginning of a document on one line: the fields of its embedded text first, then other texts."""
    first = _TEMPLATE_FIELD.findall(meta.text or "")
    names = [name for name in first if name in source] + [name for name in source if name not in first]
    texts = [
        source[name]
        for name in names
        if isinstance(source[name], str) and name not in (vector_field, document_meta_field(vector_field))
    ]
    return _on_one_line(texts, length)


def _on_one_line(texts: Sequence[str], length: int) -> str:
    line = " · ".join(" ".join(text.split()) for text in texts)
    # Documents come from anywhere: control characters must not reach a terminal.
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= length else line[: length - 1] + "…"


def hit_text(hit: Hit | HybridHit, vector_field: str, meta: VectorFieldMeta) -> str:
    """The nearest passage of a hit, else the beginning of its document, on one line."""
    if hit.passage is None or hit.passage.text is None:
        return snippet(hit.source, vector_field, meta)
    return _on_one_line([hit.passage.text], SNIPPET)


def hit_table(result: SearchResult | HybridResult, vector_field: str, meta: VectorFieldMeta) -> Table:
    """Rank, scores, id and the beginning of each hit.

    Beside the cosine stand, of a hybrid search, the score that decides and that of the words; and the cross-encoder's
    where one has put the hits in order.
    """
    hits: list[Hit | HybridHit] = [*result]
    # Without least widths a long text would squeeze the other columns out of sight.
    longest = max((len(hit.id) for hit in hits), default=0)
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("#", justify="right", no_wrap=True, min_width=len(str(len(hits))))
    reranked = result.reranking is not None
    for column in _scores(hits[0], reranked) if hits else ("cosine",):
        table.add_column(column, justify="right", no_wrap=True, min_width=7)
    table.add_column("id", overflow="fold", min_width=min(longest, _WIDEST_ID))
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank, hit in enumerate(hits, start=1):
        shown = ["–" if score is None else f"{score:.4f}" for score in _scores(hit, reranked).values()]
        # Text objects: square brackets in a document are no markup.
        table.add_row(str(rank), *shown, _plain(hit.id), Text(hit_text(hit, vector_field, meta)))
    return table


def _scores(hit: Hit | HybridHit, reranked: bool) -> dict[str, float | None]:
    """By the name of the column; the same for all hits of a search."""
    first = {"rerank": hit.rerank_score} if reranked else {}
    if isinstance(hit, HybridHit):
        return {**first, "score": hit.score, "words": hit.lexical, "cosine": hit.cosine}
    return {**first, "cosine": hit.cosine}


def _plain(text: str) -> Text:
    return Text(printable(text))


def console_request(index: str, body: Json) -> str:
    """A search as Kibana's and Dashboards' consoles take it: a request line and indented JSON, vector on one line."""
    numbers: list[list[float]] = []
    indented = orjson.dumps(_mark_vectors(body, numbers), option=orjson.OPT_INDENT_2).decode()
    for position, vector in enumerate(numbers):
        indented = indented.replace(f'"{_VECTOR_MARK}{position}"', orjson.dumps(vector).decode())
    return f"POST /{index}/_search\n{indented}"


def console_requests(index: str, bodies: Sequence[Json]) -> str:
    """As `console_request`; several bodies as one `_msearch`, each on a line."""
    if len(bodies) == 1:
        return console_request(index, bodies[0])
    lines = "".join(f"{{}}\n{orjson.dumps(body).decode()}\n" for body in bodies)
    return f"POST /{index}/_msearch\n{lines}".rstrip("\n")


def _mark_vectors(value: object, numbers: list[list[float]]) -> object:
    """A copy with each query vector replaced by a mark; the vectors are collected in `numbers`."""
    if isinstance(value, dict):
        copy: dict[str, object] = {}
        for key, inner in value.items():
            if key in ("query_vector", "vector", "q", "query_value") and isinstance(inner, list):
                copy[key] = f"{_VECTOR_MARK}{len(numbers)}"
                numbers.append(inner)
            else:
                copy[key] = _mark_vectors(inner, numbers)
        return copy
    if isinstance(value, list):
        return [_mark_vectors(inner, numbers) for inner in value]
    return value
