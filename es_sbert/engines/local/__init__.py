"""Run real search engines on this machine without Docker; Maven downloads them.

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

from es_sbert.engines.local.engine_builds import ENGINES, EngineBuild
from es_sbert.engines.local.engine_home import RunningEngine
from es_sbert.engines.local.local_engine import LocalServer, find_servers, start_engine, stop_engine

__all__ = ["ENGINES", "EngineBuild", "LocalServer", "RunningEngine", "find_servers", "start_engine", "stop_engine"]
