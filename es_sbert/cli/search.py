"""`es-sbert search`: semantic, hybrid and similar-document search over an index."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click
import cloup
import orjson
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message
from es_sbert.config import TOP_K
from es_sbert.errors import UsageError
from es_sbert.messages import drop_unprintable, escape_unprintable, escape_unprintable_lines, pluralize
from es_sbert.settings import SearchOptions

if TYPE_CHECKING:
    from rich.console import RenderableType

    from es_sbert.engines.rest import Json
    from es_sbert.index.mapping import VectorFieldMeta
    from es_sbert.search.search_result import Hit, HybridHit, HybridResult, SearchResult
    from es_sbert.search.semantic_index import SemanticIndex


@cloup.command()
@click.argument("text", required=False)
@option_group(
    "Options",
    click.option("--index", required=True, help="Index or alias to search; several (a,b) or a pattern (logs-*)."),
    click.option("-k", "--k", "k", type=int, default=TOP_K, help="Number of hits."),
    shared.setting_options(SearchOptions, "filter JSON", "min_cosine"),
    shared.setting_option(
        SearchOptions,
        "allow_partial",
        help="If some shards fail, show the hits of the others, with a warning.  [default: fail]",
    ),
    click.option("--like", metavar="ID", help="Search for documents similar to this one instead of a text."),
    shared.vector_field_option,
)
@option_group(
    "Output",
    click.option("--fields", metavar="LIST", help="Show these fields, separated by commas.  [default: title and text]"),
    click.option("--full", is_flag=True, help="Show the whole text of each hit instead of its beginning."),
    shared.json_option(
        "Print one JSON object per line: id, index, cosine, score, source, passage; partial if shards failed."
    ),
    click.option("--show-body", is_flag=True, help="Print the request, ready to paste, instead of sending it."),
)
@option_group(
    "Hybrid search",
    click.option("--hybrid", is_flag=True, help="Combine semantic search with keyword search (BM25)."),
)
@option_group(
    "Reranking",
    click.option(
        "--rerank",
        metavar="MODEL",
        help="Rerank the first 50 hits, or k if that is more, with this cross-encoder: a folder that es-sbert export "
        "wrote.",
    ),
)
@option_group(
    "Recall and speed",
    shared.setting_options(SearchOptions, "num_candidates", "exact"),
)
@shared.encoder_options
@shared.connection_options
def search(
    text: str | None, index: str, k: int, like: str | None, hybrid: bool, full: bool, as_json: bool, **options: Any
) -> None:
    """Semantic search over an index.

    TEXT is embedded by the model that made the index's vectors. Each hit is printed with the cosine between its
    embedding and that of TEXT: 1 for the same direction, 0 for unrelated texts.

    \b
    Examples:
      es-sbert search --index docs "how do vaccines work"
      es-sbert search --index docs "storm damage" -k 5 --filter '{"term": {"language": "en"}}'
      es-sbert search --index docs "storm damage" --min-cosine 0.4 --json | jq .id
      es-sbert search --index docs "storm damage" --hybrid --fields title,date
      es-sbert search --index docs --like 42
      es-sbert search --index docs "storm damage" --rerank my-reranker
      es-sbert search --index docs "storm damage" --show-body
      es-sbert search --index 'logs-*' "disk is full"
    """
    names = [] if options["fields"] is None else [name.strip() for name in options["fields"].split(",")]
    query = like if text is None else text
    refusals = (
        (not all(names), f"--fields {options['fields']!r} has an empty name", "Separate the names by commas."),
        (full and as_json, "--full cannot be combined with --json, which prints whole documents", "Leave --full out."),
        (
            query is None or (text is not None and like is not None),
            "exactly one of TEXT and --like is required",
            "Pass a text, or --like ID.",
        ),
        (
            like is not None and (hybrid or options["rerank"] is not None),
            "--hybrid and --rerank need a query text, but --like searches with the vector of a document",
            "Leave them out, or pass TEXT instead of --like.",
        ),
    )
    for is_wrong, message, remedy in refusals:
        if is_wrong:
            raise UsageError(message, remedy)
    assert query is not None, "checked above"
    search_options = shared.select_options(options, SearchOptions.__annotations__)
    settings = shared.engine_settings(options)  # first of all imports, see `import_engine_transport`
    from es_sbert.index.text_template import TextTemplate
    from es_sbert.io.json_text import dump_object
    from es_sbert.search.reranking import search_depth
    from es_sbert.search.semantic_index import SemanticIndex

    encoder = shared.encoder_arguments(options)
    with ExitStack() as opened:
        reranker = None
        if options["rerank"] is not None:
            from es_sbert.encoder.reranker import Reranker

            reranker = opened.enter_context(Reranker(**encoder | {"model": options["rerank"]}))
        encoder["threads"] = encoder["threads"] or 1  # one text is embedded: more threads only take longer to start
        semantic = opened.enter_context(
            SemanticIndex(index, settings, vector_field=options["vector_field"], report=_print_message, **encoder)
        )
        if names:
            # Also fetch the fields of the embedded text, which the cross-encoder reads.
            embedded = semantic.field.meta.text
            read = TextTemplate.parse(embedded).fields if reranker and embedded else ()
            search_options["source"] = [*names, *read]
        if options["show_body"]:
            depth = search_depth(reranker, k, None)
            if like is not None:
                bodies: tuple[Json, ...] = (semantic.similar_body(query, depth, **search_options),)
            elif hybrid:
                bodies = semantic.hybrid_bodies(query, depth, **search_options)
            else:
                bodies = (semantic.body(query, depth, **search_options),)
            for shown in map(orjson.dumps, bodies) if as_json else [console_requests(index, bodies)]:
                click.echo(shown)
            return
        result: SearchResult | HybridResult
        if like is not None:
            result = semantic.similar_to(query, k, **search_options)
        elif hybrid:
            result = semantic.hybrid(query, k, rerank=reranker, **search_options)
        else:
            result = semantic.search(query, k, rerank=reranker, **search_options)
        warnings = [*reranker.warnings] if reranker else []
        if like is None:  # a search with --like loads no model that could have warnings
            warnings += semantic.encoder.info.warnings
        if result.partial is not None:
            warnings.append(f"the result is partial: {result.partial}")
        for warning in warnings:
            print_message(f"Warning: {warning}")
        if hybrid and search_options["min_cosine"] is None and semantic.field.meta.min_cosine is None and not as_json:
            print_message(
                "No minimum cosine is stored for this index, so a query has hits even if no document fits it. To "
                f"measure and store one: `es-sbert index calibrate {shlex.quote(index)} --save`"
            )
        if as_json:
            mark = {} if result.partial is None else {"partial": True}
            for hit in result:
                click.echo(dump_object(hit.as_json() | mark))
        else:
            _print_hits(result, semantic, names, full)


def _print_message(message: str) -> None:
    from es_sbert.runtime.device import NO_GPU_FOUND

    # Do not report that there is no GPU: only one text is embedded.
    if message != NO_GPU_FOUND:
        print_message(message)


def _print_hits(result: SearchResult | HybridResult, semantic: SemanticIndex, names: Sequence[str], full: bool) -> None:
    from rich.console import Console

    from es_sbert.search.search_result import HybridResult

    if result.hits:
        # Without a terminal, use a width that fits the text.
        console = Console(width=None if sys.stdout.isatty() else 120)
        with console.capture() as hits:
            console.print(hit_list(result, semantic.field.name, semantic.field.meta, names, full=full))
        for line in hits.get().splitlines():
            click.echo(line.rstrip())
    for name in names:
        if result.hits and not any(select_fields(hit.source, [name]) for hit in result):
            print_message(f"Warning: no hit has the field {name!r}; `--json` shows all fields.")
    method = f"hybrid, {result.method}" if isinstance(result, HybridResult) else result.method
    print_message(f"{pluralize(len(result), 'hit')} in {result.took_ms} ms ({method}, {semantic.engine.info.label})")
    if result.reranking is not None:
        print_message(str(result.reranking))


_SNIPPET = 300  # characters
_MAX_ID_WIDTH = 40  # columns; a longer id is truncated
_INDENT = 3  # columns


def hit_list(
    result: SearchResult | HybridResult,
    vector_field: str,
    meta: VectorFieldMeta,
    names: Sequence[str] = (),
    *,
    full: bool = False,
) -> RenderableType:
    """Format hits for a terminal: a line with rank, scores, id and title, and below it the text.

    Hits of a hybrid search have the fused score, the BM25 score and the cosine; reranked hits also the cross-encoder's.

    Args:
        vector_field: The field that was searched.
        meta: Metadata of this field, which names the embedded fields.
        names: Names or patterns of fields to show instead of title and text.
        full: Show whole texts, with their line breaks, instead of their beginning.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    hits: list[Hit | HybridHit] = [*result]
    rank = max(_INDENT - 1, len(str(len(hits))))
    widest = min(_MAX_ID_WIDTH, max((len(escape_unprintable(hit.id)) for hit in hits), default=0))
    if names:
        shown = [("", _field_lines(hit.source, names, full=full)) for hit in hits]
    else:
        shown = [_title_and_text(hit, vector_field, meta, full) for hit in hits]
    renderables: list[RenderableType] = []
    for number, (hit, (title, texts)) in enumerate(zip(hits, shown, strict=True), start=1):
        scores: dict[str, float | None] = {"rerank": hit.rerank_score} if result.reranking is not None else {}
        if hasattr(hit, "lexical"):
            scores |= {"score": hit.score, "keyword": hit.lexical}
        scores["cosine"] = hit.cosine
        if number == 1:
            heading = "  ".join(["#".rjust(rank), *(f"{name:>8}" for name in scores), "id".ljust(widest)])
            heading += "  title" if any(title for title, _ in shown) else ""
            renderables.append(Text(heading, no_wrap=True, overflow="ellipsis"))
        columns = [f"{'–' if score is None else f'{score:.4f}':>8}" for score in scores.values()]
        shown_id = _truncate(escape_unprintable(hit.id), widest).ljust(widest)
        line, shown_title = "  ".join([str(number).rjust(rank), *columns, shown_id, ""]), _single_line([title], None)
        renderables.append(Text.assemble(line, (shown_title, "bold"), no_wrap=True, overflow="ellipsis"))
        # A Text object, because rich reads square brackets in a str as markup.
        renderables += [Padding(Text(text), (0, 0, 0, _INDENT)) for text in texts if text]
    return Group(*renderables)


