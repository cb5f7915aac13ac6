"""Format hits and request bodies for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from es_sbert.engines.rest import Json
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field
from es_sbert.index.text_template import TITLE_FIELDS, TextTemplate, document_field_names, find_field
from es_sbert.messages import drop_unprintable, escape_unprintable, escape_unprintable_lines
from es_sbert.search.search_result import Hit, HybridHit, HybridResult, SearchResult

_SNIPPET = 300  # characters
_MAX_ID_WIDTH = 40  # columns; a longer id is truncated
_INDENT = 3  # columns
_VECTOR_MARK = "\ufdd0vector"  # a noncharacter: no text of a document or filter holds it


def hit_list(
    result: SearchResult | HybridResult,
    vector_field: str,
    meta: VectorFieldMeta,
    *,
    fields: Sequence[str] = (),
    full: bool = False,
) -> RenderableType:
    """Format hits for a terminal: a line with rank, scores, id and title, and below it the text.

    Hits of a hybrid search have the fused score, the BM25 score and the cosine; reranked hits also the cross-encoder's.

    Args:
        vector_field: The field that was searched.
        meta: Metadata of this field, which names the embedded fields.
        fields: Names or patterns of fields to show instead of title and text.
        full: Show whole texts, with their line breaks, instead of their beginning.
    """
    hits: list[Hit | HybridHit] = [*result]
    if not hits:
        return Group()
    reranked = result.reranking is not None
    columns = list(_scores(hits[0], reranked))
    rank = max(_INDENT - 1, len(str(len(hits))))
    widest = min(_MAX_ID_WIDTH, max(len(escape_unprintable(hit.id)) for hit in hits))
    if fields:
        shown = [("", _field_lines(hit.source, fields, full=full)) for hit in hits]
    else:
        shown = [_title_and_text(hit, vector_field, meta, full) for hit in hits]
    heading = "  ".join(["#".rjust(rank), *(f"{name:>8}" for name in columns), "id".ljust(widest)])
    lines: list[RenderableType] = [_line(heading + ("  title" if any(title for title, _ in shown) else ""))]
    for number, (hit, (title, texts)) in enumerate(zip(hits, shown, strict=True), start=1):
        scores = ["–" if score is None else f"{score:.4f}" for score in _scores(hit, reranked).values()]
        shown_id = _truncate(escape_unprintable(hit.id), widest)
        first = "  ".join([str(number).rjust(rank), *(f"{score:>8}" for score in scores), shown_id.ljust(widest)])
        lines.append(
            Text.assemble(_line(first), "  ", (_single_line([title], None), "bold"), no_wrap=True, overflow="ellipsis")
        )
        lines += [Padding(Text(text), (0, 0, 0, _INDENT)) for text in texts if text]
    return Group(*lines)


def select_fields(source: Json, fields: Sequence[str]) -> dict[str, object]:
    """Return the leaves of a document that match these names or patterns, by dotted name, in the order of `fields`.

    A leaf inside a list of objects has the values of all objects.
    """
    leaves = _leaves(source)
    return {
        name: value
        for pattern in fields
        for name, value in leaves.items()
        if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    }


def _texts(source: Json, vector_field: str, meta: VectorFieldMeta) -> list[str]:
    """Return the texts of a document: first the fields of its embedded text, then others."""
    ours = (vector_field, document_meta_field(vector_field))
    content = {name: value for name, value in source.items() if name not in ours}
    template = TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
    first = template.fields or document_field_names(content)
    embedded = [text for name in first if (text := template.of_fields([name]).readable_text(content))]
    return embedded + [value for name, value in content.items() if name not in first and isinstance(value, str)]


def _title_and_text(
    hit: Hit | HybridHit, vector_field: str, meta: VectorFieldMeta, full: bool
) -> tuple[str, list[str]]:
    """Return the title of a hit, and the text to show: its nearest passage, or else its document without the title."""
    template = TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
    titles = (template.of_fields([name]).readable_text(hit.source) for name in TITLE_FIELDS)
    title = next((title for title in titles if title.strip()), "")
    if hit.passage is not None and hit.passage.text is not None:
        passage = hit.passage.text
        texts = [passage.removeprefix(title).lstrip(" .:–-\n") if title else passage]
    else:
        others = [text for text in _texts(hit.source, vector_field, meta) if text != title]
        # Values without a space are left out: they are ids and other keywords.
        texts = [text for text in others if " " in text.strip()]
        if not texts:
            title, texts = "", [title] if title else others
    return title, [escape_unprintable_lines("\n".join(texts)) if full else _single_line(texts, _SNIPPET)]


def _field_lines(source: Json, fields: Sequence[str], *, full: bool) -> list[str]:
    lines = []
    for name, value in select_fields(source, fields).items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        lines.append(
            f"{escape_unprintable(name)}: {escape_unprintable_lines(text) if full else _single_line([text], _SNIPPET)}"
        )
    return lines


def _leaves(source: Json) -> dict[str, object]:
    return {name: find_field(source, name) for name in document_field_names(source)}


def _line(text: str) -> Text:
    # A Text object, because rich reads square brackets in a str as markup.
    return Text(text, no_wrap=True, overflow="ellipsis")


def _single_line(texts: Sequence[str], length: int | None) -> str:
    line = " · ".join(" ".join(text.split()) for text in texts)
    # Documents are untrusted: control characters must not reach a terminal.
    line = drop_unprintable(line)
    return line if length is None else _truncate(line, length)


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _scores(hit: Hit | HybridHit, reranked: bool) -> dict[str, float | None]:
    """Column → score; the columns are the same for all hits of a search."""
    first = {"rerank": hit.rerank_score} if reranked else {}
    fused = {"score": hit.score, "keyword": hit.lexical} if isinstance(hit, HybridHit) else {}
    return {**first, **fused, "cosine": hit.cosine}


def console_requests(index: str, bodies: Sequence[Json]) -> str:
    """Format a search for the consoles of Kibana and Dashboards: a request line and indented JSON, with the vector on
    one line.

    Several bodies become one `_msearch`, with each body on one line.
    """
    if len(bodies) > 1:
        lines = [f"{{}}\n{orjson.dumps(body).decode()}" for body in bodies]
        return "\n".join([f"POST /{index}/_msearch", *lines])
    numbers: list[list[float]] = []
    request = console_request(f"POST /{index}/_search", _extract_vectors(bodies[0], numbers))
    for position, vector in enumerate(numbers):
        request = request.replace(f'"{_VECTOR_MARK}{position}"', orjson.dumps(vector).decode())
    return request


def console_request(line: str, body: object) -> str:
    """Format a request for the consoles of Kibana and Dashboards: the request line and indented JSON."""
    return f"{line}\n{orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()}"


def _extract_vectors(value: object, numbers: list[list[float]]) -> object:
    """Return a copy with each query vector replaced by a mark; append the vectors to `numbers`."""
    if isinstance(value, dict):
        copy: dict[str, object] = {}
        for key, inner in value.items():
            if key in ("query_vector", "vector", "q", "query_value") and isinstance(inner, list):
                copy[key] = f"{_VECTOR_MARK}{len(numbers)}"
                numbers.append(inner)
            else:
                copy[key] = _extract_vectors(inner, numbers)
        return copy
    if isinstance(value, list):
        return [_extract_vectors(inner, numbers) for inner in value]
    return value
