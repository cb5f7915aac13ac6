"""Generate queries for texts with a command that the user chooses: a language model, a service, a script.

The command reads one JSON object per line on standard input, {"id": …, "text": …}, and writes one per line on standard
output, {"id": …, "query": …}, in any order. It shares standard error with es-sbert. Each query is stored as soon as it
arrives, so that an interrupted run generates only the rest.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

import orjson

from es_sbert.errors import SourceError, UsageError
from es_sbert.messages import pluralize
from es_sbert.training.training_errors import translate_disk_errors

# Seconds between two progress messages.
_REPORT_SECONDS = 30.0
_JOIN_SECONDS = 5.0
_FORMAT = 'one object per line on standard output, {"id": "the id of the text", "query": "a query"}'
# Maximum number of characters of a line in messages.
_SHOWN = 80


def generate_queries(
    command: str, texts: Mapping[str, str], path: Path, report: Callable[[str], None]
) -> dict[str, str]:
    """Generate a query for each text, except for those whose query an earlier call has stored.

    Args:
        command: Program and arguments, as in a shell; no shell runs it.
        texts: Id → text.
        path: File of the stored queries, JSON Lines.
        report: Called with progress messages.

    Returns:
        Id → query without surrounding white space; empty if the command wrote an empty query for the text.

    Raises:
        UsageError: the command cannot be started.
        SourceError: the command failed, or wrote something other than a query for each text. Queries that arrived
            before are kept.
        OutputError: the queries cannot be written.
    """
    generated = _read_kept(path)
    missing = {identifier: text for identifier, text in texts.items() if identifier not in generated}
    if missing:
        kept = f"; {len(texts) - len(missing):,} are kept from before" if len(missing) < len(texts) else ""
        report(f"Generating queries for {pluralize(len(missing), 'text')} with {command}{kept}")
        generated |= _Generation(command, missing, path, report).run()
    return {identifier: generated[identifier] for identifier in texts}


def _read_kept(path: Path) -> dict[str, str]:
    """Read the queries in a file. An incomplete last line is removed from it, so that others can be appended."""
    if not path.is_file():
        return {}
    whole, _, cut = path.read_bytes().rpartition(b"\n")
    if cut:
        with translate_disk_errors(path.parent):
            path.write_bytes(whole + b"\n" if whole else b"")
    rows = map(orjson.loads, whole.splitlines())
    return {row["id"]: row["query"] for row in rows}


class _Generation:
    """One run of the command; arguments as for `generate_queries`, with the texts that have no query yet."""

    def __init__(self, command: str, texts: Mapping[str, str], path: Path, report: Callable[[str], None]) -> None:
        self._command, self._texts, self._path, self._report = command, texts, path, report
        self._queries: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Run the command; return id → query of all texts."""
        process = self._start()
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        feeder = threading.Thread(target=_feed, args=(process.stdin, self._texts), name="feed generator", daemon=True)
        feeder.start()
        try:
            unended = self._receive(process.stdout)
            status = process.wait()
        finally:
            if process.poll() is None:  # interrupted, or its output was refused
                _kill(process)
            process.stdout.close()
            feeder.join(_JOIN_SECONDS)  # it may wait for a process that the command has left behind
        if unended is not None and not status:
            self._keep(*unended)
        self._check_end(status)
        return self._queries

    def _start(self) -> subprocess.Popen[bytes]:
        remedy = 'Pass a program and its arguments as in a shell, such as `generator="python generate.py"`.'
        try:
            arguments = shlex.split(self._command)
        except ValueError as error:
            raise UsageError(f"the generator {self._command!r} is not a command: {error}", remedy) from error
        if not arguments:
            raise UsageError("the generator is empty", remedy)
        try:
            # Start a new session, so that the command's own child processes can be ended with it.
            return subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=sys.platform != "win32"
            )
        except OSError as error:
            raise UsageError(f"the generator {arguments[0]} cannot be started: {error.strerror}", remedy) from error

    def _receive(self, output: Iterable[bytes]) -> tuple[int, bytes] | None:
        """Store all queries. An incomplete last line is returned with its number: the command may have failed."""
        told = time.monotonic()
        for number, line in enumerate(output, 1):
            if not line.endswith(b"\n"):
                return number, line
            self._keep(number, line)
            if time.monotonic() - told > _REPORT_SECONDS:
                told = time.monotonic()
                self._report(f"{len(self._queries):,} of {len(self._texts):,} queries are generated")
        return None

    def _keep(self, number: int, line: bytes) -> None:
        if not line.strip():
            return
        identifier, query = self._parse(number, line)
        if identifier in self._queries:  # the first one counts
            return
        self._queries[identifier] = query
        with translate_disk_errors(self._path.parent), self._path.open("ab") as kept:
            kept.write(orjson.dumps({"id": identifier, "query": query}) + b"\n")

    def _parse(self, number: int, line: bytes) -> tuple[str, str]:
        """Parse the id and the query of a line."""
        location = f"line {number:,} of the generator's output"
        shown = line[:_SHOWN].decode("utf-8", "replace").strip()
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SourceError(
                f"{location} is not JSON: {shown}", f"Write {_FORMAT}, and logs to standard error."
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not isinstance(row.get("query"), str):
            raise SourceError(f"{location} lacks an id or a query: {shown}", f"Write {_FORMAT}; both are strings.")
        if row["id"] not in self._texts:
            raise SourceError(
                f"{location} has the id {row['id']!r}, which the generator was not given",
                "Write the id of the text that the query is for, unchanged.",
            )
        return row["id"], " ".join(row["query"].split())

    def _check_end(self, status: int) -> None:
        """Check the exit status of the command, and that it wrote a query for each text."""
        missing = [identifier for identifier in self._texts if identifier not in self._queries]
        if not status and not missing:
            return
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        lacking = f", without that of the id {missing[0]!r}" if missing and not status else ""
        raise SourceError(
            f"the generator ended with {ended} after {len(self._queries):,} of "
            f"{pluralize(len(self._texts), 'query', 'queries')}{lacking}",
            f"Write {_FORMAT}, with an empty query if a text has none; see its standard error. Run es-sbert again with "
            "`resume`: queries that have arrived are kept.",
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and the processes that it has started."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _feed(pipe: IO[bytes], texts: Mapping[str, str]) -> None:
    """Write all texts to the command. If it ends early, its exit status and output say why."""
    with contextlib.suppress(OSError):
        for identifier, text in texts.items():
            pipe.write(orjson.dumps({"id": identifier, "text": text}) + b"\n")
            # Flush every line, so that a command that answers line by line gets its first line at once.
            pipe.flush()
    with contextlib.suppress(OSError):  # the command has closed its end
        pipe.close()
