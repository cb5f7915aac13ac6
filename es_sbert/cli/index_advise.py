"""`es-sbert index advise`: measure vector layouts on a sample of an index, and recommend one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import check_output_file, print_message, print_report, write_output_file

if TYPE_CHECKING:
    from es_sbert.index.vector_field import VectorField
    from es_sbert.vectors import Vectors


_PLOT_REMEDY = "Give --plot a file in a folder that you can write to."


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "--min-recall",
        type=shared.FiniteFloatRange(min=0, max=1, min_open=True, max_open=True),
        default=0.95,
        help="Recall@10 to keep.",
    ),
    click.option(
        "--sample", type=click.IntRange(min=200, max=9_000), default=5_000, help="Documents of the index to measure on."
    ),
    click.option(
        "--query-sample",
        "queries",
        type=click.IntRange(min=20, max=1_000),
        default=300,
        metavar="N",
        help="Further documents that serve as queries; at most a fifth of all.",
    ),
    click.option(
        "--queries",
        "query_file",
        type=shared.FILE_TYPE,
        metavar="FILE",
        help="File of queries, one per line, to use instead of documents; real queries give better results.",
    ),
    shared.seed_option,
    click.option(
        "--dimensions",
        type=click.IntRange(min=1),
        multiple=True,
        metavar="N",
        help="Number of dimensions to measure. Repeatable.  [default: all, 512, 256, 128 and 64, without those whose "
        "exact search misses --min-recall]",
    ),
    click.option(
        "--element-type",
        "element_types",
        multiple=True,
        help="Element type to measure. Repeatable.  [default: all that the engine supports]",
    ),
    click.option(
        "--index-type",
        "index_types",
        multiple=True,
        help="Index type to measure. Repeatable.  [default: all that the engine has; those without a graph only for up "
        "to 50,000 vectors]",
    ),
    click.option(
        "--plot", type=shared.OUTPUT_FILE_TYPE, metavar="FILE", help="Write a plot of recall and memory as SVG."
    ),
    shared.json_option,
    shared.vector_field_option,
)
@shared.connection_options
@option_group("Model, for --queries", shared.device_options)
def advise(name: str, query_file: Path | None, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Recommend dimensions, element type and index type for the vectors of the index NAME.

    Documents are sampled, and for each layout their stored vectors, cut to their first values, are written to a
    temporary index on the same engine, which is deleted at the end. Recall@10 is the share of the ten nearest documents
    by whole vectors that a search finds, with the settings of `es-sbert search`. Memory and disk are calculated for all
    vectors of the index. The layout with the least memory whose recall lies above --min-recall with 95 % confidence is
    recommended, with the command that changes the index to it. NAME itself is only read.

    Recall in the whole index is lower than in the sample, because more documents compete: check it with `es-sbert index
    recall` afterwards. Shortened vectors lose little if the model supports it (Matryoshka, or `es-sbert model rotate`).

    Names of temporary indices begin with es-sbert-advise-.

    \b
    Examples:
      es-sbert index advise docs
      es-sbert index advise docs --queries queries.txt --min-recall 0.98 --plot docs.svg
      es-sbert index advise docs --dimensions 128 --index-type int8_hnsw --index-type bbq_hnsw
    """
    from es_sbert.diagnostics.index_advice import AdviceRequest, advice_lines
    from es_sbert.diagnostics.index_advice import advise as measure
    from es_sbert.index.vector_field import read_vector_field

    if plot is not None:
        check_output_file(plot, _PLOT_REMEDY)
    request = AdviceRequest(**shared.select_options(options, AdviceRequest.__annotations__))
    with shared.open_engine(options) as engine, _interrupt_on_sigterm():
        field = read_vector_field(engine, name, options["vector_field"])
        queries = None if query_file is None else _embed_queries(query_file, field, options)
        advice = measure(engine, name, field, request, queries, report=print_message)
    if plot is not None:
        from es_sbert.diagnostics.layout_plot import layout_plot

        write_output_file(plot, [layout_plot(advice).encode()], _PLOT_REMEDY)
    print_report(advice.as_json(), advice_lines(advice), as_json=as_json)


def _embed_queries(file: Path, field: VectorField, options: dict[str, Any]) -> Vectors:
    """*Shape:* ``(queries, dimensions)``."""
    from es_sbert.diagnostics.recall import read_queries
    from es_sbert.encoder.encoder import Encoder, report_warnings
    from es_sbert.index.vector_field import check_field_model

    texts, meta = read_queries(file), field.meta
    arguments = shared.encoder_arguments(options)
    with Encoder.for_index(field.index, meta.model, meta.fingerprint, report=print_message, **arguments) as encoder:
        report_warnings(encoder, print_message)
        check_field_model(field, encoder.info.fingerprint, encoder.info.model)
        return encoder.encode(texts, "query")


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the temporary index is deleted."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
