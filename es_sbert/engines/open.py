"""An engine from whatever a caller has: an address, settings, a client of their own, or an engine."""

from __future__ import annotations

from typing import Any

from es_sbert.config import EngineSettings
from es_sbert.engines.adopt import adopt
from es_sbert.engines.connect import connect
from es_sbert.engines.protocol import Engine


def open_engine(engine: Any) -> Engine:
    """Connect, or use what is open already.

    Args:
        engine: None for the settings of the environment; else an address, settings, a client of elasticsearch-py or
            opensearch-py, or an engine.

    Raises:
        UsageError: an asynchronous client, or none of these.
        EngineError: the engine cannot be used.
    """
    if engine is None or isinstance(engine, str):
        return connect(EngineSettings() if engine is None else EngineSettings(url=engine))
    if isinstance(engine, EngineSettings):
        return connect(engine)
    if not hasattr(engine, "get_indices"):  # an engine is whatever has the methods of one
        return adopt(engine)
    opened: Engine = engine
    return opened
