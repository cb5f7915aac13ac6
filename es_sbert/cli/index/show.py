"""`es-sbert index show`: what an index holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import connection_options, engine_settings
from es_sbert.printable import counted
from es_sbert.tuning.bytes import size_text

if TYPE_CHECKING:
    from es_sbert.index.describe import FieldSummary, IndexSummary


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
)
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


def _as_text(summary: IndexSummary) -> str:
    lines = [
        f"{summary.name} ({summary.engine})",
        f"  documents     {summary.documents:,}",
        f"  size          {'not told to this user' if summary.bytes is None else size_text(summary.bytes)}",
        f"  other fields  {', '.join(summary.other_fields) or 'none'}",
    ]
    for field in summary.fields:
        lines += _field_lines(field)
    for name in summary.plain_vector_fields:
        lines.append(f"  {name} holds vectors of another program; take them over: `es-sbert index adopt`")
    if not summary.fields and not summary.plain_vector_fields:
        lines.append("  no vector field; add one: `es-sbert ingest` or `es-sbert index create`")
    return "\n".join(lines)


def _field_lines(field: FieldSummary) -> list[str]:
    meta = field.meta
    passages = "" if field.passages is None else f", {counted(field.passages, 'passage')}"
    return [
        f"  vector field {field.name}",
        f"    model        {meta.model}",
        f"    fingerprint  {meta.fingerprint}",
        f"    dimensions   {meta.dimensions}",
        f"    index type   {meta.index_type}, {meta.similarity}",
        f"    text         {meta.text or 'not set before the first load'}",
        f"    vectors of   {meta.passages or 'whole texts, as far as the model reads them'}",
        f"    vectors      {counted(field.vectors, 'document')}{passages}, {field.current:,} of this model, "
        f"{field.truncated:,} truncated",
    ]
