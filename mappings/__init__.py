"""Index templates as JSON: one folder per engine."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import orjson


@cache
def read_body(name: str) -> dict[str, Any]:
    """A body as in its file; do not change it.

    Args:
        name: `FOLDER/FILE` without its ending, e.g. `opensearch/index`.
    """
    body: dict[str, Any] = orjson.loads(resources.files(__name__).joinpath(f"{name}.json").read_bytes())
    return body