def select_fields(source: Json, names: Sequence[str]) -> dict[str, object]:
    """Return the leaves of a document that match these names or patterns, by dotted name, in the order of `names`.

    A leaf inside a list of objects has the values of all objects.
    """
    from es_sbert.index.text_template import document_field_names, find_field

    leaves = {name: find_field(source, name) for name in document_field_names(source)}
    return {
        name: value
        for pattern in names
        for name, value in leaves.items()
        if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    }


def _title_and_text(
    hit: Hit | HybridHit, vector_field: str, meta: VectorFieldMeta, full: bool
) -> tuple[str, list[str]]:
    """Return the title of a hit, and the text to show: its nearest passage, or else its document without the title.

    The text begins with the fields of the embedded text.
    """
    from es_sbert.index.mapping import document_meta_field
    from es_sbert.index.text_template import TITLE_FIELDS, TextTemplate, document_field_names

    template = TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
    titles = (template.of_fields([name]).readable_text(hit.source) for name in TITLE_FIELDS)
    title = next((title for title in titles if title.strip()), "")
    if hit.passage is not None and hit.passage.text is not None:
        passage = hit.passage.text
        texts = [passage.removeprefix(title).lstrip(" .:–-\n") if title else passage]
    else:
        ours = (vector_field, document_meta_field(vector_field))
        content = {name: value for name, value in hit.source.items() if name not in ours}
        names = template.fields or document_field_names(content)
        found = [template.of_fields([name]).readable_text(content) for name in names]
        found += [value for name, value in content.items() if name not in names and isinstance(value, str)]
        others = [text for text in found if text and text != title]
        # Values without a space are left out: they are ids and other keywords.
        texts = [text for text in others if " " in text.strip()]
        if not texts:
            title, texts = "", [title] if title else others
    return title, [escape_unprintable_lines("\n".join(texts)) if full else _single_line(texts, _SNIPPET)]


