"""The output of commands: messages, results, tables and files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from es_sbert.errors import OutputError, UsageError
from es_sbert.filesystem import is_stream, open_output

if TYPE_CHECKING:
    from es_sbert.engines.rest import Json


def print_message(message: str) -> None:
    """Print a message on stderr, for commands without --log-format."""
    click.echo(message, err=True)


def require_terminal(consequence: str) -> None:
    """Fail if there is no terminal to ask for confirmation.

    Args:
        consequence: The consequence to confirm, as the beginning of a sentence.

    Raises:
        UsageError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{consequence}, but there is no terminal to ask for confirmation", "Add --yes.")


def print_report(report: Json, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result on stdout: one JSON object with --json, else lines of text."""
    import orjson

    click.echo(orjson.dumps(report) if as_json else "\n".join(lines))


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format rows as a table, one line each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def check_output_file(path: Path, remedy: str) -> None:
    """Check that a file, which is no folder, can be written, before hours of work.

    Raises:
        OutputError: its folder is missing, or this user may not write to it.
    """
    folder = path.resolve().parent
    if not (is_stream(path) or (folder.is_dir() and os.access(folder, os.W_OK))):
        reason = "this user may not write to its folder" if folder.is_dir() else "its folder does not exist"
        raise OutputError(f"{path} cannot be written: {reason}", remedy)


def write_output_file(path: Path, parts: Iterable[bytes], remedy: str) -> None:
    """Write a file.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with open_output(path) as target:
            target.writelines(parts)
            target.flush()
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", remedy) from error
