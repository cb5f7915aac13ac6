"""Start, stop and list local engines: single servers, and clusters of several nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_builds import EngineBuild, find_build
from es_sbert.engines.local.engine_home import EngineHome, RunningEngine, storage_errors
from es_sbert.engines.local.engine_install import install
from es_sbert.engines.local.jdk import find_jdk
from es_sbert.engines.local.server_health import ProgressCallback, count_indices, wait_until_ready
from es_sbert.engines.local.server_process import Account
from es_sbert.engines.local.start_checks import check_data, check_nodes, check_ports_free
from es_sbert.errors import LocalEngineError, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.io.maven import find_maven
from es_sbert.messages import pluralize

DEFAULT_HEAP = "1g"
DEFAULT_NODE_HEAP = "512m"  # of each node of a cluster
DEFAULT_TIMEOUT = 180.0
SHUTDOWN_SECONDS = 30.0
_MAX_FEATURES_SHOWN = 9  # features that a build lacks
_MAX_NODES = 9


def _no_progress(message: str) -> None: ...


@dataclass(frozen=True)
class StartPlan:
    """Plan for starting a server or the nodes of a cluster.

    Attributes:
        build: The build, with the caller's settings.
        ports: HTTP ports of all nodes; a single server has one.
        heap: Java heap of each node.
        data: Folder with a data folder for each node; None keeps data in the nodes' work folders.
    """

    build: EngineBuild
    ports: tuple[int, ...]
    heap: str
    data: Path | None = None

    @property
    def cluster_ports(self) -> tuple[int, ...]:
        """The ports for `RunningEngine.cluster_ports`: empty for a single server."""
        return self.ports if len(self.ports) > 1 else ()

    def build_of(self, port: int) -> EngineBuild:
        """The build with the settings of one node."""
        if self.data is None:
            return self.build
        own = ("path.data", str(self.data / str(port)))
        return replace(self.build, settings=(*self.build.settings, own))


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that `start_cluster` started.

    Attributes:
        plan: The plan by which its nodes are started.
        nodes: The node of each port of the plan; a node that has ended since is still listed.
    """

    plan: StartPlan
    nodes: tuple[RunningEngine, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of all nodes."""
        return tuple(node.url for node in self.nodes)


def start_engine(
    name: str,
    *,
    port: int | None = None,
    heap: str = DEFAULT_HEAP,
    timeout: float = DEFAULT_TIMEOUT,
    settings: Mapping[str, str] | None = None,
    progress: ProgressCallback = _no_progress,
) -> RunningEngine:
    """Start a server, or find the one of that name that already runs on that port.

    Args:
        name: `es9`, `es9-small`, `es8`, `opensearch`, `opensearch-ml` or `opensearch2`.
        port: HTTP port on the loopback interface; None is the default of the build.
        heap: Java heap, `1g`; without effect on a server that already runs.
        timeout: Seconds to wait until it answers, counted from its start; the download is not limited.
        settings: Entries of its configuration file, such as `{"http.max_content_length": "1mb"}`, in addition to or
            instead of the defaults; without effect on a server that already runs.
        progress: Called with one line for each step.

    Raises:
        LocalEngineError: the server cannot be fetched, started or reached; if it was started, it is stopped again.
        UsageError: `heap` is not a heap size.
    """
    plan = _start_plan(name, 1, port, heap, settings, None)
    [engine] = _start(plan, timeout, progress)
    return engine


def start_cluster(
    name: str,
    *,
    nodes: int = 3,
    port: int | None = None,
    heap: str = DEFAULT_NODE_HEAP,
    timeout: float = DEFAULT_TIMEOUT,
    settings: Mapping[str, str] | None = None,
    data: Path | None = None,
    progress: ProgressCallback = _no_progress,
) -> RunningCluster:
    """Start a cluster, or those of its nodes that do not run, and wait until all have joined.

    Args:
        name: See `start_engine`.
        nodes: Number of nodes, 2 to 9.
        port: HTTP port of the first node; the others have the following ones. Nodes communicate with each other on
            ports that are 50 higher.
        heap: Java heap of each node.
        timeout: Seconds to wait until all nodes answer and have joined.
        settings: Entries of the configuration file of every node that is started now.
        data: Folder for the data of all nodes; None keeps them with the nodes' configuration and logs.
        progress: Called with one line for each step.

    Raises:
        LocalEngineError: as `start_engine`, or a single server or another cluster runs on these ports. Nodes that
            were started are stopped again.
        UsageError: `heap` is not a heap size, or the number of nodes is out of range.
    """
    if not 2 <= nodes <= _MAX_NODES:
        raise UsageError(f"a cluster cannot have {nodes} nodes", f"Start 2 to {_MAX_NODES} nodes.")
    plan = _start_plan(name, nodes, port, heap, settings, data)
    return RunningCluster(plan, _start(plan, timeout, progress))


def start_node(cluster: RunningCluster, port: int, *, timeout: float = DEFAULT_TIMEOUT) -> RunningCluster:
    """Start one stopped node of a cluster with its data, and wait until it has joined the others.

    Args:
        port: HTTP port of the node.

    Returns:
        The cluster with the restarted node.

    Raises:
        LocalEngineError: the node cannot be started, or finds no master.
    """
    [node] = _start(cluster.plan, timeout, _no_progress, only=port)
    return replace(cluster, nodes=tuple(node if each.port == port else each for each in cluster.nodes))


def _start_plan(
    name: str, nodes: int, port: int | None, heap: str, settings: Mapping[str, str] | None, data: Path | None
) -> StartPlan:
    build = find_build(name)
    build = replace(build, settings=(*build.settings, *(settings or {}).items()))
    port = build.port if port is None else port
    # The ports on which nodes communicate with each other have to exist too.
    if nodes > 1 and server_process.transport_port(port + nodes - 1) > 65535:
        raise UsageError(f"port {port} is too high for a cluster of {nodes} nodes", "Choose one below 65400.")
    return StartPlan(build, tuple(range(port, port + nodes)), server_process.check_heap(heap), data)


def _start(
    plan: StartPlan, timeout: float, progress: ProgressCallback, *, only: int | None = None
) -> tuple[RunningEngine, ...]:
    """Start the servers of a plan that do not run, and wait for all.

    Args:
        only: Port of the one server to start and to wait for; None for all.
    """
    build = plan.build
    account = server_process.server_account()
    layout = _engine_home()
    layout.create(account)
    wanted = plan.ports if only is None else (only,)
    with storage_errors(layout.home), _locked(layout, build.name, plan.ports, progress):
        states = {port: layout.read_state(build.name, port) for port in plan.ports}
        running = {port: engine for port, engine in states.items() if engine is not None}
        check_nodes(build, plan.ports, list(running.values()))
        _report_running(plan, running, layout, progress)
        missing = [port for port in wanted if port not in running]
        for port in missing:
            # Elasticsearch's server ends a moment after its launcher, and perhaps only the launcher was killed.
            if (last := layout.last_state(build.name, port)) is not None:
                server_process.wait_for_group(last.pid)
        check_ports_free(build, plan.ports, missing, layout)
        if missing:
            # Check the data before the download, which may take minutes, so that the user sees the error at once.
            check_data(build, plan.ports, layout)
        # Read before the servers start: a new one has data as soon as it runs, and would count as used.
        uses = {port: layout.uses(build.name, port) for port in wanted}
        started: list[RunningEngine] = []
        try:
            for port in missing:
                running[port] = _launch(plan, port, layout, account, progress)
                started.append(running[port])
            engines = tuple(running[port] for port in wanted)
            nodes = len(plan.ports) if only is None else None
            seconds = wait_until_ready(engines, timeout, progress, nodes=nodes)
            for port in wanted:
                layout.write_uses(build.name, port, uses[port] + 1)
        except BaseException:
            # Also on Ctrl-C: do not leave a server running that the caller does not know about.
            _stop(layout, started)
            raise
    if started:
        progress(f"Ready after {seconds:.0f} s; log: {', '.join(str(engine.log) for engine in started)}")
    _report_missing_features(build, progress)
    return engines


def stop_engine(engine: RunningEngine, *, purge: bool = False) -> None:
    """Stop a server, or one node of a cluster; no error if it has ended already.

    Args:
        purge: Also remove its data and logs.

    Raises:
        LocalEngineError: the server belongs to another user or does not end.
    """
    layout = _engine_home()
    with storage_errors(layout.home), _locked(layout, engine.name, (engine.port,)):
        _stop(layout, [engine], purge=purge)


def stop_cluster(nodes: Sequence[RunningEngine], *, purge: bool = False) -> None:
    """Stop the nodes of one cluster, or a single server; no error if some have ended already.

    Args:
        nodes: The nodes that may be running, at least one.
        purge: Also remove data and logs, including those of nodes that do not run.

    Raises:
        LocalEngineError: a node belongs to another user or does not end.
    """
    layout = _engine_home()
    name, ports = nodes[0].name, nodes[0].all_ports
    with storage_errors(layout.home), _locked(layout, name, ports):
        _stop(layout, nodes, purge=purge)
        for port in ports:
            if layout.read_state(name, port) is None:
                layout.forget(name, port, purge=purge)


def running_engines() -> list[RunningEngine]:
    """The servers and nodes that run at the moment, by name and port."""
    return _engine_home().running_engines()


def stopped_servers(name: str, port: int | None = None) -> dict[int, tuple[int, ...]]:
    """Find servers of a name that do not run and have left data or logs, and clusters of which no node runs.

    Args:
        port: Only the server on that port, or the cluster with a node on it; None for all of that name.

    Returns:
        The port of each folder → the HTTP ports of all nodes.
    """
    layout = _engine_home()
    build = find_build(name)
    found: dict[int, tuple[int, ...]] = {}
    with storage_errors(layout.home):
        for work in sorted(layout.servers.glob(f"{name}-*")):
            prefix, _, suffix = work.name.rpartition("-")
            if prefix != name or not suffix.isdecimal():
                continue  # another build with the same prefix, or the user's copy
            ports = server_process.cluster_ports(build, work) or (int(suffix),)
            runs = any(layout.read_state(name, each) is not None for each in (int(suffix), *ports))
            if not runs and (port is None or port in (int(suffix), *ports)):
                found[int(suffix)] = ports
    return found


def purge_stopped(name: str, port: int | None = None) -> list[Path]:
    """Remove data and logs of servers that do not run, and of clusters of which no node runs.

    Args:
        port: Only the server on that port, or the cluster with a node on it; None for all of that name.

    Returns:
        The folders removed.
    """
    layout = _engine_home()
    removed = []
    with storage_errors(layout.home):
        for its_port, ports in stopped_servers(name, port).items():
            with _locked(layout, name, sorted({its_port, *ports})):
                if all(layout.read_state(name, each) is None for each in (its_port, *ports)):
                    layout.forget(name, its_port, purge=True)
                    removed.append(layout.work(name, its_port))
    return removed


def folders_in_shared_use(name: str, ports: Iterable[int]) -> list[Path]:
    """Find folders of servers whose data is older than the last `engine up`, so that somebody else may need it."""
    layout = _engine_home()
    return [layout.work(name, port) for port in ports if layout.uses(name, port) > 1]


def _engine_home() -> EngineHome:
    return EngineHome.from_environment(os.environ, root=os.geteuid() == 0)


@contextmanager
def _locked(
    layout: EngineHome, name: str, ports: Sequence[int], progress: ProgressCallback = _no_progress
) -> Iterator[None]:
    """Hold the locks of servers, in ascending order so that two commands never wait for each other."""
    with ExitStack() as stack:
        for port in sorted(ports):
            waiting = f"Waiting for another es-sbert to start or stop {name} on port {port} …"
            stack.enter_context(file_lock(layout.lock_file(name, port), partial(progress, waiting)))
        yield


def _stop(layout: EngineHome, engines: Sequence[RunningEngine], *, purge: bool = False) -> None:
    """Stop servers at the same time: a node that waits for nodes that are gone takes longer to end."""
    if not engines:
        return
    with ThreadPoolExecutor(len(engines)) as pool:
        ended = [
            pool.submit(server_process.stop_process, engine.pid, engine.started, grace=SHUTDOWN_SECONDS)
            for engine in engines
        ]
    for engine, future in zip(engines, ended, strict=True):
        future.result()
        if layout.read_state(engine.name, engine.port) is None:
            layout.forget(engine.name, engine.port, purge=purge)


def _report_running(
    plan: StartPlan, running: Mapping[int, RunningEngine], layout: EngineHome, progress: ProgressCallback
) -> None:
    """Report the servers that already run, when they were started, and how many indices they have.

    Raises:
        LocalEngineError: only some nodes run, and they are of another version than the missing ones would be.
    """
    build = plan.build
    for engine in running.values():
        count = count_indices(engine.port)
        holds = "" if count is None else f" It holds {pluralize(count, 'index', 'indices')}."
        progress(
            f"{build.product} {engine.version} is already running on port {engine.port}: an earlier "
            f"`es-sbert engine up` started it, at {layout.started_at(engine):%Y-%m-%d %H:%M}.{holds}"
        )
    others = [engine for engine in running.values() if engine.version != build.version]
    if others and len(running) < len(plan.ports):
        raise LocalEngineError(
            f"the running nodes of the cluster are {build.product} {others[0].version}, and es-sbert now starts "
            f"{build.label} as {build.name}",
            f"Stop the cluster before you start it with all nodes: `{others[0].down_command}`",
        )
    if others:
        progress(
            f"es-sbert now starts {build.label} as {build.name}; to use it, stop this one: `{others[0].down_command}`"
        )


def _report_missing_features(build: EngineBuild, progress: ProgressCallback) -> None:
    if build.missing_features:
        told = ", ".join(build.missing_features[:_MAX_FEATURES_SHOWN])
        progress(
            f"This build of {build.product} lacks, among others, {told}. Docker runs the complete "
            "server: see docs/commands/engine.md."
        )


def _launch(
    plan: StartPlan, port: int, layout: EngineHome, account: Account | None, progress: ProgressCallback
) -> RunningEngine:
    """Install the server if it is missing, start its process, and write its state file."""
    build = plan.build_of(port)
    jdk = find_jdk(build.minimum_jdk, os.environ, account, newest=build.newest_jdk)
    work = layout.work(build.name, port)
    home = layout.dist / build.folder_name
    if not home.is_dir():
        maven = find_maven(os.environ, progress, "Or use docker-compose.yml.")
        home = install(build, layout.dist, maven.fetch, progress)
    console = server_process.prepare_work_folder(build, home, port, work, account, plan.cluster_ports)
    who = f" as {account.name}" if account else ""
    if layout.uses(build.name, port):
        progress(f"The server continues with the data of an earlier run in {work}.")
    progress(f"Starting {build.label} on port {port}{who} with Java {jdk.version} ({jdk.home}), {plan.heap} heap …")
    command = [str(home / build.launcher)]
    environment = server_process.server_environment(build, jdk.home, plan.heap, work, os.environ)
    pid = server_process.start_process(command, folder=home, environment=environment, console=console, account=account)
    engine = RunningEngine(
        name=build.name,
        version=build.version,
        port=port,
        url=f"http://localhost:{port}",
        pid=pid,
        # A process that has already ended has no identity; the wait that follows reports it.
        started=server_process.process_identity(pid) or "ended",
        work=work,
        log=console,
        cluster_ports=plan.cluster_ports,
    )
    layout.write_state(engine)
    return engine
