"""The command line called inside this process, as `es-sbert` calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.cli.main import main


@dataclass(frozen=True)
class Done:
    """A command that ended.

    Attributes:
        code: Exit code.
        out, err: What it printed.
    """

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `--json` printed."""
        summary: dict[str, Any] = orjson.loads(self.out)
        return summary


Cli = Callable[..., Done]


def cli_in_process(capfd: pytest.CaptureFixture[str]) -> Cli:
    """A function that runs `es-sbert ARGUMENTS…`; an unexpected exception fails the test by itself."""

    def call(*arguments: str | Path) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Done(int(caught.value.code or 0), out, err)

    return call
