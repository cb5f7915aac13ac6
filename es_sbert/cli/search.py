"""`es-sbert search`: a text in, the nearest documents out."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.options import connection_options, encoder_options, engine_settings, vector_field_option
from es_sbert.errors import UsageError

if TYPE_CHECKING:
    from es_sbert.engines.protocol import Json
    from es_sbert.search.results import SearchResult
    from es_sbert.search.semantic_index import SemanticIndex


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("text")
@click.option("--index", required=True, help="Index or alias to search.")
@click.option("-k", "k", type=int, default=10, show_default=True, help="Number of hits.")
@click.option(
    "--filter", "filter_text", metavar="JSON", help="Query that every hit must match, applied during the search."
)
@click.option(
    "--num-candidates",
    type=int,
    help="Vectors that each shard looks at; more is slower and misses less.  [default: twice k, at least 100]",
)
@click.option(
    "--oversample",
    type=float,
    help="On a quantised index type: so many times k are compared again by float32 vectors.  [default: by the type]",
)
@click.option("--exact", is_flag=True, help="Compare with every vector instead of searching the graph.")
@click.option(
    "--rerank",
    "reranker_name",
    metavar="MODEL",
    help="Let this cross-encoder put the hits in order: a folder that es-sbert export wrote.",
)
@click.option(
    "--rerank-window", type=int, help="Hits that it reads, of which k are shown.  [default: 50, or k if that is more]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: id, cosine, score, source, passage.")
@click.option("--show-body", is_flag=True, help="Print the request, ready to paste, instead of sending it.")
@vector_field_option
@encoder_options
@connection_options
def search(text: str, index: str, k: int, filter_text: str | None, num_candidates: int | None,
           oversample: float | None, exact: bool, reranker_name: str | None, rerank_window: int | None,
           as_json: bool, show_body: bool, vector_field: str, model: str | None, device: str, precision: str,
           threads: int | None, **connection: Any) -> None:  # fmt: skip
    """Search an index by meaning.

    TEXT is encoded by the model that made the index's vectors. The cosine of text and document is printed
    with each hit: 1 means the same direction, 0 nothing in common.

    \b
    Examples:
      es-sbert search --index docs "how do vaccines work"
      es-sbert search --index docs "storm damage" -k 5 --filter '{"term": {"language": "en"}}'
      es-sbert search --index docs "storm damage" --json | jq .id
      es-sbert search --index docs "storm damage" --rerank my-reranker --rerank-window 100
      es-sbert search --index docs "storm damage" --show-body
    """
    import orjson

    from es_sbert.loading import load_reranker
    from es_sbert.search.filters import parse_filter
    from es_sbert.search.rerank import embedded_text, rerank, window_of
    from es_sbert.search.semantic_index import SemanticIndex
    from es_sbert.search.show import console_request

    query: Json | None = None if filter_text is None else parse_filter(filter_text)
    how: dict[str, Any] = {
        "filter": query, "exact": exact, "num_candidates": num_candidates, "oversample": oversample,
    }  # fmt: skip
    if rerank_window is not None and reranker_name is None:
        raise UsageError("--rerank-window is given without --rerank", "Name a cross-encoder: --rerank MODEL.")
    settings = engine_settings(**connection)
    with ExitStack() as opened:
        reranker = None
        if reranker_name is not None:
            reranker = opened.enter_context(
                load_reranker(reranker_name, device=device, precision=precision, threads=threads)
            )
        semantic = opened.enter_context(
            SemanticIndex(
                index, settings, model=model, vector_field=vector_field, device=device, precision=precision,
                threads=threads, report=lambda message: click.echo(message, err=True),
            )
        )  # fmt: skip
        depth = k if reranker is None else max(k, window_of(k, rerank_window))
        if show_body:
            body = semantic.body(text, depth, **how)
            click.echo(orjson.dumps(body) if as_json else console_request(index, body))
            return
        result = semantic.search(text, depth, **how)
        if reranker is not None:
            text_of = embedded_text(semantic.field.meta)
            result = rerank(text, result, reranker, text_of, k=k, window=rerank_window)
            for warning in reranker.warnings:
                click.echo(f"Warning: {warning}", err=True)
        for warning in semantic.encoder.info.warnings:
            click.echo(f"Warning: {warning}", err=True)
        if as_json:
            for hit in result:
                click.echo(orjson.dumps(hit.as_json()))
        else:
            _print_table(result, semantic)


def _print_table(result: SearchResult, semantic: SemanticIndex) -> None:
    from rich.console import Console

    from es_sbert.search.rerank import RerankedResult
    from es_sbert.search.show import hit_table

    if result.hits:
        # Where no terminal says how wide it is, leave room for the text.
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(hit_table(result, semantic.field.name, semantic.field.meta))
    click.echo(f"{len(result)} hits in {result.took_ms} ms ({result.method}, {semantic.engine.info.label})", err=True)
    if isinstance(result, RerankedResult):
        click.echo(result.describe(), err=True)
