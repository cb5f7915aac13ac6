"""`es-sbert index`: create and inspect indices with a vector field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.options import connection_options, engine_settings, vector_field_option
from es_sbert.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from es_sbert.index.describe import FieldSummary, IndexSummary

INDEX_TYPES = (
    "hnsw, int8_hnsw, int4_hnsw, bbq_hnsw, flat, int8_flat, int4_flat, bbq_flat; OpenSearch: hnsw, int8_hnsw, flat"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def index() -> None:
    """Create and inspect indices with a vector field."""


@index.command()
@click.argument("name")
@click.option(
    "--model",
    envvar="ES_SBERT_MODEL",
    default=DEFAULT_MODEL,
    show_default=True,
    show_envvar=True,
    help="Model folder, bundle, hub id or installed name: gives the dimensions and the fingerprint.",
)
@click.option("--index-type", help=f"How vectors are stored: {INDEX_TYPES}.  [default: hnsw]")
@click.option("--shards", type=click.IntRange(min=1), help="Primary shards.  [default: the engine's]")
@click.option("--replicas", type=click.IntRange(min=0), help="Copies of each shard.  [default: the engine's]")
@vector_field_option
@connection_options
def create(name: str, model: str, index_type: str | None, shards: int | None, replicas: int | None,
           vector_field: str, **connection: Any) -> None:  # fmt: skip
    """Create the index NAME with a vector field for a model.

    An index that is there already gets the field added. A field that is there already is checked: one of
    another model, or with other dimensions, is refused. `es-sbert ingest` does all this by itself; this
    command is for choosing the index type, shards and replicas.

    \b
    Index types: hnsw keeps float32 vectors and a graph. int8_hnsw, int4_hnsw and bbq_hnsw need a quarter,
    an eighth and a thirtieth of its memory, and find a little less. flat has no graph: every search looks
    at every vector, which is exact, and fast enough up to some ten thousand documents.

    \b
    Examples:
      es-sbert index create docs
      es-sbert index create docs --index-type int8_hnsw --shards 3 --replicas 1
    """
    from es_sbert.bundle.checkpoint import read_model
    from es_sbert.bundle.resolve import resolve_model
    from es_sbert.engines.connect import connect
    from es_sbert.index.ensure import Outcome, ensure_vector_field

    loaded = read_model(resolve_model(model), model)
    engine = connect(engine_settings(**connection))
    try:
        field = ensure_vector_field(
            engine, name, vector_field=vector_field, fingerprint=loaded.fingerprint, model_name=loaded.name,
            dimensions=loaded.dimensions, index_type=index_type, shards=shards, replicas=replicas,
        )  # fmt: skip
    finally:
        engine.close()
    what = {
        Outcome.CREATED: f"created {field.index} with the vector field {field.name}",
        Outcome.ADDED: f"added the vector field {field.name} to {field.index}",
        Outcome.PRESENT: f"{field.index} has the vector field {field.name} already",
    }[field.outcome]
    click.echo(f"{what}: {field.meta.dimensions} dimensions, {field.meta.index_type}, {field.meta.model}", err=True)


@index.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@connection_options
def show(name: str, as_json: bool, **connection: Any) -> None:
    """Show what the index NAME holds: documents, vectors, model, index type, size.

    \b
    Example:
      es-sbert index show docs
    """
    import orjson

    from es_sbert.engines.connect import connect
    from es_sbert.index.describe import describe_index
    from es_sbert.printable import printable_lines

    engine = connect(engine_settings(**connection))
    try:
        summary = describe_index(engine, name)
    finally:
        engine.close()
    click.echo(orjson.dumps(summary.as_json()) if as_json else printable_lines(_as_text(summary)))


@index.command()
@click.argument("name")
@connection_options
def repair(name: str, **connection: Any) -> None:
    """Put back the settings of the index NAME that a load which was killed has left changed.

    Do not run it while a load is under way: the load would go on with the settings put back, only slower.

    \b
    Example:
      es-sbert index repair docs
    """
    from es_sbert.engines.connect import connect
    from es_sbert.index.ensure import missing_index
    from es_sbert.index.load_settings import put_back

    engine = connect(engine_settings(**connection))
    try:
        if engine.get_index(name) is None:
            raise missing_index(name, engine)
        changed = put_back(engine, name)
    finally:
        engine.close()
    for setting, value in changed.items():
        click.echo(f"{setting}: {'the default' if value is None else value} again", err=True)
    if not changed:
        click.echo(f"{name}: no load has left its settings behind", err=True)


def _as_text(summary: IndexSummary) -> str:
    lines = [
        f"{summary.name} ({summary.engine})",
        f"  documents     {summary.documents:,}",
        f"  size          {'not told to this user' if summary.bytes is None else _size(summary.bytes)}",
        f"  other fields  {', '.join(summary.other_fields) or 'none'}",
    ]
    for field in summary.fields:
        lines += _field_lines(field)
    if not summary.fields:
        lines.append("  no vector field; add one: `es-sbert ingest` or `es-sbert index create`")
    return "\n".join(lines)


def _field_lines(field: FieldSummary) -> list[str]:
    meta = field.meta
    return [
        f"  vector field {field.name}",
        f"    model        {meta.model}",
        f"    fingerprint  {meta.fingerprint}",
        f"    dimensions   {meta.dimensions}",
        f"    index type   {meta.index_type}, {meta.similarity}",
        f"    text         {meta.text or 'not set before the first load'}",
        f"    vectors of   {meta.passages or 'whole texts, as far as the model reads them'}",
        f"    vectors      {field.vectors:,} documents, {field.current:,} of this model, {field.truncated:,} truncated",
    ]


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
