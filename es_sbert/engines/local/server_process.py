"""Configure, start, identify and stop a server's process, and choose the user and the Java runtime that it runs with.

A process is identified by its id and its start time, because ids are reused. Both engines refuse to run as root: if
root starts a server, it runs as `nobody`; otherwise it runs as the calling user.

A Java runtime is looked for in `ES_JAVA_HOME`, `JAVA_HOME`, the `java` on PATH, then the folders where systems and
version managers install JDKs. Among those folders, the newest release up to `NEWEST_TESTED_JDK` is chosen.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from es_sbert.config import expand_home
from es_sbert.engines.local.engine_builds import EngineBuild
from es_sbert.errors import LocalEngineError

LOOPBACK = "127.0.0.1"
# Seconds that a process has to end after SIGKILL.
_KILL_SECONDS = 10.0


NEWEST_TESTED_JDK = 25

# Modules that the servers and their jvm.options need. Runtimes made with jlink, such as those in pip packages, lack the
# vector incubator and fail at the start with "Module not found".
REQUIRED_MODULES = frozenset({
    "java.desktop", "java.instrument", "java.logging", "java.management", "java.naming", "java.net.http",
    "java.security.jgss", "java.sql", "jdk.attach", "jdk.incubator.vector", "jdk.management", "jdk.net",
    "jdk.unsupported",
})  # fmt: skip

JDK_FOLDERS = (
    "/usr/lib/jvm/*", "/usr/lib64/jvm/*", "/usr/java/*", "/opt/java/*", "/opt/jdk*", "/opt/*jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*", "~/.jdks/*", "~/.asdf/installs/java/*", "~/.local/share/mise/installs/java/*",
)  # fmt: skip


@dataclass(frozen=True)
class Jdk:
    """A Java runtime, and its feature release (21, 25)."""

    home: Path
    version: int


def find_jdk(
    releases: range,
    environ: Mapping[str, str],
    account: pwd.struct_passwd | None = None,
    places: Iterable[str] = JDK_FOLDERS,
) -> Jdk:
    """Find a Java runtime that fits; the module describes the search order.

    Args:
        releases: Suitable feature releases.
        account: The user who will run Java, if not the caller.
        places: Patterns of folders to search after those that the environment names.

    Raises:
        LocalEngineError: no runtime fits; the message lists the folders that were checked and why each was refused.
    """
    refused: dict[Path, str] = {}

    def fitting(homes: Iterable[Path]) -> Iterator[Jdk]:
        for home in homes:
            try:
                if account is not None and (home / "bin").exists() and not may_enter(account, home / "bin"):
                    raise ValueError(f"the user {account.pw_name}, who will run the server, cannot enter it")
                yield _read_jdk(home, releases)
            except ValueError as error:
                refused[home] = str(error)

    def preference(jdk: Jdk) -> tuple[bool, int]:
        """The newest tested release, else the oldest of those that are not tested."""
        return jdk.version <= NEWEST_TESTED_JDK, -abs(jdk.version - NEWEST_TESTED_JDK)

    named = next(fitting(_environment_homes(environ)), None)
    chosen = named or max(fitting(_installed_homes(places)), key=preference, default=None)
    if chosen is None:
        seen = "".join(f"\n    {home}: {reason}" for home, reason in refused.items())
        raise LocalEngineError(
            f"no JDK {releases.start} or newer was found" + (f"; looked at:{seen}" if seen else ""),
            "Install one (apt install openjdk-21-jdk, dnf install java-21-openjdk-devel, brew install openjdk@21, "
            "or from adoptium.net), or set ES_JAVA_HOME to its folder.",
        )
    return chosen


def _environment_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(environ[name]) for name in ("ES_JAVA_HOME", "JAVA_HOME") if environ.get(name))
    if program := shutil.which("java", path=environ.get("PATH", "")):
        # …/bin/java is often a link out of /usr/bin into the JDK.
        yield Path(program).resolve().parent.parent


def _installed_homes(places: Iterable[str]) -> Iterable[Path]:
    """Folders with a `java`. Distributions link several names to one JDK: the links are followed."""
    found = [Path(folder).resolve() for place in places for folder in sorted(glob.glob(str(expand_home(place))))]
    return dict.fromkeys(home for home in found if (home / "bin" / "java").exists())


def _read_jdk(home: Path, releases: range) -> Jdk:
    """Read the version and the modules of a JDK.

    Raises:
        ValueError: it does not fit; the message says why.
    """
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"its file release cannot be read: {error.strerror}") from error
    entries = dict(re.findall(r'^(\w+)="?([^"\n]*)"?\s*$', text, flags=re.MULTILINE))
    # `25.0.3` is 25, `21-ea` is 21, `1.8.0_412` is 8.
    number = re.match(r"(?:1\.)?(\d+)", entries.get("JAVA_VERSION", ""))
    version = int(number[1]) if number else 0
    if version not in releases:
        raise ValueError(f"Java {version} is too {'old' if version < releases.start else 'new'}")
    if missing := REQUIRED_MODULES - set(entries.get("MODULES", "").split()):
        raise ValueError(f"Java {version}, but without {', '.join(sorted(missing))}: not a full JDK")
    return Jdk(home, version)


def may_enter(account: pwd.struct_passwd, folder: Path) -> bool:
    """Whether a user without privileges may pass through a folder and every folder above it."""
    resolved = folder.resolve()
    states = [each.stat() for each in (resolved, *resolved.parents)]
    return all(each.st_mode & (stat.S_IXUSR if each.st_uid == account.pw_uid else stat.S_IXOTH) for each in states)


def server_account(user: str = "nobody") -> pwd.struct_passwd | None:
    """The account to start servers with; None means the calling user's own.

    Raises:
        LocalEngineError: the calling user is root, and the machine has no user of that name.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise LocalEngineError(
            f"search engines refuse to run as root, and this machine has no user {user!r} to run them as",
            f"Run es-sbert as an ordinary user, or create the user: `useradd --system {user}`",
        ) from None


