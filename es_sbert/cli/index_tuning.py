"""`es-sbert index calibrate` and `advise`: measure an index and choose its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.interrupts import interrupt_by_any_signal
from es_sbert.cli.output import print_message, print_report
from es_sbert.settings import AdviceRequest, CalibrationOptions

if TYPE_CHECKING:
    from es_sbert.index.vector_field import VectorField
    from es_sbert.vectors import Vectors


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "--queries",
        type=shared.FILE_TYPE,
        help='Labeled queries, as JSON Lines of {"query": "a text", "ids": ["id of a relevant document", …]} or a '
        "judgement list of es-sbert evaluate.  [default: pseudo-queries, made of the sampled documents]",
    ),
    shared.setting_options(CalibrationOptions, "sample", "keep", "save", "max_unrelated"),
    shared.json_option(),
    shared.vector_field_option,
)
@shared.connection_options
@shared.encoder_options
def calibrate(name: str, save: bool, as_json: bool, **options: Any) -> None:
    """Recommend a minimum cosine for searches of the index NAME.

    A semantic query without min_cosine returns the k nearest documents, however distant they are. Which cosine is too
    low depends on the model and the texts. This command compares queries with documents that are relevant to them and
    with a random sample of other documents, and shows the effect of each minimum: recall is the share of relevant
    documents that it keeps, and unrelated the share of other documents that pass.

    Labeled queries are best. Without them, a query is made of each sampled document and compared with the rest
    of it: the first sentence with the other sentences; of a text of one sentence, the first half of the words with the
    whole text. These are not what users type, so the recommended
    value may be too high or too low for real queries.

    The recommended value keeps 95 % of the relevant documents (--keep). If more than 5 % of the unrelated documents
    pass it (--max-unrelated), it does not tell one from the other, and is not saved.

    With --save, hybrid searches and semantic queries through the gateway use the value unless they set
    min_cosine, or the gateway runs with --min-cosine.

    The value is for this model and this index: run the command again after a migration to another model. No other
    program should write to the index at the same time.

    \b
    Examples:
      es-sbert index calibrate docs --save
      es-sbert index calibrate docs --queries labeled.jsonl --keep 0.9
    """
    from es_sbert.diagnostics.index_calibration import CalibrateOptions, calibrate_index, calibration_lines
    from es_sbert.errors import CosinesOverlap

    chosen = shared.select_options(options, CalibrateOptions.__annotations__)
    try:
        report = calibrate_index(name, shared.engine_settings(options), report=print_message, save=save, **chosen)
    except CosinesOverlap as error:
        print_report(error.calibration.as_json(), calibration_lines(error.calibration), as_json=as_json)
        raise
    print_report(report.as_json(), calibration_lines(report), as_json=as_json)
    if save:
        saved = f"{name}.{options['vector_field']}"
        print_message(
            f"Saved for {saved}: hybrid searches and semantic queries through the gateway drop hits "
            f"below {report.recommended.row.min_cosine:.2f}. "
            "`es-sbert serve --min-cosine` replaces the value (-1 keeps all hits)."
        )
    else:
        print_message("With --save, hybrid searches and the gateway use the value for this index.")


def _embed_queries(file: Path, field: VectorField, options: Mapping[str, Any]) -> Vectors:
    """Embed the lines of a file that are not empty. *Shape:* ``(queries, dimensions)``."""
    from es_sbert.encoder.encoder import chosen_encoder, report_warnings
    from es_sbert.errors import SourceError
    from es_sbert.index.vector_field import check_field_model

    try:
        texts = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise SourceError(f"{file} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{file} is not UTF-8 text", "Write one query per line, in UTF-8.") from error
    if not texts:
        raise SourceError(f"{file} holds no queries", "Write one query per line.")
    loading: Any = {"report": print_message} | shared.encoder_arguments(options)
    with chosen_encoder(loading, (field.index, field.meta.model, field.meta.fingerprint)) as encoder:
        report_warnings(encoder, print_message)
        check_field_model(field, encoder.info.fingerprint, encoder.info.model)
        return encoder.encode(texts, "query")


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    shared.setting_options(AdviceRequest, "min_recall", "sample"),
    click.option(
        "--queries",
        "query_file",
        type=shared.FILE_TYPE,
        metavar="FILE",
        help="File of queries, one per line, to use instead of documents; real queries give better results.",
    ),
    shared.setting_options(AdviceRequest, "dimensions --dimensions N"),
    shared.json_option(),
    shared.vector_field_option,
)
@shared.connection_options
@option_group("Model, for --queries", shared.device_options)
def advise(name: str, query_file: Path | None, as_json: bool, **options: Any) -> None:
    """Measure searches of the index NAME, and recommend dimensions and index type for its vectors.

    First, 300 queries are searched for in NAME with several num_candidates, and their hits are compared with those of
    exact search, for which the command reads all vectors once. No other program should write to the index at that time.

    Then documents are sampled. For each layout (dimensions and index type, those without a graph only for up to 50,000
    vectors), their stored vectors are truncated and written to a temporary index on
    the same engine, which is deleted at the end. Recall@10 is the share of the ten nearest documents by full-length
    vectors that a search finds, with the settings of `es-sbert search`. Memory and disk are calculated for all vectors
    of the index. The layout with the least memory whose recall lies above --min-recall with 95 % confidence is
    recommended, with the command that changes the index to it, unless that saves less than 100 MB or 10 % of memory and
    of disk. NAME itself is only read.

    Recall in the whole index is lower than in the sample, because more documents compete: run the command again after
    the change. Truncated vectors lose little if the model supports it (Matryoshka).

    Names of temporary indices begin with es-sbert-advise-.

    \b
    Examples:
      es-sbert index advise docs
      es-sbert index advise docs --queries queries.txt --min-recall 0.98
      es-sbert index advise docs --dimensions 128
    """
    from dataclasses import asdict

    from es_sbert.diagnostics.index_advice import advice_lines
    from es_sbert.diagnostics.index_advice import advise as measure
    from es_sbert.index.vector_field import read_vector_field

    request = AdviceRequest(**shared.select_options(options, AdviceRequest.model_fields))
    with shared.open_engine(options) as engine, interrupt_by_any_signal():
        field = read_vector_field(engine, name, options["vector_field"])
        queries = None if query_file is None else _embed_queries(query_file, field, options)
        advice = measure(engine, name, field, request, queries, report=print_message)
    print_report(asdict(advice), advice_lines(advice), as_json=as_json)
