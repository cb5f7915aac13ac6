"""`es-sbert dashboards`: what Kibana and OpenSearch Dashboards show of an index; one module a command."""

from __future__ import annotations

import click

from es_sbert.cli.dashboards.export import export
from es_sbert.cli.dashboards.install import install


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboards() -> None:
    """Data views and dashboards for Kibana and OpenSearch Dashboards."""


for _command in (export, install):
    dashboards.add_command(_command)