def _field_lines(source: Json, names: Sequence[str], *, full: bool) -> list[str]:
    lines = []
    for name, value in select_fields(source, names).items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        shown = escape_unprintable_lines(text) if full else _single_line([text], _SNIPPET)
        lines.append(f"{escape_unprintable(name)}: {shown}")
    return lines


def _single_line(texts: Sequence[str], length: int | None) -> str:
    line = " · ".join(" ".join(text.split()) for text in texts)
    # Documents are untrusted: control characters must not reach a terminal.
    line = drop_unprintable(line)
    return line if length is None else _truncate(line, length)


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# A list of numbers on several lines, which no string of JSON has.
_NUMBERS = re.compile(r"\[\n[\s\d.,eE+-]+\]")


def console_requests(index: str, bodies: Sequence[Json]) -> str:
    """Format a search for the consoles of Kibana and Dashboards: a request line and indented JSON, with the vector on
    one line.

    Several bodies become one `_msearch`, with each body on one line.
    """
    if len(bodies) > 1:
        lines = [f"{{}}\n{orjson.dumps(body).decode()}" for body in bodies]
        return "\n".join([f"POST /{index}/_msearch", *lines])
    indented = orjson.dumps(bodies[0], option=orjson.OPT_INDENT_2).decode()
    return f"POST /{index}/_search\n" + _NUMBERS.sub(lambda numbers: "".join(numbers[0].split()), indented)
