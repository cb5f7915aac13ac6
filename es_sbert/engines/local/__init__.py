"""Real search engines on this machine, fetched with Maven and run without Docker.

engine = start_engine("es9")
print(engine.url)
stop_engine(engine)
"""

from __future__ import annotations

import os

from es_sbert.errors import LocalEngineError

if os.name != "posix":
    raise LocalEngineError(
        "the engines' start scripts and `es-sbert engine` need a Unix-like system",
        "Use docker-compose.yml, or the Windows Subsystem for Linux.",
    )

from es_sbert.engines.local.catalogue import ENGINES, lookup
from es_sbert.engines.local.server import purge_stopped, running_engines, start_engine, stop_engine
from es_sbert.engines.local.state import RunningEngine

__all__ = [
    "ENGINES",
    "RunningEngine",
    "lookup",
    "purge_stopped",
    "running_engines",
    "start_engine",
    "stop_engine",
]
