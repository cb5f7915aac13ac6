"""`es-sbert index remove`: remove everything that es-sbert has added to an index."""

from __future__ import annotations

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, print_report, require_terminal


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    shared.retry_seconds_option,
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."),
)
@shared.connection_options
def remove(name: str, yes: bool, retry_seconds: float, as_json: bool, **options: object) -> None:
    """Remove everything that es-sbert has added to the index NAME: vectors, their metadata, and `_meta`.

    Fields that `duplicates` and `cluster` have written are removed too. Documents are written again without these
    fields. If another program has changed a document since it was read, it is read again first. All other fields are
    kept. Searches, loads and the gateway see no vector field from the start. Run the same command again to resume a
    killed run. The result says what cannot be removed, such as fields in the mapping.

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
        fields = ", ".join(removable_fields(index)) or "the metadata in its mapping"
        if not yes and not click.confirm(f"Remove {fields} from {index.name}?", err=True):
            print_message("nothing was changed")
            return
        policy = RetryPolicy(retry_seconds)
        done = remove_vectors(
            engine, index.name, policy=policy, report=lambda why: print_message(f"waiting for the engine: {why}")
        )
    if as_json:
        print_report(done.model_dump(mode="json"), (), as_json=True)
    print_message(f"{pluralize(done.documents, 'document')} of {done.index} written without {fields}")
    for sentence in done.remains:
        print_message(sentence)
