"""What both commands need: the index, the logs beside it, and the objects made of them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from es_sbert.cli.options import F, stacked
from es_sbert.config import EngineSettings

if TYPE_CHECKING:
    from es_sbert.dashboards.build import Bundle


def contents_options(function: F) -> F:
    """--index, --search-log, --report-index."""
    return stacked(
        click.option("--index", required=True, help="Index or alias that es-sbert has loaded."),
        click.option("--search-log", default="es-sbert-searches", show_default=True,
                     help="The gateway's log of searches, without the month."),
        click.option("--report-index", default="es-sbert-loads", show_default=True,
                     help="Index of the loads' reports."),
    )(function)  # fmt: skip


def made(settings: EngineSettings, index: str, search_log: str, report_index: str) -> Bundle:
    """The objects for an index; what had to be left out is said.

    Raises:
        EsSbertError: see `es_sbert.dashboards.build`.
    """
    from es_sbert.dashboards.build import build
    from es_sbert.engines.connect import connect
    from es_sbert.events import say

    with closing(connect(settings)) as engine:
        bundle = build(engine, index, searches=search_log, reports=report_index)
    for note in bundle.notes:
        say(f"{note[0].upper()}{note[1:]}")
    return bundle
