"""Waits until no process uses a server of `tests/shared.py` any more, and stops it if they have not.

Runs as a script, without the packages of the environment: there is one for each server, for as long as the server runs.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


def main(place: Path) -> None:
    """Args: place: File of the note about the server."""
    try:
        users = os.open(place.with_suffix(".users"), os.O_RDWR)
    except FileNotFoundError:
        return  # already stopped
    fcntl.flock(users, fcntl.LOCK_EX)
    if place.exists():
        stop = "import pathlib, sys, tests.shared; tests.shared.stop_forsaken(pathlib.Path(sys.argv[1]))"
        os.execv(sys.executable, [sys.executable, "-c", stop, str(place)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
