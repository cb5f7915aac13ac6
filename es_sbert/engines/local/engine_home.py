"""Paths of installed engines, of their data, and of the state files of running servers.

    HOME/dist/es9-9.4.3-1a2b3c4d/     an unpacked server, shared by all servers of that version
    HOME/servers/es9-9200/            conf, data, logs, tmp of one server
    HOME/state/es9-9200.json          exists while that server runs
    HOME/state/*.lock                 held during install, start and stop

HOME is `ES_SBERT_ENGINE_HOME`, else `/var/lib/es-sbert/engines` for root (the server's user cannot read /root), else
`$XDG_DATA_HOME/es-sbert/engines`.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from es_sbert.config import expand_home, home_folder
from es_sbert.engines.local.server_process import may_enter, process_identity
from es_sbert.errors import LocalEngineError, error_summary
from es_sbert.filesystem import open_output

HOME_VARIABLE = "ES_SBERT_ENGINE_HOME"


class RunningEngine(BaseModel):
    """A server that `start_engine` started.

    Attributes:
        name: Name of the build: `es9`, `opensearch`, …
        version: Version of the server, such as `9.4.3`.
        url: Its address, `http://localhost:9200`.
        pid: Id of the process that was started; it is also the id of its process group.
        started: `process_identity` of that process.
        work: Folder with its configuration, data and logs.
        log: File with its console output.
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

    def create(self, account: pwd.struct_passwd | None) -> None:
        """Create the folders.

        Raises:
            LocalEngineError: the folders cannot be written, or the servers' user cannot enter them.
        """
        with storage_errors(self.home):
            for folder in (self.dist, self.servers, self.state):
                make_folder(folder)
        if account is not None and not may_enter(account, self.servers):
            raise LocalEngineError(
                f"root's search engines run as the user {account.pw_name}, who cannot enter {self.home}",
                f"Set {HOME_VARIABLE} to a folder that every user may enter, such as /var/lib/es-sbert.",
            )

    def work(self, name: str, port: int) -> Path:
        """Folder of one server's configuration, data and logs."""
        return self.servers / f"{name}-{port}"

    def write_state(self, engine: RunningEngine) -> None:
        """Write the state of a server atomically."""
        with open_output(self._state_file(engine.name, engine.port)) as file:
            file.write(engine.model_dump_json(indent=2).encode() + b"\n")

    def last_state(self, name: str, port: int) -> RunningEngine | None:
        """The server last started with that name and port, alive or not; None if it was stopped.

        Raises:
            LocalEngineError: the file cannot be read.
        """
        path = self._state_file(name, port)
        try:
            return RunningEngine.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise LocalEngineError(
                f"{path} cannot be read: {error_summary(error)}",
                "Run this as the user who started the server, or as root. If it does not run, remove the file.",
            ) from error

    def running(self, name: str, port: int) -> RunningEngine | None:
        """The server of that name and port, if it is alive."""
        engine = self.last_state(name, port)
        return engine if engine and engine.is_alive else None

    def forget(self, name: str, port: int, *, purge: bool = False) -> None:
        """Remove the state of a server that has ended.

        Args:
            purge: Also remove its folder of configuration, data and logs.
        """
        self._state_file(name, port).unlink(missing_ok=True)
        work = self.work(name, port)
        if purge and work.exists():
            shutil.rmtree(work)

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
        raise LocalEngineError(
            f"cannot write to {error.filename or home}: {error.strerror or error}",
            f"Free disk space, or set {HOME_VARIABLE} to a folder on a local disk with 2 GB of free space.",
        ) from error
