"""The JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from es_sbert.errors import BundleInvalid

COPY_AGAIN = "Copy or download the model folder again."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleInvalid: missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleInvalid(f"{path} is missing", COPY_AGAIN) from error
    except (OSError, ValueError) as error:
        raise BundleInvalid(f"{path} cannot be read: {error}", COPY_AGAIN) from error
    if not isinstance(value, dict):
        raise BundleInvalid(f"{path} does not hold a JSON object", COPY_AGAIN)
    return value


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; an empty one where there is none.

    Raises:
        BundleInvalid: unreadable, or not a JSON object.
    """
    return read_json(path) if path.exists() else {}
