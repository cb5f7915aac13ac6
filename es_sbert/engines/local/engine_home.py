"""Paths of installed engines, of their data, and of the state files of running servers.

    HOME/dist/es9-9.4.3-1a2b3c4d/     an unpacked server, shared by all servers of that version
    HOME/servers/es9-9200/            conf, data, logs, tmp of one server; `uses`: how often it was started or found
    HOME/state/es9-9200.json          exists while that server runs
    HOME/state/*.lock                 held during install, start and stop

HOME is `ES_SBERT_ENGINE_HOME`, else `/var/lib/es-sbert/engines` for root (the server's user cannot read /root), else
`$XDG_DATA_HOME/es-sbert/engines`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from es_sbert.config import expand_home, home_folder
from es_sbert.engines.local.server_process import Account, holds_data, process_identity
from es_sbert.errors import LocalEngineError

HOME_VARIABLE = "ES_SBERT_ENGINE_HOME"
_ELSEWHERE = f"Set {HOME_VARIABLE} to a folder on a local disk with 2 GB of free space."


def up_command(name: str, port: int, nodes: int = 1) -> str:
    """The command that starts a server or a cluster."""
    return f"es-sbert engine up {name} --port {port}" + (f" --nodes {nodes}" if nodes > 1 else "")


def down_command(name: str, port: int) -> str:
    """The command that stops a server or a cluster."""
    return f"es-sbert engine down {name} --port {port}"


class RunningEngine(BaseModel):
    """A server that `start_engine` started.

    Attributes:
        name: Name of the build: `es9`, `opensearch`, …
        version: Version of the server, such as `9.4.3`.
        url: Its address, `http://localhost:9200`.
        pid: Id of the process that was started; it is also the id of its process group.
        started: `process_identity` of that process.
        work: Folder with its configuration, data and logs.
        log: File with the server's console output.
        cluster_ports: HTTP ports of all nodes of its cluster; empty for a single server.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    version: str
    port: int
    url: str
    pid: int
    started: str
    work: Path
    log: Path
    cluster_ports: tuple[int, ...] = ()

    @property
    def all_ports(self) -> tuple[int, ...]:
        """HTTP ports of all nodes of its cluster; a single server has one."""
        return self.cluster_ports or (self.port,)

    @property
    def down_command(self) -> str:
        """The command that stops it, with the other nodes of its cluster."""
        return down_command(self.name, self.all_ports[0])

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return process_identity(self.pid) == self.started


