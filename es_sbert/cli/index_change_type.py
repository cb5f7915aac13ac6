"""`es-sbert index change-type`: change the index type of a vector field in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, require_terminal

if TYPE_CHECKING:
    from es_sbert.index.mapping import IndexType


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--index-type", required=True, help=f"The new type: {shared.INDEX_TYPES_HELP}."),
    click.option(
        "--force-merge",
        "merge",
        is_flag=True,
        help="Also rewrite existing vectors: this builds every graph again, and takes up to three times the index's "
        "disk space until it is done.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    shared.vector_field_option,
)
@shared.connection_options
def change_type(name: str, index_type: str, merge: bool, yes: bool, vector_field: str, **options: Any) -> None:
    """Change the index type of a vector field of the index NAME in place (Elasticsearch).

    Elasticsearch allows changes from flat types to graphs, and from finer numbers to coarser ones (hnsw, int8_hnsw,
    int4_hnsw, bbq_hnsw). They cannot be undone in place, so the command asks first. Any other change, including the
    reverse, needs a new index: `es-sbert index migrate`.

    New documents are stored in the new type at once. Existing documents follow when the engine merges their segments,
    which may take long or never happen; --force-merge does it now. Until then, searches and `es-sbert index recall`
    work on a mixture; `es-sbert index show` shows the share that is stored in the new type. The index stays available
    for searches.

    \b
    Examples:
      es-sbert index change-type docs --index-type int8_hnsw
      es-sbert index change-type docs --index-type bbq_hnsw --force-merge --yes
    """
    from es_sbert.index.earlier_segments import read_index_type_share
    from es_sbert.index.index_type_change import (
        change_index_type,
        check_force_merge,
        check_index_type_change,
        store_in_index_type,
    )
    from es_sbert.index.vector_field import require_index

    with shared.open_engine(options) as engine:
        before = check_index_type_change(engine, name, vector_field, index_type)
        if merge:
            check_force_merge(engine, name)
        if before != index_type and not (yes or _confirm_change(name, vector_field, before, index_type)):
            print_message("nothing was changed")
            return
        before = change_index_type(engine, name, vector_field, index_type)
        if before == index_type:
            print_message(f"{name}.{vector_field} already has the index type {index_type}")
        else:
            print_message(f"{name}.{vector_field}: {index_type} instead of {before}")
        if merge:
            print_message("Merging each shard into one segment …")
            store_in_index_type(engine, name, vector_field)
        share = read_index_type_share(engine, require_index(engine, name), vector_field)
    if not share.is_whole:
        print_message(f"{share.describe()}. {share.remedy}")
    elif merge:
        print_message(share.describe())


def _confirm_change(name: str, vector_field: str, before: IndexType, index_type: str) -> bool:
    """Explain the change and ask for confirmation."""
    require_terminal(f"a change from {before} to {index_type} cannot be undone in place")
    of_field = f"{name}.{vector_field}"
    print_message(
        f"Elasticsearch cannot change {of_field} back from {index_type} to {before}: that takes a new index "
        f"(`es-sbert index migrate {name} --index-type {before}`). Searches may find less; to measure both types on a "
        f"sample first: `es-sbert index advise {name} --index-type {before} --index-type {index_type}`."
    )
    return click.confirm(f"Change {of_field} from {before} to {index_type}?", err=True)
