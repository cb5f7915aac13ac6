"""`es-sbert search`: semantic, hybrid and similar-document search over an index."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message
from es_sbert.errors import UsageError

if TYPE_CHECKING:
    from es_sbert.engines.rest import Json
    from es_sbert.search.search_result import HybridResult, SearchResult
    from es_sbert.search.semantic_index import SemanticIndex


@cloup.command()
@click.argument("text", required=False)
@option_group(
    "Options",
    click.option("--index", required=True, help="Index or alias to search; several (a,b) or a pattern (logs-*)."),
    click.option("-k", "--k", "k", type=int, default=10, help="Number of hits."),
    click.option(
        "--filter", "filter_text", metavar="JSON", help="Query that every hit must match, applied during the search."
    ),
    click.option(
        "--min-cosine",
        type=float,
        help="Drop hits whose cosine, -1 to 1, is below this value.  [default: none; with --hybrid that of es-sbert "
        "index calibrate --save]",
    ),
    click.option(
        "--allow-partial",
        is_flag=True,
        help="If some shards fail, show the hits of the others, with a warning.  [default: fail]",
    ),
    click.option("--like", metavar="ID", help="Search for documents similar to this one instead of a text."),
    shared.vector_field_option,
)
@option_group(
    "Output",
    click.option("--fields", metavar="LIST", help="Show these fields, separated by commas.  [default: title and text]"),
    click.option("--full", is_flag=True, help="Show the whole text of each hit instead of its beginning."),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object per line: id, index, cosine, score, source, passage; partial if shards failed.",
    ),
    click.option("--show-body", is_flag=True, help="Print the request, ready to paste, instead of sending it."),
)
@option_group(
    "Hybrid search",
    click.option("--hybrid", is_flag=True, help="Combine semantic search with keyword search (BM25)."),
    click.option("--weights", metavar="SEMANTIC:KEYWORD", help="Weight of each ranking, e.g. 2:1.  [default: 3:1]"),
)
@option_group(
    "Reranking",
    click.option(
        "--rerank",
        "reranker_name",
        metavar="MODEL",
        help="Rerank the hits with this cross-encoder: a folder that es-sbert export wrote.",
    ),
    click.option(
        "--rerank-window",
        type=int,
        help="Number of hits to rerank; the best k are shown.  [default: 50, or k if that is more]",
    ),
)
@option_group(
    "Recall and speed",
    click.option(
        "--num-candidates",
        type=int,
        help="Candidates per shard; more are slower and miss fewer hits.  [default: twice k, at least 100]",
    ),
    click.option(
        "--oversample",
        type=float,
        help="On a quantized index type: rescore this many times k hits with float32 vectors.  [default: by the type]",
    ),
    click.option("--exact", is_flag=True, help="Compare with every vector instead of searching the graph."),
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
      es-sbert search --index docs "storm damage" --rerank my-reranker --rerank-window 100
      es-sbert search --index docs "storm damage" --show-body
      es-sbert search --index 'logs-*' "disk is full"
    """
    shared.import_engine_transport()
    from es_sbert.index.text_template import TextTemplate
    from es_sbert.io.json_numbers import dump_object
    from es_sbert.search.reranking import search_depth
    from es_sbert.search.semantic_index import SemanticIndex
    from es_sbert.search.vector_query import parse_filter

    fields = _parse_fields(options["fields"])
    if full and as_json:
        raise UsageError("--full cannot be combined with --json, which prints whole documents", "Leave --full out.")
    search_options = shared.select_options(
        options, ("exact", "num_candidates", "oversample", "min_cosine", "allow_partial")
    )
    search_options["filter"] = None if options["filter_text"] is None else parse_filter(options["filter_text"])
    if options["weights"] is not None:
        search_options["weights"] = _parse_weights(options["weights"])
    query = like if text is None else text
    if query is None or (text is not None and like is not None):
        raise UsageError("exactly one of TEXT and --like is required", "Pass a text, or --like ID.")
    if like is not None and hybrid:
        raise UsageError(
            "--hybrid needs a query text, but --like searches with the vector of a document",
            "Leave --hybrid out, or pass TEXT instead of --like.",
        )
    if options["weights"] is not None and not hybrid:
        raise UsageError("--weights requires --hybrid", "Add --hybrid, or leave --weights out.")
    reranker_name, rerank_window = options["reranker_name"], options["rerank_window"]
    if rerank_window is not None and reranker_name is None:
        raise UsageError("--rerank-window requires --rerank", "Add --rerank MODEL, a cross-encoder.")
    if reranker_name is not None and text is None:
        raise UsageError(
            "--rerank requires a query text and cannot be combined with --like",
            "Leave out --rerank, or pass TEXT instead of --like.",
        )
    settings = shared.engine_settings(options)
    encoder = shared.encoder_arguments(options)
    with ExitStack() as opened:
        reranker = None
        if reranker_name is not None:
            from es_sbert.encoder.reranker import Reranker

            reranker = opened.enter_context(Reranker(**encoder | {"model": reranker_name}))
        vector_field = options["vector_field"]
        searched = SemanticIndex(index, settings, vector_field=vector_field, report=_print_message, **encoder)
        semantic = opened.enter_context(searched)
        if fields:
            # Also fetch the fields of the embedded text, which the cross-encoder reads.
            embedded = semantic.field.meta.text
            read = TextTemplate.parse(embedded).fields if reranker and embedded else ()
            search_options["source"] = [*fields, *read]
        if options["show_body"]:
            depth = search_depth(reranker, k, rerank_window, search_options)
            if like is not None:
                bodies: tuple[Json, ...] = (semantic.similar_body(query, depth, **search_options),)
            elif hybrid:
                bodies = semantic.hybrid_bodies(query, depth, **search_options)
            else:
                bodies = (semantic.body(query, depth, **search_options),)
            _print_bodies(bodies, index, as_json)
            return
        result: SearchResult | HybridResult
        if like is not None:
            result = semantic.similar_to(query, k, **search_options)
        elif hybrid:
            result = semantic.hybrid(query, k, rerank=reranker, window=rerank_window, **search_options)
        else:
            result = semantic.search(query, k, rerank=reranker, window=rerank_window, **search_options)
        for warning in reranker.warnings if reranker else ():
            print_message(f"Warning: {warning}")
        # A search with --like loads no model that could have warnings.
        for warning in semantic.encoder.info.warnings if like is None else ():
            print_message(f"Warning: {warning}")
        if result.partial is not None:
            print_message(f"Warning: the result is partial: {result.partial}")
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
            _print_hits(result, semantic, fields, full)


