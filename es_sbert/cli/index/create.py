"""`es-sbert index create`: an index with a vector field for a model."""

from __future__ import annotations

import shlex
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.index.types import INDEX_TYPES
from es_sbert.cli.options import (
    connection_options,
    engine_settings,
    passage_overlap_option,
    text_template_option,
    vector_field_option,
)
from es_sbert.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from es_sbert.engines.protocol import Engine
    from es_sbert.index.ensure import VectorField


@cloup.command()
@click.argument("name")
@click.option(
    "--model",
    envvar="ES_SBERT_MODEL",
    default=DEFAULT_MODEL,
    show_default=True,
    show_envvar=True,
    help="Model folder, bundle, hub id, installed or registered name: gives the dimensions and the fingerprint.",
)
@option_group(
    "Options",
    vector_field_option,
    click.option("--index-type", help=f"How vectors are stored: {INDEX_TYPES}.  [default: hnsw]"),
    click.option(
        "--text-field",
        "text_fields",
        multiple=True,
        help="Field of the text that is embedded, dotted for nested ones; several are joined, each on its own lines.  "
        "[default: left to the first `es-sbert ingest`]",
    ),
    text_template_option,
    click.option(
        "--passages",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="One vector a passage of at most TOKENS tokens.  [default: one vector a document]",
    ),
    passage_overlap_option,
    click.option("--shards", type=click.IntRange(min=1), help="Primary shards.  [default: the engine's]"),
    click.option("--replicas", type=click.IntRange(min=0), help="Copies of each shard.  [default: the engine's]"),
)
@connection_options
def create(name: str, model: str, index_type: str | None, text_fields: tuple[str, ...], text_template: str | None,
           passages: int | None, passage_overlap: int | None, shards: int | None, replicas: int | None,
           vector_field: str, **connection: Any) -> None:  # fmt: skip
    """Create the index NAME with a vector field for a model.

    An index that is there already gets the field added. A field that is there already is checked: one of
    another model, or with other dimensions, is refused. `es-sbert ingest` does all this by itself; this
    command is for choosing the index type, passages, shards and replicas, and for indices whose documents
    are written through the gateway (`es-sbert serve`).

    The gateway embeds what --text-field or --text-template names. The text is kept in the mapping. On a field
    that has none yet, the command sets it; documents that the index holds already are embedded by
    `es-sbert ingest`. Once documents have vectors, another text is refused.

    Index types: hnsw keeps float32 vectors and a graph. int8_hnsw, int4_hnsw and bbq_hnsw need a quarter,
    an eighth and a thirtieth of its memory, and find a little less. flat has no graph: every search looks
    at every vector, which is exact, and fast enough up to some ten thousand documents.

    \b
    Examples:
      es-sbert index create docs
      es-sbert index create docs --text-field body
      es-sbert index create docs --text-template '{title}. {body}'
      es-sbert index create docs --index-type int8_hnsw --shards 3 --replicas 1
      es-sbert index create docs --passages 256
    """
    from es_sbert.bundle.checkpoint import read_model
    from es_sbert.bundle.resolve import resolve_model
    from es_sbert.encoder.tokenizer import SentenceTokenizer
    from es_sbert.engines.connect import connect
    from es_sbert.errors import UsageError
    from es_sbert.index.ensure import Outcome, ensure_vector_field
    from es_sbert.index.meta import PassageRules
    from es_sbert.index.text_options import check_own_names, read_text_options, text_options, vector_field_option
    from es_sbert.printable import printable

    text = read_text_options(text_fields, text_template)
    if text is not None:
        check_own_names({vector_field: text})
    loaded = read_model(resolve_model(model), model)
    rules = None
    if passages is not None:
        rules = PassageRules.of(passages, passage_overlap)
        SentenceTokenizer(loaded).splitter(
            rules.tokens, rules.overlap, "document"
        )  # refuses what the model cannot read
    elif passage_overlap is not None:
        raise UsageError("--passage-overlap is for passages", "Give --passages TOKENS too.")
    with closing(connect(engine_settings(**connection))) as engine:
        field = ensure_vector_field(
            engine, name, vector_field=vector_field, fingerprint=loaded.fingerprint, model_name=loaded.name,
            dimensions=loaded.dimensions, index_type=index_type, text=None if text is None else text.template,
            passages=rules, shards=shards, replicas=replicas,
            text_options=text_options(vector_field, text_fields, text_template),
        )  # fmt: skip
        is_changed = field.outcome in (Outcome.ADDED, Outcome.TEXT_SET)
        without_vector = _count_without_vector(engine, field) if is_changed and text is not None else 0
    what = {
        Outcome.CREATED: f"created {field.index} with the vector field {field.name}",
        Outcome.ADDED: f"added the vector field {field.name} to {field.index}",
        Outcome.TEXT_SET: f"set the text of the vector field {field.name} of {field.index}",
        Outcome.PRESENT: f"{field.index} has the vector field {field.name} already",
    }[field.outcome]
    of_text = "" if field.meta.text is None else f", text {printable(repr(field.meta.text))}"
    click.echo(
        f"{what}: {field.meta.dimensions} dimensions, {field.meta.index_type}, {field.meta.model}{of_text}", err=True
    )
    named = vector_field_option(vector_field)
    if field.meta.text is None:
        of_model = "" if model == DEFAULT_MODEL else f" --model {shlex.quote(model)}"
        click.echo(
            f"The text of {field.name} is not known yet, so the gateway refuses documents that are written through "
            f"it without a vector. Set it: `es-sbert index create {name}{of_model} --text-field FIELD{named}`, or load "
            f"documents by `es-sbert ingest --index {name} --text-field FIELD{named} FILE`, which sets it too.",
            err=True,
        )
    if without_vector:
        click.echo(
            f"Documents of {field.index} without a vector in {field.name}: {without_vector:,}. Embed them: "
            f"`es-sbert ingest --index {name}{named}`.",
            err=True,
        )


def _count_without_vector(engine: Engine, field: VectorField) -> int:
    """Documents that the field does not cover; 0 where this user may not read the index."""
    from es_sbert.errors import AccessDenied
    from es_sbert.index.layout import has_vector

    with suppress(AccessDenied):
        engine.refresh(field.index)
    with suppress(AccessDenied):
        return engine.count(field.index) - engine.count(field.index, has_vector(field.name, field.meta))
    return 0
