"""The command line called inside this process, as `es-sbert` calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.cli.main import main


@dataclass(frozen=True)
class Done:
    """A command that ended."""

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


def ingest_into(cli: Cli, model: Path, url: str, index: str) -> Callable[..., Done]:
    """`es-sbert ingest` into an index, with a model of random weights; options and files of a call follow."""
    options = ("--index", index, "--url", url, "--model", model, "--precision", "fp32", "--json")
    return partial(cli, "ingest", *options, "--dead-letters", "dead.jsonl")
