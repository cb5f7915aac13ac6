"""`es-sbert index adopt`: use vectors that another program wrote, without embedding the documents again."""

from __future__ import annotations

from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, print_report
from es_sbert.config import DEFAULT_MODEL


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    shared.vector_field_option,
    shared.text_field_option("Field of the text that was embedded", "text"),
    click.option("--text-template", help="Text that was made of several fields, e.g. '{title}. {body}'."),
    click.option(
        "--sample",
        type=click.IntRange(min=1, max=10_000),
        default=300,
        help="Documents to embed and compare before anything is written.",
    ),
    click.option(
        "--min-cosine",
        type=shared.FiniteFloatRange(min=0, max=1, min_open=True),
        default=0.999,
        help="Minimum cosine between a stored vector and the model's own vector.",
    ),
    click.option("--dry-run", is_flag=True, help="Check the sample and write nothing to the index."),
    shared.json_option,
    shared.retry_seconds_option,
)
@shared.connection_options
@option_group(
    "Model",
    shared.model_option,
    shared.device_option,
    shared.precision_option(
        "fp32", "Precision of the model's vectors. int8 may differ from fp32 by more than --min-cosine allows."
    ),
    shared.runtime_option,
    shared.threads_option,
)
def adopt(name: str, vector_field: str, as_json: bool, **options: Any) -> None:
    """Adopt the vectors that another program wrote to the index NAME, without embedding its documents again.

    The command embeds the texts of a random sample of documents and compares the result with the stored vectors.
    If 99 % of them agree, it writes the model and the text into the mapping, and into each document the metadata
    of its vector (model, hash of the text). From then on, searches, the gateway and loads treat the index as one that
    es-sbert loaded: a load embeds a document again when its text changes. If fewer agree, the command writes nothing,
    shows how far the vectors are from the model's, and exits with 1.

    Documents that fail are marked, and listed with --json: `es-sbert ingest --index NAME` embeds them again. Documents
    outside the sample are adopted without a comparison. Run the command again to resume after an interruption, or to
    adopt documents that were written since. No other program should write to the index at the same time: documents that
    it changes are not adopted, and the command exits with 1.

    \b
    Examples:
      es-sbert index adopt docs --model all-MiniLM-L6-v2 --text-field body --dry-run
      es-sbert index adopt docs --vector-field vector --text-template '{title} {body}'
    """
    from es_sbert.bundle.model_lookup import resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.encoder.encoder import Encoder, report_warnings
    from es_sbert.engines.retry import RetryPolicy, make_retrier
    from es_sbert.index.adopt import adopt_vectors, read_adoptable_field
    from es_sbert.index.adopt_report import adoption_lines
    from es_sbert.index.privileges import ADOPT, SEARCH, require_privileges
    from es_sbert.index.text_template import check_name_conflicts, parse_text_options

    text = parse_text_options(options["text_fields"], options["text_template"])
    with shared.open_engine(options) as engine:
        policy = RetryPolicy(options["retry_seconds"])
        retrying = make_retrier(policy, lambda reason: print_message(f"waiting for the engine: {reason}"))
        field = retrying(lambda: read_adoptable_field(engine, name, vector_field, text))
        check_name_conflicts({vector_field: field.template})
        retrying(lambda: require_privileges(engine, field.state.name, SEARCH if options["dry_run"] else ADOPT))
        encoder_options = shared.encoder_arguments(options)
        model_name = encoder_options.pop("model") or field.entry.model or DEFAULT_MODEL
        # Check the model before it is loaded, and perhaps exported, which takes a while.
        read = read_sentence_model(resolve_model(model_name), model_name)
        field.check_model(read.fingerprint, read.name, read.dimensions)
        with Encoder(model_name, report=print_message, **encoder_options) as encoder:
            report_warnings(encoder, print_message)
            settings = shared.select_options(options, ("sample", "min_cosine", "dry_run", "retry_seconds"))
            report = adopt_vectors(engine, field, encoder, **settings, report=print_message)
    print_report(report.as_json(), adoption_lines(report, name), as_json=as_json)
    if report.exit_code:
        raise SystemExit(report.exit_code)
