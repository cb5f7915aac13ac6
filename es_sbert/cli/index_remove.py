"""`es-sbert index remove`: remove everything that es-sbert has added to an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup
from click.core import ParameterSource
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.index_migrate import max_hold_option, replace_index_option, run_and_print
from es_sbert.cli.output import print_message, print_report, require_terminal

if TYPE_CHECKING:
    from es_sbert.engines.engine import Engine
    from es_sbert.engines.index_state import IndexState


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "--reindex",
        is_flag=True,
        help="Remove the fields from the mapping too: copy the documents into a new index without them while the old "
        "one is in use, and swap the alias NAME.",
    ),
    click.option("--name", "new_name", help="With --reindex: name of the new index.  [default: NAME-plain]"),
    replace_index_option,
    max_hold_option,
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    shared.retry_seconds_option,
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."),
)
@shared.connection_options
def remove(name: str, yes: bool, **options: Any) -> int:
    """Remove everything that es-sbert has added to the index NAME: vectors, their metadata, `_meta` and settings.

    Fields that `duplicates` and `cluster` have written are removed too. Documents are written again without these
    fields. If another program has changed a document since it was read, it is read again first. All other fields are
    kept. Searches, loads and the gateway see no vector field from the start. Run the same command again to resume a
    killed run. The result says what cannot be removed, such as the fields in the mapping.

    Engines cannot remove a field from a mapping. With --reindex, the documents are copied into a new index instead, as
    `index migrate` does: the old index stays in use until the alias is swapped, and is then kept, but accepts no
    writes. `index migrate NAME --rollback` returns to it, `index migrate NAME --drop` deletes it.

    \b
    Examples:
      es-sbert index remove docs
      es-sbert index remove docs --yes --json
      es-sbert index remove docs --reindex
    """
    from es_sbert.errors import UsageError
    from es_sbert.index.vector_field import require_index
    from es_sbert.migration.remove_vectors import removable_fields

    has_max_hold = click.get_current_context().get_parameter_source("max_hold") is ParameterSource.COMMANDLINE
    if not options["reindex"] and (options["new_name"] or options["replace_index"] or has_max_hold):
        raise UsageError(
            "--name, --replace-index and --max-hold require --reindex", "Add --reindex, or leave them out."
        )
    if not yes:
        require_terminal("vectors would be removed")
    with shared.open_engine(options) as engine:
        index = require_index(engine, name)
        fields = ", ".join(removable_fields(index)) or "the metadata in its mapping"
        deleted = f" and delete {index.name} after that" if options["replace_index"] else ""
        copy_question = f"Copy {index.name} to an index without {fields}{deleted}?"
        question = copy_question if options["reindex"] else f"Remove {fields} from {index.name}?"
        if not yes and not click.confirm(question, err=True):
            print_message("nothing was changed")
            return 0
        if options["reindex"]:
            return _copy_without(engine, name, options)
        _remove_in_place(engine, index, fields, options)
        return 0


def _copy_without(engine: Engine, name: str, options: dict[str, Any]) -> int:
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.migration.prepare_migration import MigrationRequest

    request = MigrationRequest(
        alias=name,
        name=options["new_name"],
        replace_index=options["replace_index"],
        max_hold=options["max_hold"],
        remove=True,
    )
    return run_and_print(engine, None, request, LoadControl(), options, print_message, quiet=False)


def _remove_in_place(engine: Engine, index: IndexState, fields: str, options: dict[str, Any]) -> None:
    from es_sbert.engines.retry import RetryPolicy
    from es_sbert.messages import pluralize
    from es_sbert.migration.remove_vectors import remove_vectors

    policy = RetryPolicy(options["retry_seconds"])
    done = remove_vectors(
        engine, index.name, policy=policy, report=lambda why: print_message(f"waiting for the engine: {why}")
    )
    if options["as_json"]:
        print_report(done.model_dump(mode="json"), (), as_json=True)
    print_message(f"{pluralize(done.documents, 'document')} of {done.index} written without {fields}")
    for sentence in done.remains:
        print_message(sentence)
