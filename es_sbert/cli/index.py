"""`es-sbert index`: the command group, and the commands create, show and adopt."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.index_migrate import migrate, print_begun_migration
from es_sbert.cli.index_tuning import advise, calibrate
from es_sbert.cli.output import print_message, print_report
from es_sbert.config import DEFAULT_MODEL
from es_sbert.messages import pluralize, size_text
from es_sbert.settings import AdoptionOptions, IndexOptions, ModelName

if TYPE_CHECKING:
    from es_sbert.index.index_summary import FieldSummary, IndexSummary


@cloup.command()
@click.argument("name")
@shared.setting_option(
    ModelName,
    "model $ES_SBERT_MODEL",
    default=DEFAULT_MODEL,
    help="Model folder, bundle, hub id, or installed or registered name: gives the dimensions and the fingerprint.",
)
@option_group(
    "Options",
    shared.vector_field_option,
    shared.setting_options(
        IndexOptions, "index_type", "text_fields", "text_template", "passages TOKENS", "passage_overlap TOKENS",
        "shards", "replicas",
    ),
)  # fmt: skip
@shared.connection_options
def create(name: str, model: str, vector_field: str, **options: Any) -> None:
    """Create the index NAME with a vector field for a model.

    If the index exists, the field is added to it. If the field exists too, it is checked: a field of another model, or
    with other dimensions, is refused. `es-sbert ingest` does all this as well. Use this command to choose the index
    type, passages, shards and replicas, or for indices whose documents are written through the gateway (`es-sbert
    serve`).

    The gateway embeds the text that --text-field or --text-template selects. The selection is stored in the mapping. If
    a field has none yet, the command sets it; `es-sbert ingest` then embeds existing documents. Once documents have
    vectors, a different text is refused.

    Index types: hnsw keeps float32 vectors and a graph. int8_hnsw, int4_hnsw and bbq_hnsw need a quarter, an eighth and
    a thirtieth of its memory, with slightly lower recall. flat has no graph: every search compares every vector, which
    is exact, and fast enough up to about ten thousand documents.

    \b
    Examples:
      es-sbert index create docs
      es-sbert index create docs --text-field body
      es-sbert index create docs --text-template '{title}. {body}'
      es-sbert index create docs --index-type int8_hnsw --shards 3 --replicas 1
      es-sbert index create docs --passages 256
    """
    from es_sbert.index.text_template import format_vector_field_option
    from es_sbert.index.vector_field import FieldOutcome, ensure_vector_field, request_vector_field
    from es_sbert.messages import escape_unprintable

    request = request_vector_field(model, vector_field, **shared.select_options(options, IndexOptions.__annotations__))
    with shared.open_engine(options) as engine:
        field = ensure_vector_field(engine, name, request, shards=options["shards"], replicas=options["replicas"])
    what = {
        FieldOutcome.CREATED: f"created {field.index} with the vector field {field.name}",
        FieldOutcome.ADDED: f"added the vector field {field.name} to {field.index}",
        FieldOutcome.TEXT_SET: f"set the text of the vector field {field.name} of {field.index}",
        FieldOutcome.PRESENT: f"{field.index} already has the vector field {field.name}",
    }[field.outcome]
    of_text = "" if field.meta.text is None else f", text {escape_unprintable(repr(field.meta.text))}"
    print_message(f"{what}: {field.meta.dimensions} dimensions, {field.meta.index_type}, {field.meta.model}{of_text}")
    named = format_vector_field_option(vector_field)
    if field.meta.text is None:
        of_model = "" if model == DEFAULT_MODEL else f" --model {shlex.quote(model)}"
        print_message(
            f"The text of {field.name} is not known yet, so the gateway refuses documents that are written through "
            f"it without a vector. Set it: `es-sbert index create {name}{of_model} --text-field FIELD{named}`, or load "
            f"documents with `es-sbert ingest --index {name} --text-field FIELD{named} FILE`, which sets it too."
        )
    elif field.outcome in (FieldOutcome.ADDED, FieldOutcome.TEXT_SET):
        print_message(f"Embed the documents that it holds: `es-sbert ingest --index {name}{named}`.")


@cloup.command()
@click.argument("name")
@option_group("Options", shared.json_option())
@shared.connection_options
def show(name: str, as_json: bool, **options: Any) -> None:
    """Show what the index NAME holds: documents, vectors, model, index type, size.

    NAME may also be an alias, a data stream, a pattern, or several names separated by commas. With --json, each index
    is one object on its own line. A warning about languages is an estimate from a sample of 200 documents.

    \b
    Examples:
      es-sbert index show docs
      es-sbert index show 'logs-*'
    """
    from es_sbert.index.index_summary import describe_indices
    from es_sbert.messages import escape_unprintable_lines

    with shared.open_engine(options) as engine:
        summaries = describe_indices(engine, name)
        print_begun_migration(engine, name)
    for number, summary in enumerate(summaries):
        if number and not as_json:
            click.echo()
        print_report(summary.as_json(), list(map(escape_unprintable_lines, _summary_lines(summary))), as_json=as_json)


def _summary_lines(summary: IndexSummary) -> list[str]:
    lines = [
        f"{summary.name} ({summary.engine})",
        f"  documents     {summary.documents:,}",
        f"  size          {'not visible to this user' if summary.bytes is None else size_text(summary.bytes)}",
        f"  other fields  {', '.join(summary.other_fields) or 'none'}",
    ]
    for field in summary.fields:
        lines += _vector_field_lines(field)
    for name in summary.plain_vector_fields:
        lines.append(f"  {name} holds vectors of another program; adopt them: `es-sbert index adopt`")
    if summary.problem is not None:
        lines.append(f"  {summary.problem}")
    elif not summary.fields and not summary.plain_vector_fields:
        lines.append("  no vector field; add one: `es-sbert ingest` or `es-sbert index create`")
    return lines


def _vector_field_lines(field: FieldSummary) -> list[str]:
    meta = field.meta
    passages = "" if field.passages is None else f", {pluralize(field.passages, 'passage')}"
    return [
        f"  vector field {field.name}",
        f"    model        {meta.model}",
        f"    fingerprint  {meta.fingerprint}",
        f"    dimensions   {meta.dimensions}",
        f"    index type   {meta.index_type}, {meta.similarity}",
        f"    text         {meta.text or 'not set before the first load'}",
        f"    vectors of   {meta.passages or 'whole texts, as far as the model reads them'}",
        *(
            []
            if meta.min_cosine is None
            else [f"    min. cosine  {meta.min_cosine:g}, of hybrid searches and of the gateway"]
        ),
        f"    vectors      {pluralize(field.vectors, 'document')}{passages}, {field.current:,} of this model, "
        f"{field.truncated:,} truncated",
        *([] if field.language_warning is None else [f"    Warning: {'. '.join(field.language_warning)}"]),
    ]


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    shared.vector_field_option,
    shared.setting_options(AdoptionOptions, "text_fields", "text_template", "sample", "min_cosine", "dry_run"),
    shared.json_option(),
    shared.retry_seconds_option,
)
@shared.connection_options
@option_group(
    "Model",
    shared.model_option,
    shared.device_option,
    shared.precision_option(AdoptionOptions),
    shared.runtime_option,
    shared.threads_option,
)
def adopt(name: str, as_json: bool, **options: Any) -> None:
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
    from es_sbert.index.adopt import AdoptOptions, adopt_vectors

    chosen = shared.select_options(options, AdoptOptions.__annotations__)
    report = adopt_vectors(name, shared.engine_settings(options), report=print_message, **chosen)
    print_report(report.as_json(), report.lines(name), as_json=as_json)
    if report.exit_code:
        raise SystemExit(report.exit_code)


@cloup.group()
def index() -> None:
    """Create, inspect and change indices with a vector field."""


for _command in (adopt, advise, calibrate, create, migrate, show):
    index.add_command(_command)