def _print_message(message: str) -> None:
    from es_sbert.runtime.device import NO_GPU_FOUND

    # Do not report that there is no GPU: only one text is embedded.
    if message != NO_GPU_FOUND:
        print_message(message)


def _parse_weights(text: str) -> tuple[float, float]:
    meaning, _, words = text.partition(":")
    try:
        return float(meaning), float(words)
    except ValueError:
        raise UsageError(
            f"--weights must be two numbers, not {text!r}", "Write them as SEMANTIC:KEYWORD, for example 2:1."
        ) from None


def _print_bodies(bodies: tuple[Json, ...], index: str, as_json: bool) -> None:
    import orjson

    from es_sbert.search.search_output import console_requests

    if not as_json:
        click.echo(console_requests(index, bodies))
        return
    for body in bodies:
        click.echo(orjson.dumps(body))


def _parse_fields(text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--fields {text!r} has an empty name", "Separate the names by commas: title,date.")
    return names


def _print_hits(
    result: SearchResult | HybridResult, semantic: SemanticIndex, fields: Sequence[str], full: bool
) -> None:
    from rich.console import Console

    from es_sbert.messages import pluralize
    from es_sbert.search.search_output import hit_list, select_fields
    from es_sbert.search.search_result import HybridResult

    if result.hits:
        # Without a terminal, use a width that fits the text.
        console = Console(width=None if sys.stdout.isatty() else 120)
        with console.capture() as hits:
            console.print(hit_list(result, semantic.field.name, semantic.field.meta, fields=fields, full=full))
        for line in hits.get().splitlines():
            click.echo(line.rstrip())
    for name in fields:
        if result.hits and not any(select_fields(hit.source, [name]) for hit in result):
            print_message(f"Warning: no hit has the field {name!r}; `--json` shows all fields.")
    method = f"hybrid, {result.method}" if isinstance(result, HybridResult) else result.method
    print_message(f"{pluralize(len(result), 'hit')} in {result.took_ms} ms ({method}, {semantic.engine.info.label})")
    if result.reranking is not None:
        print_message(str(result.reranking))
