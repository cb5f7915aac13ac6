"""One load under test: a source, an index, and the real command line between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import open_engine
from tests.faults.corpus import MAPPING, Corpus
from tests.faults.servers import OwnServer
from tests.faulty_proxy import Hold, holding

_REPOSITORY = Path(__file__).parents[2]
# However slow the machine is: whatever takes longer hangs.
_LIMIT = 900.0


class FaultNotFelt(Exception):
    """The load ended before the fault could do anything to it: the run says nothing."""


class WrongEnd(Exception):
    """A command did not end as it must."""


class Load:
    """`es-sbert ingest`, running."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None,
        preexec: Callable[[], None] | None,
    ) -> None:
        self._messages = folder / f"messages-{time.monotonic_ns()}"
        self._out = self._messages.with_suffix(".json")
        paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        paths = [*filter(None, [(environment or {}).get("PYTHONPATH")]), *paths]
        merged = os.environ | (environment or {}) | {"PYTHONPATH": os.pathsep.join(paths)}
        # Files, not pipes: nobody reads while a fault is being made, and a full pipe would be a fault of ours.
        with self._messages.open("wb") as messages, self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=messages, cwd=folder, env=merged, preexec_fn=preexec
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def messages(self) -> str:
        """What it has said so far."""
        return self._messages.read_text()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_until(self, condition: Callable[[], bool], pause: float = 0.02) -> None:
        """Wait for something that must happen while the load runs."""
        deadline = time.monotonic() + _LIMIT
        while not condition():
            if not self.running:
                raise FaultNotFelt(f"the load had ended ({self._process.returncode}): {self.messages}")
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise WrongEnd(f"what was waited for does not happen: {self.messages}")
            time.sleep(pause)

    def end(self, *codes: int) -> str:
        """Wait for its end; its messages."""
        try:
            code = self._process.wait(_LIMIT)
        except subprocess.TimeoutExpired as error:
            self.send(signal.SIGKILL)
            raise WrongEnd(f"the load does not end: {self.messages}") from error
        if code not in codes or "Traceback" in self.messages:
            raise WrongEnd(f"the load ended with {code}, not {codes}: {self.messages}")
        return self.messages

    def end_now(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait()

    @property
    def summary(self) -> dict[str, Any]:
        """Of a load that has ended."""
        out = self._out.read_bytes()
        try:
            summary: dict[str, Any] = orjson.loads(out)
        except orjson.JSONDecodeError as error:
            raise WrongEnd(f"standard output is not the summary alone: {out!r}") from error
        return summary


@dataclass
class Bench:
    """A source, an index and the command that loads one into the other."""

    engine: str
    url: str
    index: str
    model: Path
    encoder: Encoder
    folder: Path
    corpus: Corpus
    outage: float
    server: OwnServer | None = None
    kills: int = 10
    options: tuple[str, ...] = ("--batch-window", "32", "--bulk-bytes", "20000")
    _loads: list[Load] = field(default_factory=list, init=False)

    @property
    def commands(self) -> int:
        """How many were started."""
        return len(self._loads)

    def __post_init__(self) -> None:
        self.source = self.folder / "docs.jsonl"
        self.state = self.folder / "load-state"
        self.letters = self.folder / "dead-letters.jsonl"
        self.arguments = [str(self.source)]
        self.corpus.write(self.source)

    @property
    def own(self) -> OwnServer:
        assert self.server is not None, "this fault needs a server of its own"
        return self.server

    def create(self, shards: int, more: Mapping[str, str] | None = None) -> None:
        """Create the index as somebody who loads into it later would."""
        with open_engine(self.url) as engine:
            settings = {"number_of_shards": shards, "number_of_replicas": 0, "refresh_interval": "5s", **(more or {})}
            engine.create_index(self.index, {"settings": settings, "mappings": MAPPING})

    def close(self) -> None:
        """End what a fault that failed has left running."""
        for load in self._loads:
            load.end_now()

    def start(
        self,
        *more: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
        url: str | None = None,
    ) -> Load:
        """Start the command."""
        command = [
            *prefix, sys.executable, "-m", "es_sbert", "ingest", "--index", self.index, "--url", url or self.url,
            "--model", str(self.model), "--precision", "fp32", "--threads", "1", "--id-field", "id", "--json",
            "--index-type", "flat", *self.options, "--state", str(self.state),
            "--dead-letters", str(self.letters), *more,
        ]  # fmt: skip
        if "--retry" not in more:
            command += self.arguments
        self._loads.append(Load(command, self.folder, environment, preexec))
        return self._loads[-1]

    def finish(self, *more: str) -> dict[str, Any]:
        """A command that must come to its end; its summary."""
        return self.ended(self.start(*more))

    def ended(self, load: Load) -> dict[str, Any]:
        """The summary of a load that must come to the end of its source."""
        load.end(0, 1)
        if load.summary["stopped"] is not None or self.state.exists():
            raise WrongEnd(f"the load stopped before its end: {load.messages}")
        return load.summary

    def part_is_in(self, part: float) -> bool:
        """Whether this part of the documents is in the index."""
        with open_engine(self.url) as engine:
            if engine.get_index(self.index) is None:
                return False
            engine.refresh(self.index)
            return engine.count(self.index) >= part * len(self.corpus.wanted)

    def wait_for_part(self, load: Load, part: float = 0.2) -> None:
        """Wait until this part of the documents is in the index."""
        load.wait_until(lambda: self.part_is_in(part))

    @contextmanager
    def held(self, part: float = 0.2, *, environment: Mapping[str, str] | None = None) -> Iterator[tuple[Load, Hold]]:
        """A load that stands still once this part of the documents is in the index: it cannot have ended."""
        with holding(self.url, lambda: self.part_is_in(part)) as (url, hold):
            load = self.start(url=url, environment=environment)
            load.wait_until(hold.reached.is_set)
            yield load, hold

    def kill_in_the_middle(self, seconds: float = 0.0, *, part: float = 0.2) -> None:
        """Start the command, and SIGKILL it once something is in and so much time has passed.

        It is held a little later, so that it cannot end before.
        """
        before = self.stamp()
        with holding(self.url, lambda: self.part_is_in(part + 0.1)) as (url, _):
            load = self.start(url=url)
            load.wait_until(lambda: self.stamp() not in (before, []), pause=0.002)
            if part:
                self.wait_for_part(load, part)
            time.sleep(seconds)
            load.send(signal.SIGKILL)
            load.end(-signal.SIGKILL)

    def terminate_in_the_middle(self) -> Load:
        """Start the command, and SIGTERM it once something is in; it ends when the vectors that are finished are in."""
        with self.held() as (load, hold):
            load.send(signal.SIGTERM)
            load.wait_until(lambda: "Stopping: finished vectors are sent" in load.messages)
            hold.release()
            load.end(130)
        return load

    def stamp(self) -> list[tuple[str, int, int]]:
        """Changes with every write to the state."""
        found = []
        for path in (self.state, self.state.with_name(f"{self.state.name}-wal")):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.name, status.st_mtime_ns, status.st_size))
        return found
