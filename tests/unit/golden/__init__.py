"""Golden files: JSON that a pure builder must give, one folder for each engine.

`ES_SBERT_UPDATE_GOLDEN=1` rewrites them from what the builders give now; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json

FOLDER = Path(__file__).parent


def assert_golden(engine_type: EngineType, name: str, body: Json) -> None:
    """Compare a body with `<engine_type>/<name>.json`."""
    file = FOLDER / engine_type / f"{name}.json"
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        file.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    assert orjson.loads(file.read_bytes()) == orjson.loads(orjson.dumps(body))
