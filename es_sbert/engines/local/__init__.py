"""Run real search engines on this machine without Docker; Maven downloads them.

engine = start_engine("es9")
print(engine.url)
stop_engine(engine)

cluster = start_cluster("es9", nodes=3)
print(cluster.urls)
stop_cluster(cluster.nodes)
"""

from __future__ import annotations

import os

from es_sbert.errors import LocalEngineError

if os.name != "posix":
    raise LocalEngineError(
        "the engines' start scripts and `es-sbert engine` need a Unix-like system",
        "Use docker-compose.yml, or the Windows Subsystem for Linux.",
    )

from es_sbert.engines.local.engine_builds import ENGINES, find_build
from es_sbert.engines.local.engine_home import RunningEngine
from es_sbert.engines.local.local_engine import (
    RunningCluster,
    folders_in_shared_use,
    purge_stopped,
    running_engines,
    start_cluster,
    start_engine,
    start_node,
    stop_cluster,
    stop_engine,
    stopped_servers,
)

__all__ = [
    "ENGINES",
    "RunningCluster",
    "RunningEngine",
    "find_build",
    "folders_in_shared_use",
    "purge_stopped",
    "running_engines",
    "start_cluster",
    "start_engine",
    "start_node",
    "stop_cluster",
    "stop_engine",
    "stopped_servers",
]
