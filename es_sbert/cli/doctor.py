"""`es-sbert doctor`: check everything that a load or a search needs, and suggest remedies."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import connection_options, encoder_options, engine_settings, select_options
from es_sbert.cli.output import print_message
from es_sbert.cli.setting_names import as_options, with_options

if TYPE_CHECKING:
    from es_sbert.diagnostics.finding import Finding
    from es_sbert.encoder.encoder import LoadOptions


_LEVEL_LABELS = {"ok": "ok", "warning": "look", "error": "FAIL"}


@cloup.command()
@option_group(
    "Options",
    click.option("--index", help="Also check this index or alias; several (a,b) or a pattern."),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object per finding and line: level, about, message, remedy.",
    ),
)
@connection_options
@encoder_options
def doctor(index: str | None, as_json: bool, **options: Any) -> int:
    """Check everything that a load or a search needs, and say what to fix.

    Checks the model (whether it opens and runs on the given device), onnxruntime, the GPU and its libraries, and the
    engine (version, health, license, disk space). With --index it also checks the user's privileges and the index: its
    model, documents without a vector, texts in languages that the model was not trained on, blocks, and settings that a
    killed load did not restore.

    Exit codes: 0 everything works, 1 something does not.

    \b
    Examples:
      es-sbert doctor
      es-sbert doctor --index docs --url https://search.example:9200
    """
    import orjson

    from es_sbert.messages import escape_unprintable

    findings = _run_checks(index, options)
    for finding in findings:
        if as_json:
            click.echo(orjson.dumps(with_options(finding.as_json())))
        else:
            line = f"{_LEVEL_LABELS[finding.level]:4}  {finding.about}: {finding.message}"
            click.echo(as_options(escape_unprintable(line)))
            if finding.remedy:
                click.echo(as_options(escape_unprintable(f"      {finding.remedy}")))
    return int(any(finding.level == "error" for finding in findings))


def _run_checks(index: str | None, options: dict[str, Any]) -> list[Finding]:
    """Run all checks. An engine that cannot be reached is reported as a finding.

    Without onnxruntime, no check runs, and the only finding says so.

    Raises:
        UsageError: options conflict.
    """
    from es_sbert.diagnostics.finding import Finding
    from es_sbert.engines.connect import connect
    from es_sbert.errors import EngineError, UsageError

    try:
        from es_sbert.diagnostics import doctor as checks
    except UsageError as error:  # onnxruntime, which runs the model, cannot be imported
        return [Finding.from_error("runtime", error)]
    settings, model, device = engine_settings(options), options["model"], options["device"]
    running = cast("LoadOptions", select_options(options, ("device", "precision", "runtime", "threads")))
    running["report"] = print_message  # the first use of a model exports it, which takes a while
    check_model = partial(checks.check_encoder, model, running)
    try:
        opened = connect(settings)
    except EngineError as error:
        return [*check_model()[1], *checks.check_runtime(device), Finding.from_error("engine", error)]
    with closing(opened) as engine:
        looked = None if index is None else checks.inspect_index(engine, index)
        # Check the model that a search of the index would open: that of its vectors, unless an option names another.
        stored = {} if looked is None else looked.first_field_by_model
        needed = list(stored.values()) if model is None and stored else [None]
        checked = [check_model(field) for field in needed]
        findings = [finding for _, found in checked for finding in found]
        findings += checks.check_runtime(device)
        findings += checks.check_engine(engine, settings, index)
        if looked is not None:
            findings += looked.findings
            models = {made_by: checked[n if model is None else 0][0] for n, made_by in enumerate(stored)}
            for state in looked.states:
                findings += checks.check_index(engine, state, looked.fields, models)
    # Several checks read the mapping of an index, and each reports what is wrong with it.
    return list(dict.fromkeys(findings))
