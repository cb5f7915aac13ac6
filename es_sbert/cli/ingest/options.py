"""Options of `es-sbert ingest`, and how they become the settings of a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.options import F, Number, format_option, stacked

if TYPE_CHECKING:
    from es_sbert.ingest.settings import IngestSettings


DRY_RUN_DOCUMENTS = 5


def source_options(function: F) -> F:
    """What is loaded."""
    return stacked(
        format_option,
        click.option("--sql", metavar="QUERY", help="Load the rows of this query, in place of FILE."),
        click.option(
            "--database",
            envvar="ES_SBERT_DATABASE",
            show_envvar=True,
            metavar="URL",
            help="Database to ask, as SQLAlchemy writes its address; with a password, better by the variable or a "
            "file.",
        ),
        click.option(
            "--database-file", type=click.Path(path_type=Path), help="File that holds the address of the database."
        ),
        click.option("--id-field", help="Field of the id.  [default: a hash of the content]"),
        click.option(
            "--max-document-bytes",
            type=click.IntRange(min=1024),
            default=16 << 20,
            show_default=True,
            help="Longer documents are not loaded.",
        ),
    )(function)


def vector_options(function: F) -> F:
    """Which vectors are made of it; `vector_field_option` belongs to these."""
    return stacked(
        click.option(
            "--text-field",
            "text_fields",
            multiple=True,
            help="Field of the text, dotted for nested ones; several are joined, each on its own lines.  "
            "[default: what the index was loaded with, else text]",
        ),
        click.option("--text-template", help="Text made of several fields, e.g. '{title}. {body}'."),
        click.option(
            "--replace-text-template",
            is_flag=True,
            help="With no FILE: embed all documents anew from the text given, where their vectors were made from "
            "another; asks first.",
        ),
        click.option(
            "--vector",
            "vectors",
            multiple=True,
            metavar="NAME[=TEMPLATE]",
            help="In place of --vector-field and --text-…: a vector field and its text, e.g. "
            "'title_vector={title}'; repeat it "
            "for several. TEMPLATE may be left out where the index has the field.",
        ),
        click.option(
            "--passages",
            multiple=True,
            metavar="[NAME=]TOKENS",
            help="Cut long texts, on ends of sentences, into passages of at most TOKENS tokens, each with a vector "
            "of its own; "
            "for a new vector field.  [default: one vector of what the model reads]",
        ),
        click.option(
            "--passage-overlap",
            type=click.IntRange(min=0),
            metavar="TOKENS",
            help="Most tokens that a passage shares with the next.  [default: an eighth of --passages]",
        ),
        click.option(
            "--index-type",
            help="Index type of a new vector field: hnsw, int8_hnsw, flat, …; see `es-sbert index create`.",
        ),
    )(function)


def course_options(function: F) -> F:
    """How the load goes, and what becomes of what it meets."""
    return stacked(
        click.option(
            "--dry-run",
            "dry_run",
            is_flag=False,
            flag_value=str(DRY_RUN_DOCUMENTS),
            metavar="[N]",
            help=f"Write nothing: show the texts of the first N documents ({DRY_RUN_DOCUMENTS}) exactly as they would "
            "be embedded, and the mapping.",
        ),
        click.option(
            "--max-errors",
            metavar="N|N%|off",
            help="Stop once more than this many documents cannot be loaded, or more than this part of those read, "
            "after the first 1,000.  [default: 10%; off with --retry and --watch]",
        ),
        click.option(
            "--dead-letters",
            type=click.Path(path_type=Path),
            help="Documents that cannot be loaded are appended here.  [default: INDEX.dead-letters.jsonl]",
        ),
        click.option(
            "--state",
            type=click.Path(path_type=Path),
            help="What a load that is killed goes on from; removed at its end.  [default: beside the first FILE]",
        ),
        click.option(
            "--load-settings",
            type=click.Choice(["auto", "fast", "keep"]),
            default="auto",
            show_default=True,
            help="Switch refreshes and replicas off until the load ends: auto, in an index that it creates; fast, "
            "in any.",
        ),
        click.option(
            "--prune",
            is_flag=True,
            help="At the end, remove documents that an earlier load wrote and that the source no longer has; asks "
            "first.",
        ),
        click.option(
            "--yes",
            is_flag=True,
            help="Do not ask before --prune removes documents or --replace-text-template replaces vectors.",
        ),
        click.option(
            "--watch",
            "watch_seconds",
            is_flag=False,
            flag_value=5.0,
            type=Number(min=0, min_open=True),
            metavar="[SECONDS]",
            help="With no FILE: afterwards, go on embedding what other writers add or change, looking every SECONDS "
            "(5).",
        ),
        click.option(
            "--retry",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Try the documents of a dead-letter file once more; those that fail again end in --dead-letters.",
        ),
        click.option(
            "--batch-window",
            type=click.IntRange(min=1),
            default=2048,
            show_default=True,
            help="Texts that are sorted by length and embedded together.",
        ),
        click.option(
            "--bulk-bytes",
            type=click.IntRange(min=1024),
            default=5 << 20,
            show_default=True,
            help="Largest body of a bulk request.",
        ),
        click.option(
            "--retry-seconds",
            type=Number(min=0),
            default=300.0,
            show_default=True,
            help="How long to wait for an engine that is overloaded or does not answer.",
        ),
    )(function)


def cluster_options(function: F) -> F:
    """Where it runs."""
    return stacked(
        click.option(
            "--ray",
            metavar="ADDRESS",
            help="Load on the machines of a Ray cluster: host:port, auto where this machine belongs to it, or local.",
        ),
        click.option(
            "--ray-workers",
            type=click.IntRange(min=1),
            help="Workers on the Ray cluster, each with a GPU or --threads CPUs.  [default: all that fit]",
        ),
        click.option(
            "--ray-part-bytes",
            type=click.IntRange(min=1024),
            default=16 << 20,
            show_default=True,
            help="Long files are cut into parts of so many bytes for the workers.",
        ),
    )(function)


def ingest_settings(*, format: str, database: str | None, database_file: Path | None, load_settings: str,
                    files: tuple[str, ...], dry_run: str | None, max_errors: str | None,
                    **given: Any) -> IngestSettings:  # fmt: skip
    """The settings of a load; the other options have the settings' own names.

    Raises:
        UsageError: the file with the database's address cannot be read, or an option cannot.
    """
    from pydantic import SecretStr

    from es_sbert.credentials import read_secret_file
    from es_sbert.errors import UsageError
    from es_sbert.ingest.error_limit import ErrorLimit
    from es_sbert.ingest.settings import IngestSettings, LoadSettings
    from es_sbert.ingest.sources.formats import Format

    shown = None
    if dry_run is not None:
        # What follows the bare option is taken for its value, and may be the first FILE.
        is_number = dry_run.isascii() and dry_run.isdigit()
        shown, files = (int(dry_run), files) if is_number else (DRY_RUN_DOCUMENTS, (dry_run, *files))
        if shown < 1:
            raise UsageError("--dry-run shows at least one document", "Give --dry-run 1 or more.")
    address = read_secret_file(database_file, "database's address") if database_file else database
    return IngestSettings(
        format=None if format == "auto" else Format(format),
        database=None if address is None else SecretStr(address),
        load_settings=LoadSettings(load_settings),
        files=files,
        dry_run=shown,
        max_errors=None if max_errors is None else ErrorLimit.parse(max_errors),
        **given,
    )
