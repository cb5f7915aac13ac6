"""`es-sbert dashboards install`: saved objects into Kibana or OpenSearch Dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.dashboards.options import contents_options, made
from es_sbert.cli.options import F, connection_options, engine_settings, public_url, stacked


def _kibana_options(function: F) -> F:
    file = click.Path(path_type=Path)
    return stacked(
        click.option("--kibana-url", envvar="ES_SBERT_KIBANA_URL", default="http://localhost:5601", show_default=True,
                     show_envvar=True, callback=public_url,
                     help="Address of Kibana or OpenSearch Dashboards, with its base path."),
        click.option("--kibana-username", envvar="ES_SBERT_KIBANA_USERNAME", show_envvar=True,
                     help="User name for Kibana; give its password in ES_SBERT_KIBANA_PASSWORD or a file.  [default: "
                          "the engine's credentials]"),
        click.option("--kibana-password-file", envvar="ES_SBERT_KIBANA_PASSWORD_FILE", type=file,
                     help="File that holds that password."),
        click.option("--kibana-api-key-file", envvar="ES_SBERT_KIBANA_API_KEY_FILE", type=file,
                     help="File that holds an API key (or ES_SBERT_KIBANA_API_KEY)."),
        click.option("--kibana-ca-certs", envvar="ES_SBERT_KIBANA_CA_CERTS", show_envvar=True, type=file,
                     help="PEM file of the authority that signed its certificate."),
        click.option("--space", help="Kibana's space.  [default: the default one]"),
        click.option("--tenant", help="Tenant of OpenSearch Dashboards with security: global, __user__ or a name."),
        click.option("--if-exists", type=click.Choice(["replace", "fail", "copy"]), default="replace",
                     show_default=True, help="What becomes of objects that an earlier install made."),
    )(function)  # fmt: skip


@cloup.command()
@option_group(
    "Options",
    contents_options,
    _kibana_options,
)
@connection_options
def install(index: str, search_log: str, report_index: str, space: str | None, tenant: str | None, if_exists: str,
            kibana_url: str, kibana_username: str | None, kibana_password_file: Path | None,
            kibana_api_key_file: Path | None, kibana_ca_certs: Path | None, **connection: Any) -> None:  # fmt: skip
    """Install a data view, a saved search and dashboards for an index.

    The data view hides vectors. One dashboard shows the load: documents by model, tokens, truncated texts, when
    they were embedded, what failed. The other one shows searches: rate, latency, queries without a hit. Both
    grow with what is there: reports of loads (`es-sbert ingest --report-index`) and the gateway's log
    (`es-sbert serve --search-log`). Installing again brings everything up to date.

    \b
    Examples:
      es-sbert dashboards install --index docs
      es-sbert dashboards install --index docs --kibana-url https://kibana.example:5601 --space search
      es-sbert dashboards install --index docs --kibana-url http://localhost:5601 --tenant global
    """
    from es_sbert.extras import require

    require("serve", "httpx")
    from es_sbert.dashboards.address import KibanaSettings, kibana_address
    from es_sbert.dashboards.install import IfThere, Place
    from es_sbert.dashboards.install import install as import_objects

    settings = engine_settings(**connection)
    kibana = KibanaSettings.beside(
        settings, url=kibana_url, username=kibana_username, password_file=kibana_password_file,
        api_key_file=kibana_api_key_file, ca_certs=kibana_ca_certs,
    )  # fmt: skip
    place = Place(kibana_address(kibana), space, tenant)
    bundle = made(settings, index, search_log, report_index)
    done = import_objects(place, bundle.product, bundle.objects, IfThere(if_exists))
    click.echo(f"{done.objects} objects are in {bundle.product.label} at {place.url}", err=True)
    for title, url in done.dashboards.items():
        click.echo(f"{title}: {url}")
