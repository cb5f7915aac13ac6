"""Install, start, find and stop local engines."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat

from es_sbert.arguments import check_arguments
from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_builds import ENGINES, EngineBuild
from es_sbert.engines.local.engine_home import EngineHome, RunningEngine, make_folder, storage_errors
from es_sbert.errors import LocalEngineError, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.io.package_downloads import Artifact, find_maven
from es_sbert.messages import setting

ProgressCallback = Callable[[str], None]
DEFAULT_HEAP = "1g"
DEFAULT_TIMEOUT = 180.0
SHUTDOWN_SECONDS = 30.0
_POLL_SECONDS, _REPORT_SECONDS = 0.25, 10.0
# Seconds after which a server whose indices stay red counts as ready.
_RED_STATUS_SECONDS = 30.0
_LOG_LINES = 15


@dataclass(frozen=True)
class LocalServer:
    """A server that runs, or that has left data or logs.

    Attributes:
        running: The server, if it runs.
    """

    name: str
    port: int
    running: RunningEngine | None

    def __str__(self) -> str:
        return f"{self.name} on port {self.port}"


def _no_progress(message: str) -> None: ...


def unknown_engine(name: str) -> UsageError:
    """Return the error for a name that no build has."""
    builds = ", ".join(ENGINES)
    return UsageError(f"unknown engine {name!r}", f"Use {builds}, or docker-compose.yml.").about("name", name)


@check_arguments
def start_engine(
    build: str | EngineBuild,
    *,
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None,
    heap: str = DEFAULT_HEAP,
    timeout: PositiveFloat = DEFAULT_TIMEOUT,
    progress: ProgressCallback = _no_progress,
) -> RunningEngine:
    """Start a server, or find the one of that name that already runs on that port, whose heap is kept.

    The download does not count for the timeout.

    Args:
        build: A build, or the name of one: `es9`, `es9-small`, `opensearch` or `opensearch-ml`.
        port: HTTP port. [default: that of the build]
        heap: Java heap: 512m, 1g, 4g.
        timeout: Seconds to wait until the server answers.
        progress: Called with one line for each step.

    Raises:
        LocalEngineError: the server cannot be fetched, started or reached; if it was started, it is stopped again.
        UsageError: there is no such build, or `heap` is not a heap size.
    """
    if isinstance(build, str):
        if build not in ENGINES:
            raise unknown_engine(build)
        build = ENGINES[build]
    if not re.fullmatch(r"[1-9][0-9]*[kKmMgG]", heap):
        raise UsageError(f"{heap!r} is not a heap size", "Write it like 512m or 4g.").about("heap", heap)
    port = build.port if port is None else port
    home = _engine_home()
    home.create(server_process.server_account())
    with storage_errors(home.home), _locked(home, build.name, port, progress):
        running = home.running(build.name, port)
        engine = running or _launch(build, port, heap, home, progress)
        try:
            seconds = _wait_until_ready(engine, timeout, progress)
        except BaseException:
            # Also on Ctrl-C: do not leave a server running that the caller does not know about.
            if running is None:
                _stop(home, engine)
            raise
    if running is None:
        progress(f"Ready after {seconds:.0f} s; log: {engine.log}")
    else:
        progress(
            f"{engine.name} {engine.version} is already running on port {port}: an earlier `es-sbert engine up` "
            "started it."
        )
    progress(f"This build of {build.product} is for tests: docs/commands/engine.md lists what it lacks.")
    return engine


def stop_engine(server: LocalServer | RunningEngine, *, purge: bool = False) -> None:
    """Stop a server; no error if it has ended already.

    Args:
        purge: Also remove data and logs, including those of a stopped server.

    Raises:
        LocalEngineError: the server belongs to another user or does not end, or its folder cannot be removed.
    """
    home = _engine_home()
    with storage_errors(home.home), _locked(home, server.name, server.port):
        _stop(home, server, purge=purge)


def find_servers() -> list[LocalServer]:
    """The servers that run, or have left data or logs, by name and port."""
    home = _engine_home()
    found = []
    with storage_errors(home.home):
        for work in home.servers.glob("*-*"):
            name, _, port = work.name.rpartition("-")
            # Leave other folders alone, such as a user's copy of one.
            if name in ENGINES and port.isdecimal() and int(port) <= 65535:
                found.append(LocalServer(name, int(port), home.running(name, int(port))))
    return sorted(found, key=lambda server: (server.name, server.port))


def _engine_home() -> EngineHome:
    return EngineHome.from_environment(os.environ, root=os.geteuid() == 0)


def _locked(
    home: EngineHome, name: str, port: int, progress: ProgressCallback = _no_progress
) -> AbstractContextManager[None]:
    waiting = f"Waiting for another es-sbert to start or stop {name} on port {port} …"
    return file_lock(home.state / f"{name}-{port}.lock", partial(progress, waiting))


def _stop(home: EngineHome, server: LocalServer | RunningEngine, *, purge: bool = False) -> None:
    running = server.running if isinstance(server, LocalServer) else server
    if running is not None:
        server_process.stop_process(running.pid, running.started, grace=SHUTDOWN_SECONDS)
    if home.running(server.name, server.port) is None:
        home.forget(server.name, server.port, purge=purge)


def _launch(build: EngineBuild, port: int, heap: str, home: EngineHome, progress: ProgressCallback) -> RunningEngine:
    """Install the server if it is missing, start its process, and write its state file."""
    account = server_process.server_account()
    if (last := home.last_state(build.name, port)) is not None:
        # Elasticsearch's server ends a moment after its launcher, and perhaps only the launcher was killed.
        server_process.wait_for_group(last.pid)
    _check_port(port)
    work = home.work(build.name, port)
    jdk = server_process.find_jdk(build.jdks, os.environ, account)
    folder = home.dist / build.folder_name
    if not folder.is_dir():
        maven = find_maven(os.environ, progress, "Or use docker-compose.yml.")
        folder = install(build, home.dist, maven.fetch, progress)
    if (work / "data").exists() and any((work / "data").iterdir()):
        progress(f"The server continues with the data of an earlier run in {work}.")
    console = server_process.prepare_work_folder(build, folder, port, work, account)
    who = f" as {account.pw_name}" if account else ""
    progress(f"Starting {build.label} on port {port}{who} with Java {jdk.version} ({jdk.home}), {heap} heap …")
    environment = server_process.server_environment(build, jdk.home, heap, work, os.environ)
    command = [str(folder / "bin" / build.product.lower())]
    pid = server_process.start_process(
        command, folder=folder, environment=environment, console=console, account=account
    )
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
    home.write_state(engine)
    return engine


def _check_port(port: int) -> None:
    """Check that a server can listen on a port.

    Raises:
        LocalEngineError: the port is in use, or reserved for root.
    """
    with socket.socket() as probe:
        # Set the option that the servers set: a port whose last connection was closed a moment ago counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server_process.LOOPBACK, port))
        except OSError as error:
            raise LocalEngineError(
                f"port {port} cannot be used: {error.strerror}",
                f"Use the engine there, {setting('url', f'http://localhost:{port}')}, or another {setting('port')}.",
            ).about("port", port) from error


def _health(port: int) -> object:
    """`green`, `yellow` or `red`; another value if no engine answers yet."""
    connection = http.client.HTTPConnection(server_process.LOOPBACK, port, timeout=2.0)
    try:
        connection.request("GET", "/_cluster/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        # Refused, cut off or not JSON: all mean "no search engine answers here (yet)", which is the result.
        return None
    finally:
        connection.close()
    # A node without a master answers with an error, whose status is a number.
    return answer.get("status") if isinstance(answer, dict) else None


def _wait_until_ready(engine: RunningEngine, timeout: float, progress: ProgressCallback) -> float:
    """Wait until a server answers and its indices are open; returns the seconds it took.

    A server whose indices stay red, because one of them is broken, counts as ready after a while: the engine itself
    works, and is needed to repair or delete them.

    Raises:
        LocalEngineError: the server ended, or is not ready in time.
    """
    afresh = (
        "If the data is from another version, of a cluster or damaged, start afresh: "
        f"`es-sbert engine down {engine.name} --port {engine.port} --purge`"
    )
    begin = reported = time.monotonic()
    answered: float | None = None
    while True:
        status = _health(engine.port)
        now = time.monotonic()
        if isinstance(status, str):
            answered = answered or now
            if status != "red" or now - answered > _RED_STATUS_SECONDS:
                return now - begin
        if not engine.is_alive:
            raise LocalEngineError(
                f"{engine.name} {engine.version} exited during startup{_log_tail(engine.log)}",
                f"See the log. Often, memory is too small: set a smaller heap ({setting('heap', '512m')}). {afresh}",
            )
        if now - begin > timeout:
            raise LocalEngineError(
                f"{engine.name} {engine.version} does not answer on port {engine.port} after {timeout:g} s"
                + _log_tail(engine.log),
                f"Allow a slow machine more time ({setting('timeout', 600)}), or look for the reason in the log. "
                f"{afresh}",
            )
        if now - reported >= _REPORT_SECONDS:
            reported = now
            progress(f"Still waiting ({now - begin:.0f} s) …")
        time.sleep(_POLL_SECONDS)


def _log_tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"; it wrote no log ({log})"
    return f"; the last lines of {log}:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])


_REMEDY = (
    "Remove the file from Maven's local repository (~/.m2/repository), and check the mirror that Maven downloads from."
)


def install(
    build: EngineBuild, dist: Path, fetch: Callable[[Artifact, Path], Path], progress: Callable[[str], None]
) -> Path:
    """Return the home of an unpacked server; download and unpack it if it does not exist.

    Args:
        dist: Folder that holds all homes.
        fetch: Fetches an artifact into a folder and returns the path of its file.

    Raises:
        LocalEngineError: a file cannot be fetched or written, or is damaged or unsafe.
    """
    home = dist / build.folder_name
    waiting = f"Waiting for another es-sbert to install {build.label} …"
    with storage_errors(dist), file_lock(dist / f"{home.name}.lock", lambda: progress(waiting)):
        if home.is_dir():
            return home
        staging = home.with_name(f"{home.name}.partial")
        if staging.exists():
            # Remove what a killed run has left: no other run can use it, because this process holds the lock.
            shutil.rmtree(staging)
        make_folder(staging)
        try:
            for piece in build.pieces:
                archive = fetch(piece.artifact, staging)
                progress(f"Unpacking {archive.name} …")
                unpack(archive, piece.folders, staging / "home")
                archive.unlink()
            (staging / "home").rename(home)
        finally:
            shutil.rmtree(staging)
        return home


def unpack(archive: Path, folders: tuple[tuple[str, str], ...], target: Path) -> None:
    """Unpack some folders of a zip.

    Files become world-readable and keep their executable bit. `ZipFile.extract` writes nothing outside the target, and
    no symbolic links.

    Args:
        folders: Pairs (prefix inside the zip, folder inside the target).

    Raises:
        LocalEngineError: the zip is damaged, or lacks one of the folders.
    """
    missing = {inside for inside, _ in folders}
    make_folder(target)
    try:
        with zipfile.ZipFile(archive) as source:
            for member in source.infolist():
                for inside, outside in folders:
                    if member.filename.startswith(inside):
                        missing.discard(inside)
                        member.filename = outside + member.filename[len(inside) :]
                        if member.filename:
                            path = Path(source.extract(member, target))
                            executable = member.external_attr >> 16 & 0o111
                            path.chmod(0o755 if path.is_dir() or executable else 0o644)
    except (zipfile.BadZipFile, EOFError) as error:
        raise LocalEngineError(f"{archive.name} is damaged: {error}", _REMEDY) from error
    for folder in target.rglob("*/"):  # also those without a member, which the umask may have closed
        folder.chmod(0o755)
    if missing:
        raise LocalEngineError(f"{archive.name} does not contain {', '.join(sorted(missing))}", _REMEDY)