def start_process(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    console: Path,
    account: pwd.struct_passwd | None,
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
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                umask=0o077,
            )
        except OSError as error:
            raise LocalEngineError(
                f"the system refuses to run {command[0]}: {error.strerror}",
                "Its folder may lie on a disk mounted noexec; set ES_SBERT_ENGINE_HOME to one that is not.",
            ) from error
    child.returncode = 0  # it outlives this process: Popen would warn about a child that still runs
    return child.pid


def process_identity(pid: int) -> str | None:
    """Return a value that identifies a process even if its id is reused later; None if there is no such process."""
    return next((started for _, started in _processes(pid).values()), None)


def _processes(pid: int | None = None) -> dict[int, tuple[int, str]]:
    """Id of each living process → its process group and the time of its start; with a pid, of that process only."""
    found = {}
    if not Path("/proc/self/stat").exists():
        which = ["-A"] if pid is None else ["-p", str(pid)]
        columns = ["-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "lstart="]
        environment = {**os.environ, "LC_ALL": "C"}
        command = ["ps", *which, *columns]
        try:
            listed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        except FileNotFoundError:
            raise LocalEngineError(
                "this system has neither /proc nor ps, so a server's process cannot be recognized",
                "Install ps (package procps).",
            ) from None
        for line in listed.stdout.splitlines():
            number, group, state, started = line.split(maxsplit=3)
            if not state.startswith("Z"):
                found[int(number)] = int(group), started
        return found
    # The start is counted in clock ticks since boot, so the boot is part of the identity.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    for name in os.listdir("/proc") if pid is None else [str(pid)]:
        try:
            text = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace") if name.isdigit() else ""
        except OSError:  # it has ended, or belongs to another user from whom the system hides it: not a server of ours
            continue
        # The second field is the program's name in parentheses, and may contain spaces and parentheses itself.
        fields = text.rpartition(")")[2].split()
        # A zombie: dead, but not yet collected by its parent. If other threads are left, only the first one is dead:
        # the process counts as alive until they release the port and the data.
        if fields and (fields[0] not in "ZX" or int(fields[17]) > 1):
            found[int(name)] = int(fields[2]), f"{boot}/{fields[19]}"
    return found


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
            if not _wait_until(lambda: process_identity(pid) != started, grace):
                os.killpg(pid, signal.SIGKILL)
                if not wait_for_group(pid):
                    raise LocalEngineError(
                        f"process {pid} does not end", "It waits for the system, most likely for a disk; try later."
                    )
        # If this process has started it, it stays a zombie until it is collected.
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        # The process ended between the check and the signal, or another process has started it.
        pass
    except PermissionError:
        raise LocalEngineError(
            f"process {pid} was started by another user", "Stop it as that user, or as root."
        ) from None


def wait_for_group(leader: int) -> bool:
    """Wait until the processes of a group have ended; False if some have not after ten seconds.

    Elasticsearch's launcher has the server as a child, which may end later and holds the lock of its data until then.
    """
    return _wait_until(lambda: all(group != leader for group, _ in _processes().values()), _KILL_SECONDS)


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def settings_file(build: EngineBuild, port: int, work: Path) -> str:
    """Build the text of `elasticsearch.yml` or `opensearch.yml`. Values are JSON strings, which are valid YAML.

    Args:
        port: HTTP port of this server.
    """
    settings = {
        "cluster.name": f"es-sbert-{build.name}",
        "node.name": f"{build.name}-{port}",
        "discovery.type": "single-node",
        # Use any free transport port: no node connects to it, and a fixed one would collide with other servers.
        "transport.port": "0",
        "network.host": LOOPBACK,
        "http.port": str(port),
        "path.data": str(work / "data"),
        "path.logs": str(work / "logs"),
        # Disable the threshold: on a disk that is 95% full, the servers would make indices read-only.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        **build.settings,
    }
    first_line = f"# Written by es-sbert at every start of {build.label}: changes are lost.\n"
    return first_line + "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())


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
    options = [f"-Xms{heap}", f"-Xmx{heap}", *environ.get("ES_SBERT_ENGINE_JAVA_OPTS", "").split()]
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
    build: EngineBuild, home: Path, port: int, work: Path, account: pwd.struct_passwd | None
) -> Path:
    """Create a server's folders and write its configuration; data and earlier logs are kept.

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
    (conf / f"{build.product.lower()}.yml").write_text(settings_file(build, port, work), encoding="utf-8")
    options = conf / "jvm.options"
    options.write_text(redirect_jvm_files(options.read_text(encoding="utf-8"), work / "logs"), encoding="utf-8")
    console = work / "logs" / "console.log"
    if console.exists():
        os.replace(console, console.with_name("console.previous.log"))
    if account is not None:
        for path in (*folders, conf, *conf.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
    work.chmod(0o700)  # documents are private
    return console
