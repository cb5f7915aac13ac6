"""A gateway as its operator runs it, on a port of its own."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.programs import server


def serve(upstream: str, folder: Path, *options: str) -> AbstractContextManager[str]:
    """Run `es-sbert serve`.

    Args:
        upstream: Address of the engine.
        folder: Where it is run; its log is kept there.
        options: Further options of the command.

    Returns:
        Gives the gateway's address.
    """
    command = [sys.executable, "-m", "es_sbert.cli.main", "serve", "--upstream", upstream, "--port", "0"]
    return server([*command, *options], folder=folder, environment={}, log=folder / "gateway.log")
