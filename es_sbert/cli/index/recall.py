"""`es-sbert index recall`: what the graph misses, and what to do about it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import Number, connection_options, encoder_options, engine_settings, vector_field_option


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "-k", "--k", "k", type=click.IntRange(min=1, max=1000), default=10, show_default=True, help="Neighbours."
    ),
    click.option(
        "--sample",
        type=click.IntRange(min=1, max=10_000),
        default=200,
        show_default=True,
        help="Documents of the index that serve as queries.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Which documents those are."),
    click.option(
        "--queries",
        type=click.Path(path_type=Path),
        help="File of texts to search for, one a line, instead of documents; real queries give the better measure.",
    ),
    click.option(
        "--num-candidates",
        "candidates",
        type=int,
        multiple=True,
        help="Value to measure.  [default: 10, 20, 50, … 1000]",
    ),
    click.option(
        "--oversample",
        "oversamples",
        type=float,
        multiple=True,
        help="Value to measure, for quantised index types.  [default: 1, 1.5, 2, 3, 5]",
    ),
    click.option(
        "--target",
        type=Number(min=0, max=1, min_open=True, max_open=True),
        default=0.95,
        show_default=True,
        help="Recall to reach.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    vector_field_option,
)
@connection_options
@encoder_options
def recall(name: str, k: int, sample: int, seed: int, queries: Path | None, candidates: tuple[int, ...],
           oversamples: tuple[float, ...], target: float, as_json: bool, vector_field: str, model: str | None,
           device: str, precision: str, threads: int | None, **connection: Any) -> None:  # fmt: skip
    """Measure how much of exact search the approximate search of the index NAME finds.

    Every query is searched for with each num_candidates (and, in quantised types, oversample), one search at a
    time, and compared with exact search, which is done here by reading all vectors once. The least effort
    whose recall lies above --target with 95 % confidence is recommended. The index should be at rest.

    \b
    Examples:
      es-sbert index recall docs
      es-sbert index recall docs --queries queries.txt --k 20 --target 0.98
    """
    import orjson

    from es_sbert.engines.connect import connect
    from es_sbert.index.ensure import check_model, read_vector_field
    from es_sbert.index.types import IndexType
    from es_sbert.loading import load_index_encoder, report_warnings
    from es_sbert.tuning.queries import read_queries
    from es_sbert.tuning.recall import Queries, measure_recall, sample_queries, settings_for
    from es_sbert.tuning.recall_text import recall_lines

    def say(message: str) -> None:
        click.echo(message, err=True)

    with closing(connect(engine_settings(**connection))) as engine:
        field = read_vector_field(engine, name, vector_field)
        settings = settings_for(IndexType(field.meta.index_type), k, candidates, oversamples)
        if queries is None:
            wanted = sample_queries(engine, field, sample, seed)
        else:
            texts = read_queries(queries)
            with load_index_encoder(
                field.index, field.meta.model, field.meta.fingerprint, model=model, device=device, precision=precision,
                threads=threads, report=say,
            ) as encoder:  # fmt: skip
                report_warnings(encoder, say)
                check_model(field, encoder.info.fingerprint, encoder.info.model)
                wanted = Queries(encoder.encode(texts, "query").vectors, [None] * len(texts))
        report = measure_recall(engine, field, wanted, settings, k=k, target=target, report=say)
        flavour = engine.info.flavour
    click.echo(orjson.dumps(report.as_json()) if as_json else "\n".join(recall_lines(report, flavour)))
