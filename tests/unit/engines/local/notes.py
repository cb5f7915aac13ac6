"""Notes about running servers."""

from __future__ import annotations

import os
from pathlib import Path

from es_sbert.engines.local import RunningEngine
from es_sbert.engines.local.server_process import process_identity


def engine(name: str = "es9", port: int = 9200, started: str | None = None) -> RunningEngine:
    """A note about this very test process, which is alive."""
    return RunningEngine(
        name=name,
        version="9.5.0",
        port=port,
        url=f"http://localhost:{port}",
        pid=os.getpid(),
        started=started or process_identity(os.getpid()) or "",
        work=Path("/w"),
        log=Path("/w/logs/console.log"),
    )
