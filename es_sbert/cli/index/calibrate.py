"""`es-sbert index calibrate`: a minimum cosine that suits a model and its texts."""

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
        "--queries",
        type=click.Path(path_type=Path),
        help='JSON Lines of labelled queries: {"query": "a text", "ids": ["id of a relevant document", …]}.  [default: '
        "pseudo-queries, made of the sampled documents]",
    ),
    click.option(
        "--sample",
        type=click.IntRange(min=2, max=10_000),
        default=1000,
        show_default=True,
        help="Documents of the index to compare every query with.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Which documents those are."),
    click.option(
        "--keep",
        type=Number(min=0, max=1, min_open=True, max_open=True),
        default=0.95,
        show_default=True,
        help="Share of the relevant documents that the recommended value keeps.",
    ),
    click.option(
        "-k", "--k", "k", type=click.IntRange(min=1, max=1000), default=10, show_default=True, help="Hits of a search."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    vector_field_option,
)
@connection_options
@encoder_options
def calibrate(name: str, queries: Path | None, sample: int, seed: int, keep: float, k: int, as_json: bool,
              vector_field: str, model: str | None, device: str, precision: str, threads: int | None,
              **connection: Any) -> None:  # fmt: skip
    """Recommend a minimum cosine for searches of the index NAME.

    A semantic query without min_cosine returns the k nearest documents, however distant they are. What is
    distant depends on the model and the texts. This command compares queries with documents that are relevant
    to them and with a random sample of other documents, and shows what each minimum does: recall is the share
    of relevant documents that it keeps, unrelated the share of other documents that pass, hits how many of the
    k nearest documents pass, and precision how many of those hits are labelled as relevant.

    Labelled queries are best. Without them, a query is made of each sampled document and compared with the rest
    of it: the first sentence with the other sentences; of a text of one sentence, the first field with the other
    fields, or the first half of the words with the whole text. These are not what users type, so the recommended
    value may be too high or too low for real queries.

    The value is for this model and this index: run the command again after a migration to another model. The
    index should be at rest.

    \b
    Examples:
      es-sbert index calibrate docs
      es-sbert index calibrate docs --queries labelled.jsonl --keep 0.9
    """
    import orjson

    from es_sbert.engines.connect import connect
    from es_sbert.loading import load_index_encoder, report_warnings
    from es_sbert.tuning.calibrate_index import CalibratedIndex
    from es_sbert.tuning.calibrate_text import calibration_lines
    from es_sbert.tuning.queries import read_labelled_queries

    def say(message: str) -> None:
        click.echo(message, err=True)

    labelled = None if queries is None else read_labelled_queries(queries)
    with closing(connect(engine_settings(**connection))) as engine:
        index = CalibratedIndex(engine, name, vector_field)
        meta = index.field.meta
        with load_index_encoder(
            index.field.index, meta.model, meta.fingerprint, model=model, device=device, precision=precision,
            threads=threads, report=say,
        ) as encoder:  # fmt: skip
            report_warnings(encoder, say)
            report = index.calibrate(encoder, labelled, sample=sample, seed=seed, k=k, keep=keep, report=say)
    click.echo(orjson.dumps(report.as_json()) if as_json else "\n".join(calibration_lines(report)))
