"""`es-sbert index repair`: settings that a killed load has left."""

from __future__ import annotations

from typing import Any

import click
import cloup

from es_sbert.cli.options import connection_options, engine_settings


@cloup.command()
@click.argument("name")
@connection_options
def repair(name: str, **connection: Any) -> None:
    """Put back the settings of the index NAME that a load which was killed has left changed.

    Do not run it while a load is under way: the load would go on with the settings put back, only slower.

    \b
    Example:
      es-sbert index repair docs
    """
    from es_sbert.engines.connect import connect
    from es_sbert.index.ensure import missing_index
    from es_sbert.index.load_settings import put_back

    engine = connect(engine_settings(**connection))
    try:
        if engine.get_index(name) is None:
            raise missing_index(name, engine)
        changed = put_back(engine, name)
    finally:
        engine.close()
    for setting, value in changed.items():
        click.echo(f"{setting}: {'the default' if value is None else value} again", err=True)
    if not changed:
        click.echo(f"{name}: no load has left its settings behind", err=True)
