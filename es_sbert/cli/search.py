"""`es-sbert search`: a text in, the nearest documents out."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.options import connection_options, encoder_options, engine_settings, vector_field_option
from es_sbert.errors import UsageError

if TYPE_CHECKING:
    from es_sbert.encoder.reranker import Reranker
    from es_sbert.engines.protocol import Json
    from es_sbert.search.results import HybridResult, SearchResult
    from es_sbert.search.semantic_index import SemanticIndex


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("text", required=False)
@click.option("--index", required=True, help="Index or alias to search.")
@click.option("-k", "k", type=int, default=10, show_default=True, help="Number of hits.")
@click.option(
    "--filter", "filter_text", metavar="JSON", help="Query that every hit must match, applied during the search."
)
@click.option("--min-cosine", type=float, help="Documents below this cosine, -1 to 1, are no hits.")
@click.option("--like", metavar="ID", help="Search by this document of the index instead of a text.")
@click.option("--hybrid", is_flag=True, help="Search by words and meaning together.")
@click.option(
    "--fusion",
    type=click.Choice(["rrf", "weighted", "normalized"]),
    help="With --hybrid: how the two become one; normalized is OpenSearch's own.  [default: rrf]",
)
@click.option(
    "--weights",
    metavar="MEANING:WORDS",
    help="With --hybrid: what each side counts, e.g. 2:1.  [default: by the fusion]",
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
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line: id, index, cosine, score, source, passage."
)
@click.option("--show-body", is_flag=True, help="Print the request, ready to paste, instead of sending it.")
@vector_field_option
@encoder_options
@connection_options
def search(text: str | None, index: str, k: int, filter_text: str | None, min_cosine: float | None, like: str | None,
           hybrid: bool, fusion: str | None, weights: str | None, num_candidates: int | None,
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
      es-sbert search --index docs "storm damage" --min-cosine 0.4 --json | jq .id
      es-sbert search --index docs "storm damage" --hybrid
      es-sbert search --index docs --like 42
      es-sbert search --index docs "storm damage" --rerank my-reranker --rerank-window 100
      es-sbert search --index docs "storm damage" --show-body
    """
    from es_sbert.loading import load_reranker
    from es_sbert.search.filters import parse_filter
    from es_sbert.search.rerank import window_of
    from es_sbert.search.semantic_index import SemanticIndex
    from es_sbert.streams.json_lines import object_bytes

    how: dict[str, Any] = {
        "filter": None if filter_text is None else parse_filter(filter_text), "exact": exact,
        "num_candidates": num_candidates, "oversample": oversample, "min_cosine": min_cosine,
    }  # fmt: skip
    ask = _Ask(text, like, how, _hybrid_options(hybrid, fusion, weights))
    if rerank_window is not None and reranker_name is None:
        raise UsageError("--rerank-window is given without --rerank", "Name a cross-encoder: --rerank MODEL.")
    if reranker_name is not None and text is None:
        raise UsageError("--rerank reads a TEXT beside each hit, and --like gives none", "Leave one of them out.")
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
        if show_body:
            depth = k if reranker is None else max(k, window_of(k, rerank_window))
            _print_bodies(ask.bodies(semantic, depth), index, as_json)
            return
        result = ask.search(semantic, k, reranker, rerank_window)
        for warning in reranker.warnings if reranker else ():
            click.echo(f"Warning: {warning}", err=True)
        # A search by a document loads no model.
        for warning in semantic.encoder.info.warnings if like is None else ():
            click.echo(f"Warning: {warning}", err=True)
        if as_json:
            for hit in result:
                click.echo(object_bytes(hit.as_json()))
        else:
            _print_table(result, semantic)


@dataclass(frozen=True)
class _Ask:
    """What is searched for: a text, or a document by its id."""

    text: str | None
    like: str | None
    how: dict[str, Any]
    hybrid: dict[str, Any] | None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.like is None):
            raise UsageError("TEXT and --like are both given or both missing", "Give a text, or --like ID.")
        if self.like is not None and self.hybrid is not None:
            raise UsageError("a document has no words to search by with --hybrid", "Leave --hybrid out, or give TEXT.")

    def search(self, index: SemanticIndex, k: int, reranker: Reranker | None,
               window: int | None) -> SearchResult | HybridResult:  # fmt: skip
        if self.like is not None:
            return index.like(self.like, k, **self.how)
        assert self.text is not None
        if self.hybrid is not None:
            return index.hybrid(self.text, k, rerank=reranker, window=window, **self.how, **self.hybrid)
        return index.search(self.text, k, rerank=reranker, window=window, **self.how)

    def bodies(self, index: SemanticIndex, k: int) -> tuple[Json, ...]:
        if self.like is not None:
            return (index.like_body(self.like, k, **self.how),)
        assert self.text is not None
        if self.hybrid is not None:
            return index.hybrid_bodies(self.text, k, **self.how, **self.hybrid)
        return (index.body(self.text, k, **self.how),)


def _hybrid_options(hybrid: bool, fusion: str | None, weights: str | None) -> dict[str, Any] | None:
    if not hybrid:
        if fusion is not None or weights is not None:
            raise UsageError("--fusion and --weights are for --hybrid", "Add --hybrid, or leave them out.")
        return None
    options: dict[str, Any] = {} if fusion is None else {"fusion": fusion}
    return options if weights is None else options | {"weights": _read_weights(weights)}


def _read_weights(text: str) -> tuple[float, float]:
    meaning, _, words = text.partition(":")
    try:
        return float(meaning), float(words)
    except ValueError:
        raise UsageError(f"--weights {text!r} are not two numbers", "Write them as 2:1, meaning first.") from None


def _print_bodies(bodies: tuple[Json, ...], index: str, as_json: bool) -> None:
    import orjson

    from es_sbert.search.show import console_requests

    if not as_json:
        click.echo(console_requests(index, bodies))
        return
    for body in bodies:
        click.echo(orjson.dumps(body))


def _print_table(result: SearchResult | HybridResult, semantic: SemanticIndex) -> None:
    from rich.console import Console

    from es_sbert.printable import counted
    from es_sbert.search.results import HybridResult
    from es_sbert.search.show import hit_table

    if result.hits:
        # Where no terminal says how wide it is, leave room for the text.
        console = Console(width=None if sys.stdout.isatty() else 120)
        with console.capture() as table:
            console.print(hit_table(result, semantic.field.name, semantic.field.meta))
        click.echo(table.get(), nl=False)
    how = f"hybrid, {result.method}" if isinstance(result, HybridResult) else result.method
    click.echo(f"{counted(len(result), 'hit')} in {result.took_ms} ms ({how}, {semantic.engine.info.label})", err=True)
    if result.reranking is not None:
        click.echo(str(result.reranking), err=True)
