"""The options of `es-sbert ingest`, and the load settings made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.logs import log_format_option

if TYPE_CHECKING:
    from es_sbert.ingest.ingest_settings import IngestSettings


DRY_RUN_DOCUMENTS = 5


# Options of an ordinary load come first.
_main_options = option_group(
    "Options",
    click.option("--index", required=True, help="Index or alias; created if it does not exist."),
    click.option("--id-field", help="Field of the id.  [default: a hash of the content]"),
    shared.text_field_option("Field of the text", "what the index was loaded with, else text"),
    shared.text_template_option,
    click.option(
        "--strip-html",
        is_flag=True,
        help="Embed texts without HTML tags; the documents keep them. For one field: '{title} {body|strip_html}'.",
    ),
    click.option(
        "--passages",
        multiple=True,
        metavar="[NAME=]TOKENS",
        help="Split long texts at ends of sentences into passages of at most TOKENS tokens, each with its own "
        "vector; for a new vector field.",
    ),
    shared.model_option,
    shared.url_option,
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
        "--watch",
        "watch_seconds",
        is_flag=False,
        flag_value=5.0,
        type=shared.FiniteFloatRange(min=0, min_open=True),
        metavar="[SECONDS]",
        help="Without FILE: keep embedding documents that other writers add or change; check every SECONDS (5).",
    ),
    click.option(
        "--retry", type=shared.FILE_TYPE, metavar="FILE", help="Load the documents of a dead-letter file again."
    ),
)
_document_options = option_group(
    "Documents",
    shared.file_options,
    click.option(
        "--types",
        multiple=True,
        metavar="COLUMN=TYPE,…",
        help="Types of columns of CSV and TSV files: string, integer, float, boolean or date (ISO 8601).  "
        "[default: number, boolean or date where the index has such a field; else string]",
    ),
    click.option(
        "--routing-field",
        help="Routing field, such as my_join.parent; documents without a value there are routed by their id.",
    ),
)
_vector_options = option_group(
    "Vectors",
    shared.vector_field_option,
    click.option(
        "--vector",
        "vectors",
        multiple=True,
        metavar="NAME[=TEMPLATE]",
        help="Instead of --vector-field and --text-…: a vector field and its text, e.g. 'title_vector={title}'; "
        "repeat it for several. TEMPLATE is optional if the index has the field.",
    ),
    shared.passage_overlap_option,
    click.option(
        "--index-type", help="Index type of a new vector field: hnsw, int8_hnsw, flat, …; see `es-sbert index create`."
    ),
    shared.element_type_option("float"),
    shared.device_options,
)
_load_options = option_group(
    "Loading",
    click.option(
        "--prune",
        is_flag=True,
        help="At the end, remove documents of earlier loads if the source no longer contains them; asks first.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask before --prune."),
    click.option(
        "--max-errors",
        metavar="N|N%|off",
        help="Stop if more than this number, or this percentage, of the documents cannot be loaded.  "
        "[default: 10%; off with --retry and --watch]",
    ),
    click.option(
        "--dead-letters",
        type=shared.FILE_TYPE,
        help="Append documents that cannot be loaded to this file.  [default: INDEX.dead-letters.jsonl]",
    ),
    click.option(
        "--state",
        type=shared.FILE_TYPE,
        help="Checkpoint from which a killed load resumes; removed when the load ends.  [default: next to the first "
        "FILE]",
    ),
    click.option(
        "--batch-window",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of texts that are sorted by length and embedded together.  [default: 2048, or 32768 on CUDA]",
    ),
    click.option(
        "--bulk-bytes",
        type=click.IntRange(min=1024),
        metavar="BYTES",
        default=5 << 20,
        help="Maximum size of a bulk request body.",
    ),
    shared.retry_seconds_option,
)
_output_options = option_group(
    "Output",
    shared.quiet_option,
    click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stdout."),
    click.option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics of the load at this port, on this machine only unless HOST is given. If the "
        "port is in use, the load goes on without metrics.",
    ),
    click.option(
        "--report-index", metavar="NAME", help="Also write the summary into this index, for `es-sbert dashboards`."
    ),
    log_format_option,
)
_ray_options = option_group(
    "Ray cluster",
    click.option("--ray", metavar="ADDRESS", help="Load on the machines of a Ray cluster: host:port, auto or local."),
    click.option(
        "--ray-workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Workers on the cluster, each with a GPU or --threads CPUs.  [default: all that fit]",
    ),
)
ingest_options = shared.combine_options(
    _main_options,
    _document_options,
    _vector_options,
    _load_options,
    _output_options,
    option_group("Connection", shared.credential_options, help=shared.connection_help),
    _ray_options,
)


def ingest_settings(files: tuple[str, ...], options: Mapping[str, Any]) -> IngestSettings:
    """Convert options to the settings of a load; most options have the names of the settings.

    Raises:
        UsageError: an option is invalid.
    """
    from es_sbert.errors import UsageError
    from es_sbert.ingest.ingest_settings import IngestSettings
    from es_sbert.ingest.ledger import ErrorLimit

    settings = shared.select_options(options, IngestSettings.model_fields) | {"files": files}
    if settings["dry_run"] is not None:
        # click takes the argument after a bare --dry-run for its value, but it may be the first FILE.
        value = settings["dry_run"]
        if value.isascii() and value.isdigit():
            settings["dry_run"] = int(value)
        else:
            settings |= {"dry_run": DRY_RUN_DOCUMENTS, "files": (value, *files)}
        if settings["dry_run"] < 1:
            raise UsageError("--dry-run must be at least 1", "Use --dry-run 1 or more.")
    if settings["max_errors"] is not None:
        settings["max_errors"] = ErrorLimit.parse(settings["max_errors"])
    if settings["format"] == "auto":
        settings["format"] = None
    return IngestSettings(**settings)
