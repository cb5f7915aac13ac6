"""`es-sbert doctor`: check everything that a load or a search needs, and suggest remedies."""

from __future__ import annotations

from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import connection_options, encoder_options, engine_settings, json_option, select_options
from es_sbert.cli.output import print_message
from es_sbert.settings import RunOptions

_LEVEL_LABELS = {"ok": "ok", "warning": "look", "error": "FAIL"}


@cloup.command()
@option_group(
    "Options",
    click.option("--index", help="Also check this index or alias; several (a,b) or a pattern."),
    json_option("Print one JSON object per finding and line: level, about, message, remedy."),
)
@connection_options
@encoder_options
def doctor(index: str | None, as_json: bool, **options: Any) -> int:
    """Check everything that a load or a search needs, and say what to fix.

    Checks the model (whether it opens and runs on the given device), onnxruntime, and the engine (version, health, disk
    space). With --index it also checks the user's privileges and the index: its
    model, documents without a vector, texts in languages that the model was not trained on, blocks, and settings that a
    killed load did not restore.

    Exit codes: 0 everything works, 1 something does not.

    \b
    Examples:
      es-sbert doctor
      es-sbert doctor --index docs --url https://search.example:9200
    """
    from dataclasses import asdict

    import orjson

    from es_sbert.errors import UsageError
    from es_sbert.messages import escape_unprintable

    settings = engine_settings(options)
    # The first use of a model exports it, which takes a while.
    running: Any = {"report": print_message} | select_options(options, RunOptions.__annotations__)
    rows: list[dict[str, str]]
    try:
        from es_sbert.diagnostics.doctor import run_checks
    except UsageError as error:  # onnxruntime, which runs the model, cannot be imported
        rows = [{"level": "error", "about": "runtime", "message": error.message, "remedy": error.remedy}]
    else:
        rows = [asdict(finding) for finding in run_checks(settings, index, options["model"], running)]
    for row in rows:
        if as_json:
            click.echo(orjson.dumps(row))
            continue
        click.echo(escape_unprintable(f"{_LEVEL_LABELS[row['level']]:4}  {row['about']}: {row['message']}"))
        if row["remedy"]:
            click.echo(escape_unprintable(f"      {row['remedy']}"))
    return int(any(row["level"] == "error" for row in rows))
