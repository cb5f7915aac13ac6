"""Start, stop and list local engines."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_builds import ENGINES, EngineBuild, find_build
from es_sbert.engines.local.engine_home import EngineHome, RunningEngine, storage_errors
from es_sbert.engines.local.engine_install import find_maven, install
from es_sbert.engines.local.jdk import find_jdk
from es_sbert.engines.local.server_process import Account
from es_sbert.errors import LocalEngineError
from es_sbert.filesystem import file_lock


def cluster_status(port: int) -> str | None:
    """`green`, `yellow` or `red`; None as long as the server does not answer."""
    health = _get_json(port, "/_cluster/health")
    return health.get("status") if health else None


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the port right now.

    Raises:
        PermissionError: ports below 1024 may be reserved for root.
    """
    with socket.socket() as probe:
        # As the servers do: a port whose last connection has just been closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server_process.LOOPBACK, port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def listening_version(port: int) -> str | None:
    """The version of the search engine that listens on a port; None where another program does."""
    # The nodes API, because builds without the rest-root module do not answer `GET /`.
    nodes = (_get_json(port, "/_nodes/_local?filter_path=nodes.*.version,nodes.*.build_type") or {}).get("nodes")
    if not isinstance(nodes, dict) or not nodes:
        return None
    return str(next(iter(nodes.values())).get("version", "of unknown version"))


def _get_json(port: int, path: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(server_process.LOOPBACK, port, timeout=2.0)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        # Refused, cut off or no JSON: all mean "no search engine answers here (yet)", which is the result.
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None


DEFAULT_HEAP = "1g"
DEFAULT_TIMEOUT = 180.0
SHUTDOWN_SECONDS = 30.0
_POLL = 0.25
_RED_STATUS_SECONDS = 30.0
_LOG_LINES = 15
_MAX_FEATURES_SHOWN = 9  # of what a build lacks

ProgressCallback = Callable[[str], None]


def start_engine(
    name: str,
    *,
    port: int | None = None,
    heap: str = DEFAULT_HEAP,
    timeout: float = DEFAULT_TIMEOUT,
    settings: Mapping[str, str] | None = None,
    progress: ProgressCallback = lambda message: None,
) -> RunningEngine:
    """Start a server, or find the one of that name that already runs on that port.

    Args:
        name: `es9`, `es9-small`, `es8`, `opensearch` or `opensearch-ml`.
        port: HTTP port on the loopback interface; None is the engine's own default.
        heap: Java heap, `1g`; without effect on a server that already runs.
        timeout: Seconds to wait until it answers, counted from its start (fetching it takes what it takes).
        settings: Of its configuration file, e.g. `{"http.max_content_length": "1mb"}`, in addition to or instead of
            the defaults; without effect on a server that already runs.
        progress: Called with one line for each step.

    Raises:
        LocalEngineError: it cannot be fetched, started or reached; what was begun is stopped again.
        UsageError: `heap` is no heap size.
    """
    build = find_build(name)
    build = replace(build, settings=(*build.settings, *(settings or {}).items()))
    port = build.port if port is None else port
    server_process.check_heap(heap)
    account = server_process.server_account()
    layout = _engine_home()
    layout.create(account)
    waiting = f"Waiting for another es-sbert to start or stop {name} on port {port} …"
    with storage_errors(layout.home), file_lock(layout.lock_file(name, port), lambda: progress(waiting)):
        engine = layout.read_state(name, port)
        if engine is not None:
            progress(f"{build.product} {engine.version} is already running on port {port}.")
            if engine.version != build.version:
                progress(
                    f"es-sbert now starts {build.label} as {name}; for that, stop this one: {_down_command(name, port)}"
                )
            else:
                _report_missing_features(build, progress)
            _wait_until_ready(engine, timeout, progress)
            return engine
        _check_port_free(build, port, layout)
        engine = _launch(build, port, heap, layout, account, progress)
        try:
            seconds = _wait_until_ready(engine, timeout, progress)
        except BaseException:
            # Also on Ctrl-C: do not leave a server running that the caller does not know of.
            server_process.stop_process(engine.pid, engine.started, grace=SHUTDOWN_SECONDS)
            layout.remove_state(engine)
            raise
    progress(f"Ready after {seconds:.0f} s; log: {engine.log}")
    _report_missing_features(build, progress)
    return engine


def stop_engine(engine: RunningEngine, *, purge: bool = False) -> None:
    """Stop a server; no error if it has ended already.

    Args:
        purge: Also remove its data and logs.

    Raises:
        LocalEngineError: it belongs to another user or does not end.
    """
    layout = _engine_home()
    with storage_errors(layout.home), file_lock(layout.lock_file(engine.name, engine.port), lambda: None):
        server_process.stop_process(engine.pid, engine.started, grace=SHUTDOWN_SECONDS)
        current = layout.read_state(engine.name, engine.port)
        if current is None:
            layout.remove_state(engine)
            if purge and engine.work.exists():
                shutil.rmtree(engine.work)


def running_engines() -> list[RunningEngine]:
    """The servers that run at the moment, by name and port."""
    return _engine_home().running_engines()


def purge_stopped(name: str, port: int | None = None) -> list[Path]:
    """Remove data and logs of servers that do not run.

    Args:
        port: Only of the server on that port; None is all of that name.

    Returns:
        The folders removed.
    """
    layout = _engine_home()
    removed = []
    with storage_errors(layout.home):
        for work in sorted(layout.servers.glob(f"{find_build(name).name}-{port or '*'}")):
            prefix, _, suffix = work.name.rpartition("-")
            if prefix != name or not suffix.isdecimal():
                continue  # another build with the same prefix, or the user's copy
            its_port = int(suffix)
            with file_lock(layout.lock_file(name, its_port), lambda: None):
                if layout.read_state(name, its_port) is None:
                    shutil.rmtree(work)
                    removed.append(work)
    return removed


def _engine_home() -> EngineHome:
    return EngineHome.from_environment(os.environ, root=os.geteuid() == 0)


def _check_port_free(build: EngineBuild, port: int, layout: EngineHome) -> None:
    try:
        if port_is_free(port):
            return
    except PermissionError:
        raise LocalEngineError(
            f"port {port} is reserved for root on this machine", f"Choose one above 1023: --port {build.port}"
        ) from None
    other_port = f"es-sbert engine up {build.name} --port {port + 1}"
    for engine in layout.running_engines():
        if engine.port == port:
            raise LocalEngineError(
                f"port {port} is in use by {engine.name} {engine.version}, which es-sbert started",
                f"Stop that first: es-sbert engine down {engine.name} --port {port}, or take another: {other_port}",
            )
    version = listening_version(port)
    if version is None:
        raise LocalEngineError(f"port {port} is in use by another program", f"Take another port: {other_port}")
    raise LocalEngineError(
        f"port {port} is in use by a search engine {version} that es-sbert did not start",
        f"Use that one with --url http://localhost:{port}, or take another port: {other_port}",
    )


def _report_missing_features(build: EngineBuild, progress: ProgressCallback) -> None:
    if build.missing_features:
        told = ", ".join(build.missing_features[:_MAX_FEATURES_SHOWN])
        progress(
            f"This build of {build.product} lacks, among others, {told}. Docker gives the complete "
            "server: see docs/commands/engine.md."
        )


def _check_data_version(build: EngineBuild, port: int, layout: EngineHome) -> None:
    """Refuse data that a later version has written: the server would end with an exception of Java's."""
    work = layout.work(build.name, port)
    found = server_process.data_version(build, work)
    if found is None or _version_tuple(found) <= _version_tuple(build.version):
        return
    remedy = f"Remove it: {_down_command(build.name, port)} --purge"
    for other in ENGINES.values():
        place = layout.work(other.name, port)
        if (
            other.product == build.product
            and _version_tuple(other.version) >= _version_tuple(found)
            and not place.exists()
        ):
            keep = f"mv {work} {place} && es-sbert engine up {other.name} --port {port}"
            remedy = f"Keep it, with {other.label}: {keep}. Or remove it: {_down_command(build.name, port)} --purge"
            break
    raise LocalEngineError(f"{work} holds data of {build.product} {found}, which {build.label} cannot open", remedy)


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _down_command(name: str, port: int) -> str:
    return f"es-sbert engine down {name} --port {port}"


def _launch(
    build: EngineBuild, port: int, heap: str, layout: EngineHome, account: Account | None, progress: ProgressCallback
) -> RunningEngine:
    """Install what is missing, start the process and write the note about it."""
    # Before the download, which may take minutes: what would fail afterwards should be said at once.
    _check_data_version(build, port, layout)
    jdk = find_jdk(build.minimum_jdk, os.environ, account)
    work = layout.work(build.name, port)
    home = layout.dist / build.folder_name
    if not home.is_dir():
        home = install(build, layout.dist, find_maven(os.environ, progress).fetch, progress)
    console = server_process.prepare_work_folder(build, home, port, work, account)
    who = f" as {account.name}" if account else ""
    progress(f"Starting {build.label} on port {port}{who} with Java {jdk.version} ({jdk.home}), {heap} heap …")
    command = [str(home / build.launcher)]
    environment = server_process.server_environment(build, jdk.home, heap, work, os.environ)
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
    )
    layout.write_state(engine)
    return engine


