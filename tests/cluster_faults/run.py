"""One command on a cluster, disturbed at a random moment."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from tests.cluster import OwnCluster
from tests.cluster_faults.copies import Comparison, Expected, compare_copies
from tests.cluster_faults.disturbances import Disturbance
from tests.engine.ingest_support import open_engine
from tests.random_writer import RandomWriters

_TRIES = 5


class FaultNotFelt(Exception):
    """The command had ended, or sent nothing more, when the fault came: the run says nothing."""


class Moment:
    """Counts the steps of a command, which are its requests or what it works on, up to a chosen one."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self._lock = threading.Lock()
        self.steps = 0
        self.reached = threading.Event()
        self.pause = 0.0
        self.last: dict[str, float] = {}

    def step(self) -> None:
        """A step begins."""
        with self._lock:
            self.steps += 1
            if self.steps == self._at:
                self.reached.set()
        if self.pause:
            time.sleep(self.pause)


class CountedEngine:
    """An engine each of whose calls is a step."""

    def __init__(self, engine: Engine, moment: Moment) -> None:
        self._engine = engine
        self._moment = moment

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if callable(value) and name not in ("close", "hit_source"):
            self._moment.step()
            self._moment.last[name] = time.monotonic()
        return value


@dataclass
class Stage:
    """Where a command runs."""

    cluster: OwnCluster
    engine: Engine
    encoders: tuple[Encoder, Encoder]
    folder: Path
    index: str
    random: Random
    disturbance: Disturbance | None
    moment: Moment
    undisturbed: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def counted_engine(self) -> Iterator[Any]:
        """An engine for the command, with all addresses."""
        with open_engine(self.cluster.url) as engine:
            yield CountedEngine(engine, self.moment)

    def writers(self, alias: str, *, steps: bool = True) -> RandomWriters:
        """Programs that keep writing while nodes fail."""
        writers = RandomWriters(
            self.cluster.url, alias, threads=2, seed=self.random.randrange(10**6), scripts=False, outages=True
        )
        if steps:
            writers.before_write = self.moment.step
        return writers


class Scenario(ABC):
    """A command and its expected result. Create one instance for each run."""

    name: str
    # Most runs take more than so many steps.
    usual_steps: int
    # Where in the command the fault comes: parts of the steps that it takes without a fault.
    span: tuple[float, float] = (0.05, 0.9)

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @abstractmethod
    def prepare(self) -> None:
        """Create and fill the index of the stage."""

    @abstractmethod
    def run(self) -> None:
        """Run the command to its end; an `AssertionError` if it does not end as it must."""

    @abstractmethod
    def expected(self) -> Expected:
        """What the index must hold in the end."""

    @property
    def result_index(self) -> str:
        """The index to compare."""
        return self.stage.index

    def remove(self) -> None:
        """Delete what `prepare` and the command have created."""
        self.stage.engine.delete_index(self.stage.index)


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    steps: int
    at: int
    comparison: Comparison
    failure: str
    seconds: float

    @property
    def exact(self) -> bool:
        return not self.failure and self.comparison.exact


def run_scenario(
    kind: type[Scenario],
    disturbance: Disturbance | None,
    cluster: OwnCluster,
    encoders: tuple[Encoder, Encoder],
    folder: Path,
    seed: str,
    steps: int = 0,
) -> Outcome:
    """Run a command, disturb it, repair the cluster, and compare the index."""
    begin = time.monotonic()
    what = "" if disturbance is None else disturbance.name
    random = Random(f"{kind.name}, {what}, {seed}")
    at = 0 if disturbance is None else max(1, round(steps * random.uniform(*kind.span)))
    index = f"faults-{kind.name.replace(' ', '-').lower()}-{seed}-{time.monotonic_ns():x}"
    with open_engine(cluster.url) as engine:
        stage = Stage(cluster, engine, encoders, folder, index, random, disturbance, Moment(at))
        scenario = kind(stage)
        try:
            scenario.prepare()
            cluster.wait_until("green")
            stage.moment.steps = 0
            stage.moment.reached.clear()
            failure = _run_disturbed(scenario, disturbance)
            cluster.restore()
            comparison = Comparison()
            if not failure:
                comparison = compare_copies(cluster, engine, scenario.result_index, scenario.expected())
        finally:
            cluster.restore()
            scenario.remove()
    return Outcome(stage.moment.steps, at, comparison, failure, round(time.monotonic() - begin, 1))


def run_felt(
    kind: type[Scenario],
    disturbance: Disturbance,
    cluster: OwnCluster,
    encoders: tuple[Encoder, Encoder],
    folder: Path,
    seed: int,
    steps: int,
) -> tuple[str, Outcome]:
    """A run whose command was in its middle when the fault came; its seed and its outcome."""
    for attempt in range(_TRIES):
        name = f"{seed}.{attempt}" if attempt else f"{seed}"
        try:
            return name, run_scenario(kind, disturbance, cluster, encoders, folder, name, steps)
        except FaultNotFelt as error:
            print(f"{kind.name}, {disturbance.name}, seed {name}: once more, {error}")
    raise FaultNotFelt(f"in {_TRIES} runs, the command was over too soon")


def _run_disturbed(scenario: Scenario, disturbance: Disturbance | None) -> str:
    """Run the command; how it failed, empty if it did not."""
    stage, failures = scenario.stage, list[BaseException]()

    def work() -> None:
        try:
            scenario.run()
        except BaseException as error:
            failures.append(error)

    command = threading.Thread(target=work)
    is_felt = True
    if disturbance is None:
        stage.undisturbed.set()
        command.start()
    else:
        steps = disturbance.steps(stage.cluster, stage.index, stage.random)
        next(steps)
        command.start()
        try:
            is_felt = _disturb(stage, disturbance, steps, command)
        finally:
            stage.moment.pause = 0.0
            stage.undisturbed.set()
            command.join()
    command.join()
    if failures:
        if not isinstance(failures[0], Exception):
            raise failures[0]
        return f"{type(failures[0]).__name__}: {failures[0]}"
    if not is_felt:
        raise FaultNotFelt("the command had sent all of its requests when the fault came")
    return ""


def _disturb(stage: Stage, disturbance: Disturbance, steps: Iterator[None], command: threading.Thread) -> bool:
    """Let the fault happen in the middle of the command; whether the command sent requests after it."""
    while not stage.moment.reached.wait(0.01):
        if not command.is_alive():
            return False
    # Not always when a request begins.
    time.sleep(stage.random.uniform(0, 0.03))
    stage.moment.pause = stage.random.uniform(disturbance.pause / 4, disturbance.pause)
    next(steps)
    before = stage.moment.steps
    for _ in steps:
        pass
    stage.moment.pause = 0.0
    stage.undisturbed.set()
    command.join()
    return stage.moment.steps > before
