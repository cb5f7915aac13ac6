"""`es-sbert index create`: an index with a vector field for a model."""

from __future__ import annotations

from typing import Any

import click

from es_sbert.cli.index.types import INDEX_TYPES
from es_sbert.cli.options import connection_options, engine_settings, vector_field_option
from es_sbert.config import DEFAULT_MODEL


@click.command()
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
@click.option(
    "--passages",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="One vector a passage of at most TOKENS tokens.  [default: one vector a document]",
)
@click.option(
    "--passage-overlap",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Most tokens that a passage shares with the next.  [default: an eighth of --passages]",
)
@click.option("--shards", type=click.IntRange(min=1), help="Primary shards.  [default: the engine's]")
@click.option("--replicas", type=click.IntRange(min=0), help="Copies of each shard.  [default: the engine's]")
@vector_field_option
@connection_options
def create(name: str, model: str, index_type: str | None, passages: int | None, passage_overlap: int | None,
           shards: int | None, replicas: int | None, vector_field: str, **connection: Any) -> None:  # fmt: skip
    """Create the index NAME with a vector field for a model.

    An index that is there already gets the field added. A field that is there already is checked: one of
    another model, or with other dimensions, is refused. `es-sbert ingest` does all this by itself; this
    command is for choosing the index type, passages, shards and replicas.

    \b
    Index types: hnsw keeps float32 vectors and a graph. int8_hnsw, int4_hnsw and bbq_hnsw need a quarter,
    an eighth and a thirtieth of its memory, and find a little less. flat has no graph: every search looks
    at every vector, which is exact, and fast enough up to some ten thousand documents.

    \b
    Examples:
      es-sbert index create docs
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

    loaded = read_model(resolve_model(model), model)
    rules = None
    if passages is not None:
        rules = PassageRules.of(passages, passage_overlap)
        SentenceTokenizer(loaded).splitter(
            rules.tokens, rules.overlap, "document"
        )  # refuses what the model cannot read
    elif passage_overlap is not None:
        raise UsageError("--passage-overlap is for passages", "Give --passages TOKENS too.")
    engine = connect(engine_settings(**connection))
    try:
        field = ensure_vector_field(
            engine, name, vector_field=vector_field, fingerprint=loaded.fingerprint, model_name=loaded.name,
            dimensions=loaded.dimensions, index_type=index_type, passages=rules, shards=shards, replicas=replicas,
        )  # fmt: skip
    finally:
        engine.close()
    what = {
        Outcome.CREATED: f"created {field.index} with the vector field {field.name}",
        Outcome.ADDED: f"added the vector field {field.name} to {field.index}",
        Outcome.PRESENT: f"{field.index} has the vector field {field.name} already",
    }[field.outcome]
    click.echo(f"{what}: {field.meta.dimensions} dimensions, {field.meta.index_type}, {field.meta.model}", err=True)