def _wait_until_ready(engine: RunningEngine, timeout: float, progress: ProgressCallback) -> float:
    """Wait until the server answers and its indices are open; the seconds it took.

    A server whose indices stay red (a broken one among them) counts as ready after a while: the engine itself
    works, and is needed to repair or delete them.
    """
    begin = time.monotonic()
    answered: float | None = None
    told = begin
    while True:
        status = cluster_status(engine.port)
        now = time.monotonic()
        if status is not None:
            answered = answered or now
            if status != "red" or now - answered > _RED_STATUS_SECONDS:
                return now - begin
        if not engine.is_alive:
            raise _startup_failure(engine)
        if now - begin > timeout:
            raise LocalEngineError(
                f"{engine.name} {engine.version} does not answer on port {engine.port} after {timeout:g} s"
                + _log_tail(engine.log),
                "Give a slow machine longer (--timeout 600), or find the reason in the log.",
            )
        if now - told >= 10:
            told = now
            progress(f"Still waiting ({now - begin:.0f} s) …")
        time.sleep(_POLL)


def _startup_failure(engine: RunningEngine) -> LocalEngineError:
    code = server_process.process_exit_code(engine.pid)
    with_code = "" if code is None else f" with exit code {code}"
    return LocalEngineError(
        f"{engine.name} {engine.version} ended{with_code} while starting" + _log_tail(engine.log),
        "The log names the reason; too little memory is the most frequent one (--heap 512m). If its data is from "
        f"another version or damaged, start afresh: {_down_command(engine.name, engine.port)} --purge",
    )


def _log_tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return f"; it wrote no log ({log})"
    return f"; the last lines of {log}:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
