"""`es-sbert doctor`: check everything that a load or a search needs, and suggest remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import connection_options, encoder_options, engine_settings

if TYPE_CHECKING:
    from es_sbert.diagnostics.doctor import Finding


_LEVEL_LABELS = {"ok": "ok", "warning": "look", "error": "FAIL"}


@cloup.command()
@option_group(
    "Options",
    click.option("--index", help="Index or alias to look at as well."),
    click.option(
        "--json", "as_json", is_flag=True, help="One JSON object a finding and line: level, about, message, remedy."
    ),
)
@connection_options
@encoder_options
def doctor(
    index: str | None,
    as_json: bool,
    model: str | None,
    device: str,
    precision: str,
    threads: int | None,
    **connection: Any,
) -> int:
    """Look at everything that a load or a search needs, and say what to do.

    The model (does it open, and run on the device asked for?), the GPU and its libraries, the engine (version,
    health, licence, room on the disks), and with --index the rights of this user and the index itself: its
    model, documents without a vector, blocks, and settings that a load which was killed has left behind.

    Exit codes: 0 everything works, 1 something does not.

    \b
    Examples:
      es-sbert doctor
      es-sbert doctor --index docs --url https://search.example:9200
    """
    import orjson

    from es_sbert.messages import escape_unprintable

    findings = run_checks(index, model, device, precision, threads, connection)
    for finding in findings:
        if as_json:
            click.echo(orjson.dumps(finding.as_json()))
        else:
            click.echo(escape_unprintable(f"{_LEVEL_LABELS[finding.level]:4}  {finding.about}: {finding.message}"))
            if finding.remedy:
                click.echo(escape_unprintable(f"      {finding.remedy}"))
    return int(any(finding.level == "error" for finding in findings))


def run_checks(
    index: str | None, model: str | None, device: str, precision: str, threads: int | None, connection: dict[str, Any]
) -> list[Finding]:
    """All findings; an engine that cannot be reached is one of them.

    Raises:
        UsageError: options that contradict each other.
    """
    from contextlib import closing

    from es_sbert.diagnostics.doctor import (
        Finding,
        check_cuda,
        check_encoder,
        check_engine,
        check_index,
        inspect_index,
    )
    from es_sbert.engines.connect import connect
    from es_sbert.errors import EngineError

    settings = engine_settings(**connection)
    try:
        opened = connect(settings)
    except EngineError as error:
        findings = [*check_encoder(model, device, precision, threads)[1], *check_cuda(device)]
        return [*findings, Finding.of("engine", error)]
    with closing(opened) as engine:
        looked = None if index is None else inspect_index(engine, index)
        # What a search of the index would open: that of its vectors, unless another one is asked for.
        stored = {} if looked is None else looked.first_field_by_model
        needed = list(stored.values()) if model is None and stored else [None]
        checked = [check_encoder(model, device, precision, threads, field) for field in needed]
        findings = [finding for _, found in checked for finding in found]
        findings += check_cuda(device)
        findings += check_engine(engine, index)
        if looked is not None:
            findings += looked.findings
            models = {made_by: checked[n if model is None else 0][0] for n, made_by in enumerate(stored)}
            for state in looked.states:
                findings += check_index(engine, state, looked.fields, models)
    return findings
