"""Check for obstacles to a start: ports in use, data of a later version, or data of a different cluster."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_builds import ENGINES, EngineBuild
from es_sbert.engines.local.engine_home import EngineHome, RunningEngine, down_command, up_command
from es_sbert.engines.local.server_health import listening_version, port_is_free
from es_sbert.errors import LocalEngineError


def check_nodes(build: EngineBuild, ports: Sequence[int], running: Sequence[RunningEngine]) -> None:
    """Refuse ports on which a single server or another cluster of this name runs.

    Args:
        ports: HTTP ports of all nodes.
        running: The servers of this name that run on some of these ports.

    Raises:
        LocalEngineError: a running server does not belong to this cluster.
    """
    for engine in running:
        if tuple(ports) == engine.all_ports:
            continue
        first, nodes = engine.all_ports[0], len(engine.all_ports)
        if nodes == 1:
            what = f"port {engine.port} is in use by {engine.name} {engine.version}, which runs as a single server"
        else:
            number = engine.all_ports.index(engine.port) + 1
            what = (
                f"port {engine.port} is in use by {engine.name} {engine.version}, which runs as node {number} of a "
                f"cluster of {nodes} nodes on ports {_listed(engine.all_ports)}"
            )
        apart = max(*ports, *engine.all_ports) + 1
        raise LocalEngineError(
            what,
            f"Use that one: `{up_command(build.name, first, nodes)}`. Or stop it first: "
            f"`{down_command(build.name, first)}`. Or choose another port: "
            f"`{up_command(build.name, apart, len(ports))}`",
        )


def check_ports_free(build: EngineBuild, ports: Sequence[int], missing: Sequence[int], layout: EngineHome) -> None:
    """Check the ports of the nodes that have to be started.

    Args:
        ports: HTTP ports of all nodes.
        missing: The ports whose node does not run.

    Raises:
        LocalEngineError: a port that the nodes need is not available.
    """
    for port in missing:
        _check_port_free(build, ports, port, layout)
        transport = server_process.transport_port(port)
        if len(ports) > 1 and not port_is_free(transport):
            raise LocalEngineError(
                f"port {transport} is in use, but the node on port {port} needs it to communicate with the other nodes",
                f"Choose another port: `{up_command(build.name, ports[0] + len(ports), len(ports))}`",
            )


def _check_port_free(build: EngineBuild, ports: Sequence[int], port: int, layout: EngineHome) -> None:
    try:
        if port_is_free(port):
            return
    except PermissionError:
        raise LocalEngineError(
            f"port {port} is reserved for root on this machine", f"Choose one above 1023: `port={build.port}`"
        ) from None
    other_port = up_command(build.name, port + 1, len(ports))
    for engine in layout.running_engines():
        if engine.port == port:
            raise LocalEngineError(
                f"port {port} is in use by {engine.name} {engine.version}, which es-sbert started",
                f"Stop that first: `{engine.down_command}`, or choose another port: `{other_port}`",
            )
    version = listening_version(port)
    if version is None:
        raise LocalEngineError(f"port {port} is in use by another program", f"Choose another port: `{other_port}`")
    raise LocalEngineError(
        f"port {port} is in use by a search engine {version} that es-sbert did not start",
        f'Use that one with `url="http://localhost:{port}"`, or choose another port: `{other_port}`',
    )


def check_data(build: EngineBuild, ports: Sequence[int], layout: EngineHome) -> None:
    """Refuse data that these servers cannot open: they would exit with a Java exception, or wait forever.

    Args:
        ports: HTTP ports of all nodes.

    Raises:
        LocalEngineError: the data is of a later version, of a single server, or of another cluster.
    """
    for port in ports:
        _check_data_version(build, ports, port, layout)
        work = layout.work(build.name, port)
        if not server_process.holds_data(work):
            continue
        written = server_process.cluster_ports(build, work)
        expected = tuple(ports) if len(ports) > 1 else ()
        if written is None or written == expected:
            continue
        first = written[0] if written else port
        whose = f"a cluster of {len(written)} nodes on ports {_listed(written)}" if written else "a single server"
        raise LocalEngineError(
            f"{work} holds data of {whose}",
            f"Start that: `{up_command(build.name, first, len(written) or 1)}`. "
            f"Or remove the data: `{down_command(build.name, first)} --purge`",
        )


def _check_data_version(build: EngineBuild, ports: Sequence[int], port: int, layout: EngineHome) -> None:
    work = layout.work(build.name, port)
    found = server_process.data_version(build, work)
    if found is None or Version(found) <= Version(build.version):
        return
    remedy = f"Remove it: `{down_command(build.name, port)} --purge`"
    # The names of nodes are part of a cluster's data, so its folders cannot be renamed.
    for other in ENGINES.values() if len(ports) == 1 else ():
        place = layout.work(other.name, port)
        if other.product == build.product and Version(other.version) >= Version(found) and not place.exists():
            keep = f"mv {work} {place} && {up_command(other.name, port)}"
            remedy = f"Keep it, with {other.label}: `{keep}`. Or remove it: `{down_command(build.name, port)} --purge`"
            break
    raise LocalEngineError(f"{work} holds data of {build.product} {found}, which {build.label} cannot open", remedy)


def _listed(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports))
