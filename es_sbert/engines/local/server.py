"""Start and stop servers: the steps in their order, and what is said when one fails."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from es_sbert.engines.local import process
from es_sbert.engines.local.account import Account, server_account
from es_sbert.engines.local.catalogue import ENGINES, EngineBuild, lookup
from es_sbert.engines.local.configuration import check_heap, data_version, prepare_work, server_environment
from es_sbert.engines.local.health import cluster_status, describe_listener, port_is_free
from es_sbert.engines.local.install import install
from es_sbert.engines.local.jdk import find_jdk
from es_sbert.engines.local.layout import Layout, storage_errors
from es_sbert.engines.local.maven import find_maven
from es_sbert.engines.local.state import RunningEngine, all_alive, read_state, remove_state, write_state
from es_sbert.errors import LocalEngineError
from es_sbert.locks import file_lock

DEFAULT_HEAP = "1g"
DEFAULT_TIMEOUT = 180.0
GRACE = 30.0
_POLL = 0.25
_RED_IS_FINAL = 30.0
_LOG_LINES = 15
_MOST_TOLD = 9  # of what a build lacks

Progress = Callable[[str], None]


_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def _silent(message: str) -> None:
    """The progress of callers that want none."""


def start_engine(name: str, *, port: int | None = None, heap: str = DEFAULT_HEAP,
                 timeout: float = DEFAULT_TIMEOUT, settings: Mapping[str, str] = _NO_SETTINGS,
                 progress: Progress = _silent) -> RunningEngine:  # fmt: skip
    """Start a server, or find the one of that name that already runs on that port.

    Args:
        name: `es9`, `es9-small`, `es8`, `opensearch` or `opensearch-ml`.
        port: HTTP port on the loopback interface; None is the engine's own default.
        heap: Java heap, `1g`; without effect on a server that already runs.
        timeout: Seconds to wait until it answers, counted from its start (fetching it takes what it takes).
        settings: Of its configuration file, e.g. `{"http.max_content_length": "1mb"}`, beside or in place of those
            that it always gets; without effect on a server that already runs.
        progress: Told each step in one line.

    Raises:
        LocalEngineError: it cannot be fetched, started or reached; what was begun is stopped again.
        UsageError: `heap` is no heap size.
    """
    build = lookup(name)
    build = replace(build, settings=(*build.settings, *settings.items()))
    port = build.port if port is None else port
    check_heap(heap)
    account = server_account()
    layout = _layout()
    layout.create(account)
    waiting = f"Waiting for another es-sbert to start or stop {name} on port {port} …"
    with storage_errors(layout.home), file_lock(_lock(layout, name, port), lambda: progress(waiting)):
        engine = read_state(layout.state, name, port)
        if engine is not None:
            progress(f"{build.product} {engine.version} is already running on port {port}.")
            if engine.version != build.version:
                progress(f"es-sbert now starts {build.label} as {name}; for that, stop this one: {_down(name, port)}")
            else:
                _tell_what_is_missing(build, progress)
            _wait_until_ready(engine, timeout, progress)
            return engine
        _refuse_taken_port(build, port, layout)
        engine = _launch(build, port, heap, layout, account, progress)
        try:
            seconds = _wait_until_ready(engine, timeout, progress)
        except BaseException:
            # Also on Ctrl-C: a server that nobody was told of must not stay behind.
            process.stop(engine.pid, engine.started, grace=GRACE)
            remove_state(layout.state, engine)
            raise
    progress(f"Ready after {seconds:.0f} s; log: {engine.log}")
    _tell_what_is_missing(build, progress)
    return engine


def stop_engine(engine: RunningEngine, *, purge: bool = False, grace: float = GRACE) -> None:
    """Stop a server; one that has ended meanwhile is no error.

    Args:
        purge: Also remove its data and logs.
        grace: Seconds it gets to shut down before it is killed.

    Raises:
        LocalEngineError: it belongs to another user or does not end.
    """
    layout = _layout()
    with storage_errors(layout.home), file_lock(_lock(layout, engine.name, engine.port), lambda: None):
        process.stop(engine.pid, engine.started, grace=grace)
        current = read_state(layout.state, engine.name, engine.port)
        if current is None:
            remove_state(layout.state, engine)
            if purge and engine.work.exists():
                shutil.rmtree(engine.work)


def running_engines() -> list[RunningEngine]:
    """The servers that run at the moment, by name and port."""
    return all_alive(_layout().state)


def purge_stopped(name: str, port: int | None = None) -> list[Path]:
    """Remove data and logs of servers that do not run.

    Args:
        port: Only of the server on that port; None is all of that name.

    Returns:
        The folders removed.
    """
    layout = _layout()
    removed = []
    with storage_errors(layout.home):
        for work in sorted(layout.servers.glob(f"{lookup(name).name}-{port or '*'}")):
            prefix, _, suffix = work.name.rpartition("-")
            if prefix != name or not suffix.isdecimal():
                continue  # another build's whose name begins alike, or none of ours: the user's copy, say
            its_port = int(suffix)
            with file_lock(_lock(layout, name, its_port), lambda: None):
                if read_state(layout.state, name, its_port) is None:
                    shutil.rmtree(work)
                    removed.append(work)
    return removed


def _layout() -> Layout:
    return Layout.from_environment(os.environ, root=os.geteuid() == 0)


def _lock(layout: Layout, name: str, port: int) -> Path:
    return layout.state / f"{name}-{port}.lock"


def _refuse_taken_port(build: EngineBuild, port: int, layout: Layout) -> None:
    try:
        if port_is_free(port):
            return
    except PermissionError:
        raise LocalEngineError(
            f"port {port} is reserved for root on this machine", f"Choose one above 1023: --port {build.port}"
        ) from None
    other_port = f"es-sbert engine up {build.name} --port {port + 1}"
    for engine in all_alive(layout.state):
        if engine.port == port:
            raise LocalEngineError(
                f"port {port} is in use by {engine.name} {engine.version}, which es-sbert started",
                f"Stop that first: es-sbert engine down {engine.name} --port {port}, or take another: {other_port}",
            )
    listener = describe_listener(port)
    use_it = f"Use that one with --url http://localhost:{port}, or take" if listener.is_engine else "Take"
    raise LocalEngineError(f"port {port} is in use by {listener.description}", f"{use_it} another port: {other_port}")


def _tell_what_is_missing(build: EngineBuild, progress: Progress) -> None:
    if build.lacks:
        told = ", ".join(build.lacks[:_MOST_TOLD])
        progress(
            f"This build of {build.product} lacks, among others, {told}. Docker gives the complete "
            "server: see docs/commands/engine.md."
        )


def _refuse_newer_data(build: EngineBuild, port: int, layout: Layout) -> None:
    """Refuse data that a later version has written: the server would end with an exception of Java's."""
    work = layout.work(build.name, port)
    found = data_version(build, work)
    if found is None or _numbers(found) <= _numbers(build.version):
        return
    remedy = f"Remove it: {_down(build.name, port)} --purge"
    for other in ENGINES.values():
        place = layout.work(other.name, port)
        if other.product == build.product and _numbers(other.version) >= _numbers(found) and not place.exists():
            keep = f"mv {work} {place} && es-sbert engine up {other.name} --port {port}"
            remedy = f"Keep it, with {other.label}: {keep}. Or remove it: {_down(build.name, port)} --purge"
            break
    raise LocalEngineError(f"{work} holds data of {build.product} {found}, which {build.label} cannot open", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _down(name: str, port: int) -> str:
    return f"es-sbert engine down {name} --port {port}"


def _launch(build: EngineBuild, port: int, heap: str, layout: Layout, account: Account | None,
            progress: Progress) -> RunningEngine:  # fmt: skip
    """Install what is missing, start the process and write the note about it."""
    # Before the download, which may take minutes: what would fail afterwards should be said at once.
    _refuse_newer_data(build, port, layout)
    jdk = find_jdk(build.minimum_jdk, os.environ, account)
    work = layout.work(build.name, port)
    home = layout.dist / build.folder_name
    if not home.is_dir():
        home = install(build, layout.dist, find_maven(os.environ, progress).fetch, progress)
    console = prepare_work(build, home, port, work, account)
    who = f" as {account.name}" if account else ""
    progress(f"Starting {build.label} on port {port}{who} with Java {jdk.version} ({jdk.home}), {heap} heap …")
    pid = process.spawn(
        [str(home / build.launcher)],
        folder=home,
        environment=server_environment(build, jdk.home, heap, work, os.environ),
        console=console,
        account=account,
    )
    engine = RunningEngine(
        name=build.name,
        version=build.version,
        port=port,
        url=f"http://localhost:{port}",
        pid=pid,
        # A process that has already ended has no identity; the wait that follows reports it.
        started=process.identity(pid) or "ended",
        work=work,
        log=console,
    )
    write_state(layout.state, engine)
    return engine


def _wait_until_ready(engine: RunningEngine, timeout: float, progress: Progress) -> float:
    """Wait until the server answers and its indices are open; the seconds it took.

    A server whose indices stay red (a broken one among them) counts as ready after a while: the engine itself
    works, and is needed to mend or delete them.
    """
    begin = time.monotonic()
    answered: float | None = None
    told = begin
    while True:
        status = cluster_status(engine.port)
        now = time.monotonic()
        if status is not None:
            answered = answered or now
            if status != "red" or now - answered > _RED_IS_FINAL:
                return now - begin
        if not engine.alive:
            raise _died(engine)
        if now - begin > timeout:
            raise LocalEngineError(
                f"{engine.name} {engine.version} does not answer on port {engine.port} after {timeout:g} s"
                + _last_lines(engine.log),
                "Give a slow machine longer (--timeout 600), or find the reason in the log.",
            )
        if now - told >= 10:
            told = now
            progress(f"Still waiting ({now - begin:.0f} s) …")
        time.sleep(_POLL)


def _died(engine: RunningEngine) -> LocalEngineError:
    code = process.exit_code(engine.pid)
    with_code = "" if code is None else f" with exit code {code}"
    return LocalEngineError(
        f"{engine.name} {engine.version} ended{with_code} while starting" + _last_lines(engine.log),
        "The log names the reason; too little memory is the most frequent one (--heap 512m). If its data is from "
        f"another version or damaged, start afresh: {_down(engine.name, engine.port)} --purge",
    )


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return f"; it wrote no log ({log})"
    return f"; the last lines of {log}:\n" + "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