class EngineHome:
    """Paths under one home.

    Attributes:
        home: The home folder.
        dist, servers, state: Its folders; see the table at the top of this module.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.dist = home / "dist"
        self.servers = home / "servers"
        self.state = home / "state"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, root: bool) -> EngineHome:
        """Determine the home: the one that the environment names, or the default one.

        Raises:
            LocalEngineError: the path contains whitespace, which the servers' start scripts do not support.
            UsageError: the user's home folder cannot be determined.
        """
        if given := environ.get(HOME_VARIABLE):
            home = expand_home(given).absolute()
        elif root:
            home = Path("/var/lib/es-sbert/engines")
        else:
            shared = environ.get("XDG_DATA_HOME")
            if not shared:
                shared = os.path.join(environ.get("HOME") or home_folder(HOME_VARIABLE), ".local", "share")
            home = Path(shared, "es-sbert", "engines").absolute()
        if any(character.isspace() for character in str(home)):
            raise LocalEngineError(
                f"the folder for search engines, {str(home)!r}, has a space in its path, "
                "which the engines' start scripts do not support",
                f"Set {HOME_VARIABLE} to a folder without a space in its path.",
            )
        return cls(home)

    def work(self, name: str, port: int) -> Path:
        """Folder of one server's configuration, data and logs."""
        return self.servers / f"{name}-{port}"

    def create(self, account: Account | None) -> None:
        """Create the folders.

        Raises:
            LocalEngineError: the folders cannot be written, or the servers' user cannot enter them.
        """
        with storage_errors(self.home):
            for folder in (self.dist, self.servers, self.state):
                make_folder(folder)
            if account is not None and not account.can_enter(self.servers):
                raise LocalEngineError(
                    f"root's search engines run as the user {account.name}, who cannot enter {self.home}",
                    f"Set {HOME_VARIABLE} to a folder that every user may enter, such as /var/lib/es-sbert.",
                )

    def lock_file(self, name: str, port: int) -> Path:
        """The lock that is held while the server of that name and port is started or stopped."""
        return self.state / f"{name}-{port}.lock"

    def write_state(self, engine: RunningEngine) -> None:
        """Write the state of a server atomically."""
        path = self._state_file(engine.name, engine.port)
        draft = path.with_suffix(".draft")
        draft.write_text(engine.model_dump_json(indent=2) + "\n", encoding="utf-8")
        os.replace(draft, path)

    def read_state(self, name: str, port: int) -> RunningEngine | None:
        """The server of that name and port, if it is alive."""
        engine = self.last_state(name, port)
        return engine if engine and engine.is_alive else None

    def last_state(self, name: str, port: int) -> RunningEngine | None:
        """The server last started with that name and port, alive or not; None if it was stopped."""
        return _read_state_file(self._state_file(name, port))

    def forget(self, name: str, port: int, *, purge: bool = False) -> None:
        """Remove the state of a server that has ended.

        Args:
            purge: Also remove its folder of configuration, data and logs.
        """
        self._state_file(name, port).unlink(missing_ok=True)
        work = self.work(name, port)
        if purge and work.exists():
            shutil.rmtree(work)

    def write_uses(self, name: str, port: int, count: int) -> None:
        """Store the number of times that `engine up` has started or found a server with its current data."""
        self._uses_file(name, port).write_text(f"{count}\n", encoding="ascii")

    def uses(self, name: str, port: int) -> int:
        """Number of times that `engine up` has started or found a server with its current data."""
        try:
            return int(self._uses_file(name, port).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            # Existing data counts as one use: it is from a version of es-sbert that did not count.
            return 1 if holds_data(self.work(name, port)) else 0

    def started_at(self, engine: RunningEngine) -> datetime:
        """Time at which a server was started, in local time."""
        return datetime.fromtimestamp(self._state_file(engine.name, engine.port).stat().st_mtime).astimezone()

    def running_engines(self) -> list[RunningEngine]:
        """All servers that are alive, by name and port.

        State files of stopped servers stay: the next start overwrites them under its lock.
        """
        try:
            names = os.listdir(self.state)
        except FileNotFoundError:  # no server was ever started
            return []
        except OSError as error:
            raise _unreadable_error(self.state, error) from error
        found = [_read_state_file(self.state / name) for name in names if name.endswith(".json")]
        return sorted(
            (engine for engine in found if engine and engine.is_alive), key=lambda engine: (engine.name, engine.port)
        )

    def _uses_file(self, name: str, port: int) -> Path:
        return self.work(name, port) / "uses"

    def _state_file(self, name: str, port: int) -> Path:
        return self.state / f"{name}-{port}.json"


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, readable by everyone regardless of the umask."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        each.chmod(0o755)


@contextmanager
def storage_errors(home: Path) -> Iterator[None]:
    """Convert errors of the file system to `LocalEngineError`."""
    try:
        yield
    except OSError as error:
        where = error.filename or home
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = f"; {shutil.disk_usage(home).free // 2**20} MB are left" if home.exists() else ""
            raise LocalEngineError(
                f"the disk of {home} is full{free}", f"Free disk space, or use another folder: {_ELSEWHERE}"
            ) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise LocalEngineError(f"cannot write to {where}: {reason}", _ELSEWHERE) from error


def _unreadable_error(path: Path, error: OSError) -> LocalEngineError:
    return LocalEngineError(
        f"{path} cannot be read: {error.strerror}", "Run this as the user who started the servers, or as root."
    )


def _read_state_file(path: Path) -> RunningEngine | None:
    try:
        engine = RunningEngine.model_validate_json(path.read_bytes())
    except FileNotFoundError:  # another command has just removed it
        return None
    except OSError as error:
        raise _unreadable_error(path, error) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise LocalEngineError(
            f"{path} is not the state of a running server: {first['msg']}",
            "Stop its server, if that still runs, and remove the file.",
        ) from error
    return engine
