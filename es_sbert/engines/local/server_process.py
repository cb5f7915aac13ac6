"""Configure, start, identify and stop a server's process, and choose the user that it runs as.

A process is identified by its id and its start time, because ids are reused. Both engines refuse to run as root: if
root starts a server, it runs as `nobody`; otherwise it runs as the calling user.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from es_sbert.engines.local.engine_builds import EngineBuild
from es_sbert.errors import LocalEngineError, UsageError

UNPRIVILEGED_USER = "nobody"


@dataclass(frozen=True)
class Account:
    """A user other than the calling user."""

    name: str
    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Whether the user may pass through a folder and every folder above it.

        Only the classic permission bits are checked, not access-control lists or supplementary groups.
        """
        resolved = folder.resolve()
        return all(self._may_pass(each.stat()) for each in (resolved, *resolved.parents))

    def _may_pass(self, status: os.stat_result) -> bool:
        of_group = stat.S_IXGRP if status.st_gid == self.gid else stat.S_IXOTH
        return bool(status.st_mode & (stat.S_IXUSR if status.st_uid == self.uid else of_group))


def server_account(user: str = UNPRIVILEGED_USER) -> Account | None:
    """The account to start servers with; None means the calling user's own.

    Raises:
        LocalEngineError: the calling user is root, and the machine has no user of that name.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise LocalEngineError(
            f"search engines refuse to run as root, and this machine has no user {user!r} to run them as",
            f"Run es-sbert as an ordinary user, or create the user: `useradd --system {user}`",
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


class _ServerProcess(subprocess.Popen[bytes]):
    """A process that outlives this one."""

    def __del__(self) -> None:
        """Do nothing: Popen would warn about children that still run when this process ends, but that is intended."""


# Processes started here, to collect their exit status: without a wait they stay in the process table.
_children: dict[int, _ServerProcess] = {}


def start_process(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], console: Path, account: Account | None
) -> int:
    """Start a process that outlives this one, in a new session and process group.

    Args:
        folder: Working directory.
        environment: The whole environment of the process.
        console: File that receives stdout and stderr.
        account: User to run the process as; None for the caller's.

    Returns:
        The process id.

    Raises:
        LocalEngineError: the system refuses to run the command.
    """
    with console.open("wb") as output:
        try:
            child = _ServerProcess(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                umask=0o077,
            )
        except OSError as error:
            raise LocalEngineError(
                f"the system refuses to run {command[0]}: {error.strerror}",
                "Its folder may lie on a disk mounted noexec; set ES_SBERT_ENGINE_HOME to one that is not.",
            ) from error
    _children[child.pid] = child
    return child.pid


def process_exit_code(pid: int) -> int | None:
    """Exit status of a process that ended; None while it runs, or if another process spawned it."""
    return _children[pid].poll() if pid in _children else None


def process_identity(pid: int) -> str | None:
    """Return a value that identifies a process even if its id is reused later; None if there is no such process."""
    if Path("/proc/self/stat").exists():
        return _identity_from_proc(pid)
    return _identity_from_ps(pid)


def _identity_from_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return None
    # The second field is the program's name in parentheses, and may contain spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # A zombie: dead, but not yet collected by its parent. If other threads are left, only the first one is dead: the
    # process counts as alive until they release the port and the data.
    if state in "ZX" and threads <= 1:
        return None
    # The start is counted in clock ticks since boot, so the boot is part of the identity.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{started}"


def _identity_from_ps(pid: int) -> str | None:
    command, environment = ["ps", "-o", "stat=,lstart=", "-p", str(pid)], {**os.environ, "LC_ALL": "C"}
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise LocalEngineError(
            "this system has neither /proc nor ps, so a server's process cannot be recognized",
            "Install ps (package procps).",
        ) from None
    state, _, started = said.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def stop_process(pid: int, started: str, *, grace: float) -> None:
    """End a process: SIGTERM, and after `grace` seconds SIGKILL to its whole group.

    Does nothing if the process is gone or its id belongs to another process by now.

    Args:
        started: The `process_identity` of the process.

    Raises:
        LocalEngineError: the process belongs to another user, or does not end.
    """
    try:
        if process_identity(pid) == started:
            os.kill(pid, signal.SIGTERM)
            if not _wait_until_gone(pid, started, grace):
                # Elasticsearch's launcher has the server as a child: killing the launcher alone leaves it, and the
                # server may end later than the launcher while it still holds the lock of its data.
                group = _group_members(pid) | {pid: started}
                os.killpg(pid, signal.SIGKILL)
                for member, began in group.items():
                    if not _wait_until_gone(member, began, 10.0):
                        raise LocalEngineError(
                            f"process {member} does not end",
                            "It waits for the system, most likely for a disk; try later.",
                        )
    except ProcessLookupError:
        # The process ended between the check and the signal.
        pass
    except PermissionError:
        raise LocalEngineError(
            f"process {pid} was started by another user", "Stop it as that user, or as root."
        ) from None
    if pid in _children:
        _children.pop(pid).wait()


def wait_for_group(leader: int) -> None:
    """Wait up to ten seconds for the processes of a group whose leader has ended."""
    deadline = time.monotonic() + 10.0
    while process_identity(leader) is None and _group_members(leader) and time.monotonic() < deadline:
        time.sleep(0.1)


def _group_members(leader: int) -> dict[int, str]:
    """Return id → `process_identity` of the processes in a process group."""
    members = {}
    for pid in _all_pids():
        try:
            started = process_identity(pid) if os.getpgid(pid) == leader else None
        except ProcessLookupError:  # ended since the list was made
            continue
        if started is not None:
            members[pid] = started
    return members


def _all_pids() -> list[int]:
    if Path("/proc/self/stat").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid in listed.stdout.split()]


def _wait_until_gone(pid: int, started: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process_identity(pid) == started:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


LOOPBACK = "127.0.0.1"

# More options for the server's JVM, in the syntax of `java`.
JAVA_OPTS_VARIABLE = "ES_SBERT_ENGINE_JAVA_OPTS"
_HEAP_PATTERN = re.compile(r"[1-9][0-9]*[kKmMgG]")
_FIRST_LINE = "# Written by es-sbert at every start of {label}: changes are lost.\n"
_VERSION_IN_FIRST_LINE = re.compile(r"# Written by es-sbert at every start of \S+ (\d+(?:\.\d+)+): ")


def check_heap(heap: str) -> str:
    """Check a heap size, and return it.

    Raises:
        UsageError: the JVM does not accept the size.
    """
    if not _HEAP_PATTERN.fullmatch(heap):
        raise UsageError(f"{heap!r} is not a heap size", "Write a number followed by m or g: 512m, 1g, 4g.")
    return heap


# Keeps transport ports away from the default HTTP ports of the builds and from 9300, the usual transport port.
TRANSPORT_OFFSET = 50


def transport_port(port: int) -> int:
    """Port on which a node listens for the other nodes. It is fixed, so that they find a node that was restarted."""
    return port + TRANSPORT_OFFSET


def settings_file(build: EngineBuild, port: int, work: Path, cluster_ports: Sequence[int] = ()) -> str:
    """Build the text of `elasticsearch.yml` or `opensearch.yml`. Values are JSON strings, which are valid YAML.

    Args:
        port: HTTP port of this server.
        cluster_ports: HTTP ports of all nodes of its cluster; empty for a single server.
    """
    settings = {
        "cluster.name": f"es-sbert-{build.name}",
        "node.name": f"{build.name}-{port}",
        **_discovery_settings(build, port, cluster_ports),
        "network.host": LOOPBACK,
        "http.port": str(port),
        "path.data": str(work / "data"),
        "path.logs": str(work / "logs"),
        # Disable the threshold: on a disk that is 95% full, the servers would make indices read-only.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        **dict(build.settings),
    }
    return _FIRST_LINE.format(label=build.label) + "".join(
        f"{key}: {json.dumps(value)}\n" for key, value in settings.items()
    )


def _discovery_settings(build: EngineBuild, port: int, cluster_ports: Sequence[int]) -> dict[str, str]:
    if not cluster_ports:
        # Use any free transport port: no node connects to it, and a fixed one would collide with other servers.
        return {"discovery.type": "single-node", "transport.port": "0"}
    return {
        f"cluster.initial_{build.master_term}_nodes": ",".join(f"{build.name}-{each}" for each in cluster_ports),
        "discovery.seed_hosts": ",".join(f"{LOOPBACK}:{transport_port(each)}" for each in cluster_ports),
        "transport.port": str(transport_port(port)),
    }


def cluster_ports(build: EngineBuild, work: Path) -> tuple[int, ...] | None:
    """Read the HTTP ports of all nodes of the cluster to which the server of a work folder last belonged.

    Returns:
        Empty for a single server; None if the folder has no configuration file.
    """
    settings = _settings_path(build, work)
    if not settings.exists():
        return None
    text = settings.read_text(encoding="utf-8", errors="replace")
    names = re.search(rf'^cluster\.initial_{build.master_term}_nodes: "(.+)"$', text, re.MULTILINE)
    return tuple(int(name.rpartition("-")[2]) for name in names[1].split(",")) if names else ()


def holds_data(work: Path) -> bool:
    """Whether a server has written data into a work folder."""
    data = work / "data"
    return data.exists() and any(data.iterdir())


def data_version(build: EngineBuild, work: Path) -> str | None:
    """Read the version of the server that last started on a work folder; None if there is no data.

    Servers cannot open data of later versions. Every start writes the server's version into the configuration file.
    """
    settings = _settings_path(build, work)
    if not settings.exists() or not holds_data(work):
        return None
    written = _VERSION_IN_FIRST_LINE.match(settings.read_text(encoding="utf-8", errors="replace"))
    return written[1] if written else None


def _settings_path(build: EngineBuild, work: Path) -> Path:
    return work / "conf" / f"{Path(build.launcher).name}.yml"


def redirect_jvm_files(options: str, logs: Path) -> str:
    """Change JVM options so that log, crash and heap-dump files go to the server's own folder.

    By default, OpenSearch writes them into its home, which is shared and read-only for the server.
    """
    options = re.sub(r"(file=|ErrorFile=)(?:logs/)?(?=[\w%.]+\.log)", rf"\g<1>{logs}/", options)
    return re.sub(r"(HeapDumpPath=)\S+", rf"\g<1>{logs}", options)


def server_environment(
    build: EngineBuild, java_home: Path, heap: str, work: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Build the whole environment of a server.

    The caller's environment is not passed on: `JAVA_TOOL_OPTIONS`, `CLASSPATH` and the like would change the server,
    and secrets do not belong there. Set options in `ES_SBERT_ENGINE_JAVA_OPTS`.
    """
    options = [f"-Xms{heap}", f"-Xmx{heap}", *environ.get(JAVA_OPTS_VARIABLE, "").split()]
    return {
        # The start scripts need the ordinary tools even if the caller's PATH is empty.
        "PATH": ":".join(filter(None, [environ.get("PATH", ""), "/usr/bin", "/bin"])),
        "LANG": environ.get("LANG", "C.UTF-8"),
        "HOME": str(work),
        "TMPDIR": str(work / "tmp"),
        f"{build.prefix}_TMPDIR": str(work / "tmp"),
        f"{build.prefix}_PATH_CONF": str(work / "conf"),
        f"{build.prefix}_JAVA_HOME": str(java_home),
        f"{build.prefix}_JAVA_OPTS": " ".join(options),
    }


def prepare_work_folder(
    build: EngineBuild, home: Path, port: int, work: Path, account: Account | None, cluster_ports: Sequence[int] = ()
) -> Path:
    """Create a server's folders and write its configuration; data and earlier logs are kept.

    Args:
        cluster_ports: HTTP ports of all nodes of its cluster; empty for a single server.

    Returns:
        The file for the server's console output; the previous run's file is kept in the same folder.
    """
    folders = (work, work / "data", work / "logs", work / "tmp")
    for folder in folders:
        folder.mkdir(exist_ok=True)
    conf = work / "conf"
    if conf.exists():
        shutil.rmtree(conf)
    shutil.copytree(home / "config", conf)
    _settings_path(build, work).write_text(settings_file(build, port, work, cluster_ports), encoding="utf-8")
    options = conf / "jvm.options"
    options.write_text(redirect_jvm_files(options.read_text(encoding="utf-8"), work / "logs"), encoding="utf-8")
    console = work / "logs" / "console.log"
    if console.exists():
        os.replace(console, console.with_name("console.previous.log"))
    if account is not None:
        for path in (*folders, conf, *conf.rglob("*")):
            os.chown(path, account.uid, account.gid)
    work.chmod(0o700)  # documents are private
    return console
