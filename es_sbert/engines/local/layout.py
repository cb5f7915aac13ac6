"""Where installed servers, their data and the notes about running ones lie on disk.

    HOME/dist/es9-9.4.3-1a2b3c4d/     an unpacked server, shared by all servers of that version
    HOME/servers/es9-9200/            conf, data, logs and tmp of one server
    HOME/state/es9-9200.json          written while that server runs
    HOME/state/*.lock                 held by whoever installs, starts or stops

HOME is `ES_SBERT_ENGINE_HOME`, else `/var/lib/es-sbert/engines` for root (the server's user must be able to
read it, and /root is closed), else `$XDG_DATA_HOME/es-sbert/engines`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from es_sbert.engines.local.account import Account
from es_sbert.errors import LocalEngineError
from es_sbert.home import expanded, home_folder

HOME_VARIABLE = "ES_SBERT_ENGINE_HOME"
_ELSEWHERE = f"Set {HOME_VARIABLE} to a folder on a local disk with 2 GB of room."


@dataclass(frozen=True)
class Layout:
    """Paths under one home."""

    home: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, root: bool) -> Layout:
        """The home that the environment names, or the default one.

        Raises:
            LocalEngineError: its path holds white space, which the servers' start scripts cannot take.
            UsageError: nothing says where it is.
        """
        if given := environ.get(HOME_VARIABLE):
            home = expanded(given).absolute()
        elif root:
            home = Path("/var/lib/es-sbert/engines")
        else:
            shared = environ.get("XDG_DATA_HOME")
            if not shared:
                shared = os.path.join(environ.get("HOME") or home_folder(HOME_VARIABLE), ".local", "share")
            home = Path(shared, "es-sbert", "engines").absolute()
        if any(character.isspace() for character in str(home)):
            raise LocalEngineError(
                f"the folder for search engines, {str(home)!r}, has a blank in its path, "
                "which the engines' start scripts cannot take",
                f"Set {HOME_VARIABLE} to a folder without one.",
            )
        return cls(home)

    @property
    def dist(self) -> Path:
        return self.home / "dist"

    @property
    def servers(self) -> Path:
        return self.home / "servers"

    @property
    def state(self) -> Path:
        return self.home / "state"

    def work(self, name: str, port: int) -> Path:
        """Folder of one server's configuration, data and logs."""
        return self.servers / f"{name}-{port}"

    def create(self, account: Account | None) -> None:
        """Make the folders.

        Raises:
            LocalEngineError: they cannot be written, or the servers' user could not reach them.
        """
        with storage_errors(self.home):
            for folder in (self.dist, self.servers, self.state):
                make_folder(folder)
            if account is not None and not account.can_enter(self.servers):
                raise LocalEngineError(
                    f"root's search engines run as the user {account.name}, who cannot enter {self.home}",
                    f"Set {HOME_VARIABLE} to a folder that every user may enter, such as /var/lib/es-sbert.",
                )


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, open to readers whatever the umask says."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        each.chmod(0o755)


@contextmanager
def storage_errors(home: Path) -> Iterator[None]:
    """Turn errors of the file system into `LocalEngineError`."""
    try:
        yield
    except OSError as error:
        where = error.filename or home
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = f"; {shutil.disk_usage(home).free // 2**20} MB are left" if home.exists() else ""
            raise LocalEngineError(
                f"the disk of {home} is full{free}", f"Make room, or move elsewhere: {_ELSEWHERE}"
            ) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise LocalEngineError(f"cannot write to {where}: {reason}", _ELSEWHERE) from error
