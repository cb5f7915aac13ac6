"""`es-sbert index remove`: take everything out of an index that es-sbert has put into it."""

from __future__ import annotations

from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, require_terminal


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--yes", is_flag=True, help="Do not ask."),
    shared.retry_seconds_option,
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."),
)
@shared.connection_options
def remove(name: str, yes: bool, as_json: bool, **options: Any) -> None:
    """Remove from the index NAME what es-sbert has put into it: vectors, their metadata, `_meta` and settings.

    Fields that `duplicates` and `cluster` have written are removed too. Documents are written without these fields,
    unless somebody else has written them since they were read; then they are read again. All other fields are kept.
    Searches, loads and the gateway see no vector field from the beginning on. A run that was killed is resumed by the
    same command. The result says what cannot be removed, such as the fields in the mapping.

    \b
    Examples:
      es-sbert index remove docs
      es-sbert index remove docs --yes --json
    """
    from es_sbert.engines.retry import RetryPolicy
    from es_sbert.index.vector_field import require_index
    from es_sbert.messages import pluralize
    from es_sbert.migration.remove_vectors import removable_fields, remove_vectors

    if not yes:
        require_terminal("vectors would be removed")
    with shared.open_engine(options) as engine:
        index = require_index(engine, name)
        fields = ", ".join(removable_fields(index)) or "the notes in its mapping"
        if not yes and not click.confirm(f"Remove {fields} from {index.name}?", err=True):
            print_message("nothing was changed")
            return
        policy = RetryPolicy(options["retry_seconds"])
        done = remove_vectors(
            engine, name, policy=policy, report=lambda why: print_message(f"waiting for the engine: {why}")
        )
    if as_json:
        click.echo(done.model_dump_json())
    print_message(f"{pluralize(done.documents, 'document')} of {done.index} written without {fields}")
    for setting, value in done.settings.items():
        print_message(f"{setting}: {'the default' if value is None else value} again")
    for sentence in done.remains:
        print_message(sentence)
