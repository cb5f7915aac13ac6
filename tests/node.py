"""The projects in `examples/` that Node.js runs, installed and built as their READMEs say."""

from __future__ import annotations

import shutil
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from tests.programs import program, run, server

EXAMPLES = Path(__file__).parents[1] / "examples"


def install_node_project(project: Path, folder: Path, *, build: bool = False) -> Path:
    """Copy a project without what was built of it, and install its packages from the lock file."""
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    npm = program("npm")
    run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder=folder)
    if build:
        run([npm, "run", "build"], folder=folder)
    return folder


def serve_node_app(folder: Path, host: str, index: str) -> AbstractContextManager[str]:
    """Run an application's server."""
    environment = {"ELASTICSEARCH_HOST": host, "ELASTICSEARCH_INDEX": index, "PORT": "0"}
    log = folder / f"server-{uuid.uuid4().hex}.log"  # several may run at the same time
    return server([program("node"), "server.js"], folder=folder, environment=environment, log=log)
