"""The user's home folder, which services and containers may run without."""

from __future__ import annotations

import os
from pathlib import Path

from es_sbert.errors import UsageError


def expanded(path: str) -> Path:
    """A path with `~` and `~user` replaced where it is known whose home that is; else as it stands."""
    return Path(os.path.expanduser(path))


def home_folder(variable: str) -> Path:
    """The home of this user.

    Args:
        variable: Of the environment: names the folder that is looked for there.

    Raises:
        UsageError: HOME is not set, and the system does not know the user.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("this user has no home folder", f"Set HOME, or {variable} to a folder to write to.") from error
