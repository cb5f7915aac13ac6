"""Golden files: JSON that a pure builder must give, one folder for each engine, and the messages of refused commands.

`ES_SBERT_UPDATE_GOLDEN=1` rewrites them from what the tests get now (`-n0`); read the difference before committing it.
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


def golden_messages() -> dict[str, str]:
    """Arguments of each refused command → what it writes to stderr. A new command is a line in messages.txt."""
    blocks = (FOLDER / "messages.txt").read_text(encoding="utf-8").split("$ es-sbert ")[1:]
    return {name: text.strip() for name, _, text in (block.partition("\n") for block in blocks)}


def assert_golden_message(command: str, text: str) -> None:
    """Compare what a command writes with its block of messages.txt."""
    messages = golden_messages()
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        messages[command] = text.strip()
        blocks = (f"$ es-sbert {name}\n{messages[name]}\n" for name in sorted(messages))
        (FOLDER / "messages.txt").write_text("\n".join(blocks), encoding="utf-8")
    assert messages[command] == text.strip()
