"""`es-sbert search`: a text in, the nearest documents out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.options import connection_options, encoder_options, engine_settings, vector_field_option

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
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: id, cosine, score, source, passage.")
@click.option("--show-body", is_flag=True, help="Print the request, ready to paste, instead of sending it.")
@vector_field_option
@encoder_options
@connection_options
def search(text: str, index: str, k: int, filter_text: str | None, num_candidates: int | None,
           oversample: float | None, exact: bool, as_json: bool, show_body: bool, vector_field: str,
           model: str | None, device: str, precision: str, threads: int | None, **connection: Any) -> None:  # fmt: skip
    """Search an index by meaning.

    TEXT is encoded by the model that made the index's vectors. The cosine of text and document is printed
    with each hit: 1 means the same direction, 0 nothing in common.

    \b
    Examples:
      es-sbert search --index docs "how do vaccines work"
      es-sbert search --index docs "storm damage" -k 5 --filter '{"term": {"language": "en"}}'
      es-sbert search --index docs "storm damage" --json | jq .id
      es-sbert search --index docs "storm damage" --show-body
    """
    import orjson

    from es_sbert.search.filters import parse_filter
    from es_sbert.search.semantic_index import SemanticIndex
    from es_sbert.search.show import console_request

    query: Json | None = None if filter_text is None else parse_filter(filter_text)
    how: dict[str, Any] = {
        "filter": query, "exact": exact, "num_candidates": num_candidates, "oversample": oversample,
    }  # fmt: skip
    settings = engine_settings(**connection)
    with SemanticIndex(
        index,
        settings,
        model=model,
        vector_field=vector_field,
        device=device,
        precision=precision,
        threads=threads,
        report=lambda message: click.echo(message, err=True),
    ) as semantic:
        if show_body:
            body = semantic.body(text, k, **how)
            click.echo(orjson.dumps(body) if as_json else console_request(index, body))
            return
        result = semantic.search(text, k, **how)
        for warning in semantic.encoder.info.warnings:
            click.echo(f"Warning: {warning}", err=True)
        if as_json:
            for hit in result:
                click.echo(orjson.dumps(hit.as_json()))
        else:
            _print_table(result, semantic)


def _print_table(result: SearchResult, semantic: SemanticIndex) -> None:
    from rich.console import Console

    from es_sbert.search.show import hit_table

    if result.hits:
        # Where no terminal says how wide it is, leave room for the text.
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(hit_table(result, semantic.field.name, semantic.field.meta))
    click.echo(f"{len(result)} hits in {result.took_ms} ms ({result.method}, {semantic.engine.info.label})", err=True)
