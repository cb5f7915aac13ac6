"""`es-sbert engine`: run Elasticsearch or OpenSearch on this machine without Docker."""

from __future__ import annotations

from inspect import cleandoc

import click
import cloup

from es_sbert.cli.options import FiniteFloatRange
from es_sbert.cli.output import print_message, require_terminal
from es_sbert.engines.local import (
    ENGINES,
    RunningEngine,
    find_build,
    folders_in_shared_use,
    purge_stopped,
    running_engines,
    start_cluster,
    start_engine,
    stop_cluster,
    stopped_servers,
)
from es_sbert.engines.local.engine_home import up_command
from es_sbert.engines.local.local_engine import DEFAULT_HEAP, DEFAULT_NODE_HEAP
from es_sbert.errors import UsageError

_BUILD_TABLE = "\n".join(
    f"      {build.name:<15}{build.label:<22}{build.megabytes:>6,} MB" for build in ENGINES.values()
)


@cloup.group(
    help=cleandoc(f"""Run a real search engine on this machine without Docker.

    The servers are the projects' own builds from Maven Central, downloaded once:

    \b
{_BUILD_TABLE}

    Builds of Elasticsearch lack some modules: `engine up` says which. Maven and a JDK 21 or newer are required
    (for opensearch2, a JDK 17 to 23). A server
    listens on this machine only, has no passwords, and keeps its data when stopped.

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
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"HTTP port.  [default: {', '.join(f'{b.port} for {b.name}' for b in ENGINES.values())}]",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 9),
    default=1,
    help="Number of nodes of the cluster, on consecutive HTTP ports.",
)
@click.option(
    "--heap",
    help=f"Java heap of each node: 512m, 1g, 4g.  [default: {DEFAULT_HEAP}, or {DEFAULT_NODE_HEAP} with several nodes]",
)
@click.option(
    "--timeout",
    type=FiniteFloatRange(min=0, min_open=True),
    default=180.0,
    help="Seconds to wait until the server answers.",
)
def up(name: str, port: int | None, nodes: int, heap: str | None, timeout: float) -> None:
    """Start a server or a cluster, or find a running one.

    The last line printed is its address. NAME is es9 (the default), es9-small, es8, opensearch,
    opensearch-ml or opensearch2. Each --port is a separate server with its own data. With --nodes, stopped nodes of the
    cluster are started again, and the last line is the address of the first node.

    \b
    Examples:
      es-sbert engine up opensearch --heap 2g
      es-sbert engine up es9 --nodes 3
    """
    if nodes == 1:
        url = start_engine(name, port=port, heap=heap or DEFAULT_HEAP, timeout=timeout, progress=print_message).url
    else:
        heap = heap or DEFAULT_NODE_HEAP
        cluster = start_cluster(name, nodes=nodes, port=port, heap=heap, timeout=timeout, progress=print_message)
        print_message(f"All {nodes} nodes: {','.join(cluster.urls)}")
        url = cluster.urls[0]
    click.echo(url)


@engine.command()
@click.argument("name", required=False)
@click.option("--port", type=click.IntRange(1, 65535), help="Stop only the server or cluster on this port.")
@click.option("--all", "every", is_flag=True, help="Stop all servers that es-sbert started.")
@click.option("--purge", is_flag=True, help="Also remove data and logs, including those of a stopped server.")
@click.option("--yes", is_flag=True, help="With --purge: do not ask before data of earlier runs is removed.")
def down(name: str | None, port: int | None, every: bool, purge: bool, yes: bool) -> None:
    """Stop servers, and all nodes of clusters.

    Data and logs are kept unless --purge is given. Without --port, the only running server or cluster is stopped, or
    the only one called NAME. The port of any node selects its whole cluster. Only servers that `es-sbert engine up`
    started are stopped.

    If `engine up` found a server running, or started it with data of an earlier run, --purge asks before it removes the
    data, which someone else may need.

    Example: es-sbert engine down es9 --port 9200 --purge
    """
    if name is not None and every:
        raise UsageError("NAME and --all cannot be combined", "Use one of the two.")
    if yes and not purge:
        raise UsageError("--yes requires --purge, the only option that asks", "Leave --yes out, or add --purge.")
    if name is not None:
        find_build(name)
    clusters = _by_cluster(running_engines())
    selected = [nodes for nodes in clusters if name in (None, nodes[0].name) and port in (None, *nodes[0].all_ports)]
    if port is None and not every and len(selected) > 1:
        listed = ", ".join(f"{nodes[0].name} on port {nodes[0].all_ports[0]}" for nodes in selected)
        raise UsageError(f"several servers are running: {listed}", "Set --port to that of one, or stop all with --all.")
    stopped = _stopped_to_purge(name, port, every=every, is_any_running=bool(selected)) if purge else []
    if purge and not yes:
        running = [(nodes[0].name, each) for nodes in selected for each in nodes[0].all_ports]
        _confirm_purge([*running, *stopped])
    for nodes in selected:
        stop_cluster(nodes, purge=purge)
        for each in nodes:
            print_message(f"Stopped {_describe(each)}; {'data removed' if purge else 'data kept'}.")
        if purge:
            _report_missing_nodes(nodes, "data removed.")
    removed = [folder for build, its_port in stopped for folder in purge_stopped(build, its_port)]
    for folder in removed:
        print_message(f"Removed {folder}.")
    if not selected and not removed:
        print_message("No such server is running.")


def _stopped_to_purge(
    name: str | None, port: int | None, *, every: bool, is_any_running: bool
) -> list[tuple[str, int]]:
    """Find the names and ports of stopped servers whose data is to be removed: only those that the user named.

    Raises:
        UsageError: several stopped servers match, and no server is running.
    """
    names = list(ENGINES) if every else [name] if name is not None else []
    found = [(build, its_port) for build in names for its_port in stopped_servers(build, port)]
    if every or port is not None:
        return found
    clusters = {stopped_servers(build, its_port)[its_port] for build, its_port in found}
    if is_any_running:
        for build, its_port in found:
            print_message(f"{build} on port {its_port} is not running; its data is kept.")
        return []
    if len(clusters) > 1:
        listed = ", ".join(f"{build} on port {its_port}" for build, its_port in found)
        raise UsageError(
            f"several stopped servers have data: {listed}", "Set --port to that of one, or remove all with --all."
        )
    return found


def _confirm_purge(servers: list[tuple[str, int]]) -> None:
    """Ask before removing data that someone else may need.

    Raises:
        UsageError: there is no terminal to ask.
        Abort: the user declines.
    """
    folders = [folder for name, port in servers for folder in folders_in_shared_use(name, [port])]
    if folders:
        listed = ", ".join(map(str, folders))
        require_terminal(f"--purge asks before it removes data that was there before the last `engine up`: {listed}")
        click.confirm(f"{listed}: this data was there before the last `engine up`. Remove it?", abort=True, err=True)


@engine.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_(as_json: bool) -> None:
    """Show the running servers, and the stopped nodes of their clusters.

    Example: es-sbert engine list --json
    """
    running = running_engines()
    for each in running:
        click.echo(each.model_dump_json() if as_json else f"{_describe(each)}, process {each.pid}, log {each.log}")
    for nodes in _by_cluster(running):
        name, ports = nodes[0].name, nodes[0].all_ports
        _report_missing_nodes(nodes, f"start it: {up_command(name, ports[0], len(ports))}")
    if not running and not as_json:
        print_message("No server is running. Start one: es-sbert engine up")


def _by_cluster(running: list[RunningEngine]) -> list[list[RunningEngine]]:
    """Group the nodes by cluster; a single server counts as a cluster of one node."""
    clusters: dict[tuple[str, tuple[int, ...]], list[RunningEngine]] = {}
    for each in running:
        clusters.setdefault((each.name, each.all_ports), []).append(each)
    return list(clusters.values())


def _report_missing_nodes(nodes: list[RunningEngine], what_next: str) -> None:
    first = nodes[0]
    for number, port in enumerate(first.all_ports, start=1):
        if port not in {node.port for node in nodes}:
            print_message(
                f"{first.name} on port {port}, node {number} of {len(first.all_ports)}, is not running; {what_next}"
            )


def _describe(running: RunningEngine) -> str:
    described = f"{running.name} {running.version} at {running.url}"
    if running.cluster_ports:
        number = running.cluster_ports.index(running.port) + 1
        described += f", node {number} of {len(running.cluster_ports)}"
    return described
