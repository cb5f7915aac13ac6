"""`es-sbert` in a process of its own that does not pay for its start: forked from one that has all loaded already."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "es_sbert.cli.main",
        "es_sbert.cli.ingest",
        "es_sbert.ingest.load",
        "es_sbert.encoder.encoder",
        "es_sbert.engines.connect",
        "es_sbert.search.semantic_index",
    ]
)


class OwnProcess:
    """A command that runs.

    Args:
        arguments: After `es-sbert`.
        folder: Working folder.
        environment: The whole of it.
        prints: What it prints goes to two files of this name, with `.out` and `.err` behind it.
        debug: Whether everything that a library may log is logged.
        broken: Whether a mistake of the program's own ends it in a traceback.
    """

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str],
        prints: Path,
        *,
        debug: bool = False,
        broken: bool = False,
    ) -> None:
        self._out, self._err = prints.with_suffix(".out"), prints.with_suffix(".err")
        self._process = _CONTEXT.Process(
            target=_run, args=(arguments, folder, dict(environment), self._out, self._err, debug, broken)
        )
        self._process.start()

    @property
    def out(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    def end(self) -> int:
        """Wait for it; its exit code."""
        self._process.join(240)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        assert code is not None, f"it does not end: {self.err}"
        return code


def _run(
    arguments: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path, debug: bool, broken: bool
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if debug:
        import elastic_transport

        logging.basicConfig(level=logging.DEBUG)
        elastic_transport.debug_logging()
    if broken:
        from es_sbert.encoder.encoder import Encoder

        Encoder.embed_until = _fail  # type: ignore[assignment]
    from es_sbert.cli.main import main

    try:
        main(arguments)
    except Exception:
        # As the interpreter ends a program.
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def _fail(*arguments: object) -> None:
    raise RuntimeError("broken on purpose")
