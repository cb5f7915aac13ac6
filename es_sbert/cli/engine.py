"""`es-sbert engine`: run Elasticsearch or OpenSearch on this machine without Docker."""

from __future__ import annotations

from inspect import cleandoc

import click
import cloup

from es_sbert.cli.options import setting_option, setting_options
from es_sbert.cli.output import print_message, require_terminal
from es_sbert.engines.local import ENGINES, find_servers, start_engine, stop_engine
from es_sbert.engines.local.local_engine import unknown_engine
from es_sbert.errors import UsageError

_BUILD_TABLE = "\n".join(
    f"      {build.name:<15}{build.label:<22}{build.megabytes:>6,} MB  port {build.port}" for build in ENGINES.values()
)


@cloup.group(
    help=cleandoc(f"""Run a real search engine on this machine without Docker.

    The servers are the projects' own builds from Maven Central, downloaded once:

    \b
{_BUILD_TABLE}

    Builds of Elasticsearch lack some modules: docs/commands/engine.md lists them. Maven and a JDK 21 or newer are
    required. A server listens on this machine only, has no passwords, and keeps its data when stopped.

    \b
    All files are under $ES_SBERT_ENGINE_HOME. Its default is
      ~/.local/share/es-sbert/engines
      /var/lib/es-sbert/engines for root, whose servers run as the user nobody

    $ES_SBERT_ENGINE_JAVA_OPTS sets Java options of the servers.
    """)
)
def engine() -> None: ...


@engine.command()
@click.argument("name", default="es9")
@setting_options(start_engine, "port", "heap", "timeout")
def up(name: str, port: int | None, heap: str, timeout: float) -> None:
    """Start a server, or find a running one.

    The last line printed is its address. NAME is es9 (the default), es9-small, opensearch or opensearch-ml. Each --port
    is a separate server with its own data.

    Example: es-sbert engine up opensearch --heap 2g
    """
    click.echo(start_engine(name, port=port, heap=heap, timeout=timeout, progress=print_message).url)


@engine.command()
@click.argument("name", required=False)
@setting_option(start_engine, "port", help="Only the server on this port.")
@click.option("--all", "every", is_flag=True, help="Stop all servers that es-sbert started.")
@setting_option(stop_engine, "purge")
@click.option("--yes", is_flag=True, help="With --purge: do not ask before data is removed.")
def down(name: str | None, port: int | None, every: bool, purge: bool, yes: bool) -> None:
    """Stop servers.

    Data and logs are kept unless --purge is given. Without --port, the only running server is stopped, or the only one
    called NAME; if there are several, they are listed. Only servers that `es-sbert engine up` started are stopped.

    Example: es-sbert engine down es9 --port 9200 --purge
    """
    if yes and not purge:
        raise UsageError("--yes requires --purge, the only option that asks", "Leave --yes out, or add --purge.")
    if name is not None and name not in ENGINES:
        raise unknown_engine(name)
    found = [each for each in find_servers() if name in (None, each.name) and port in (None, each.port)]
    selected = [each for each in found if each.running]
    # A stopped server is purged only if it is named.
    if purge and (every or (not selected and (name or port))):
        selected = found
    listed = ", ".join(f"{each} ({'running' if each.running else 'stopped'})" for each in selected or found)
    if not selected:
        print_message(f"No such server is running{f': {listed}' if found else ''}.")
    if len(selected) > 1 and not every:
        raise UsageError(f"several servers match: {listed}", "Add NAME and --port of one, or --all.")
    if selected and purge and not yes:
        require_terminal(f"--purge removes the data of {listed}")
        click.confirm(f"Remove the data of {listed}?", abort=True, err=True)
    for each in selected:
        stop_engine(each, purge=purge)
        print_message(f"{each}: {'stopped' if each.running else 'was stopped'}; data {'removed' if purge else 'kept'}.")
