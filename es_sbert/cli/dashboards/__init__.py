"""`es-sbert dashboards`: what Kibana and OpenSearch Dashboards show of an index; one module a command."""

from __future__ import annotations

import cloup

from es_sbert.cli.dashboards.export import export
from es_sbert.cli.dashboards.install import install


@cloup.group()
def dashboards() -> None:
    """Data views and dashboards for Kibana and OpenSearch Dashboards."""


for _command in (export, install):
    dashboards.add_command(_command)
