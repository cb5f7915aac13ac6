"""stdin, stdout and stderr, so that every command can rely on them."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Open the streams that the caller has closed, and let stdout take letters that its encoding lacks, as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # In this order: each gets the lowest free number, its own, which a file opened later would get otherwise.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the program
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def give_up_stdout() -> None:
    """Let what is left of the output go nowhere: Python would try to write it once more at the end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
