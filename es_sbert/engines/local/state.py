"""Notes about the servers that run, one JSON file each."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from es_sbert.engines.local.process import identity
from es_sbert.errors import LocalEngineError


class RunningEngine(BaseModel):
    """A server that `start_engine` started.

    Attributes:
        name: Of the build: `es9`, `opensearch`, …
        version: Of the server, `9.4.3`.
        url: Its address, `http://localhost:9200`.
        pid: Id of the process that was started; it is also the id of its process group.
        started: `process.identity` of that process.
        work: Folder with its configuration, data and logs.
        log: What the server prints.
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
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return identity(self.pid) == self.started


def write_state(folder: Path, engine: RunningEngine) -> None:
    """Write the note; readers see the old one or the new one, never half."""
    path = _path(folder, engine.name, engine.port)
    draft = path.with_suffix(".draft")
    draft.write_text(engine.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_state(folder: Path, name: str, port: int) -> RunningEngine | None:
    """The server of that name and port, if it is alive."""
    return _read(_path(folder, name, port))


def remove_state(folder: Path, engine: RunningEngine) -> None:
    """Forget a server."""
    _path(folder, engine.name, engine.port).unlink(missing_ok=True)


def all_alive(folder: Path) -> list[RunningEngine]:
    """All servers that are alive, by name and port.

    Notes about dead ones are left: the next start overwrites them, and only that one holds the lock.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error
    found = [_read(folder / name) for name in names if name.endswith(".json")]
    return sorted((engine for engine in found if engine), key=lambda engine: (engine.name, engine.port))


def _path(folder: Path, name: str, port: int) -> Path:
    return folder / f"{name}-{port}.json"


def _unreadable(path: Path, error: OSError) -> LocalEngineError:
    return LocalEngineError(
        f"{path} cannot be read: {error.strerror}", "Run this as the user who started the servers, or as root."
    )


def _read(path: Path) -> RunningEngine | None:
    try:
        engine = RunningEngine.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise LocalEngineError(
            f"{path} is not a note about a running server: {first['msg']}",
            "Stop the server that it is about, if one runs, and remove the file.",
        ) from error
    return engine if engine.alive else None
