"""Contenders as processes that take turns: each round starts, measures and ends one after another."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.encode_peers import worker
from benchmarks.encode_peers.contenders import REFERENCE, Contender, PreparedModel
from benchmarks.encode_peers.environments import Environments, NotInstalled, shared_variables, without_addresses
from benchmarks.encode_peers.processor import busy_seconds, others_share
from benchmarks.encode_peers.results import ContenderResult
from benchmarks.encode_peers.texts import STSB, TextSet

_ROOT = Path(__file__).parents[2]
_LIMIT = 1_800.0  # seconds for an answer
_COMPARED = 32  # texts of each set whose vectors are compared with those of the reference
_FIRST, _WARM = "first text", "warm-up"  # lists that are not sets
_WARM_UP_TEXTS, _WARM_UP_OTHERS = {STSB: 256}, 64


class ContenderFailed(Exception):
    """A contender did not start, failed or did not answer; the message says why."""


class ContenderProcess:
    """A process that runs `worker.py`, or another command that speaks its protocol.

    Args:
        command: Its arguments.
        variables: Its environment variables.
        log: File for what it prints.
        limit: Seconds that it may take for an answer.
    """

    def __init__(
        self, command: Sequence[str | Path], variables: Mapping[str, str], log: Path, limit: float = _LIMIT
    ) -> None:
        self._limit = limit
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=variables, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            ContenderFailed: the answer is an error, or there is none.
        """
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self._limit, end)
        timer.start()
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if late.is_set():
            raise ContenderFailed(f"{request['do']}: no answer within {self._limit:.0f} s")
        if not line:
            raise ContenderFailed(f"{request['do']}: the process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{request['do']}: {without_addresses(answer['error'])}")
        return answer

    def close(self) -> None:
        """End the process."""
        try:
            self._requests.close()
            self._process.wait(timeout=30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def __enter__(self) -> ContenderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Comparison:
    """Runs the contenders of one model.

    Attributes:
        model: The model as es-sbert is asked for it.
        folder: Its sentence-transformers folder.
        prepared: Folder for `PreparedModel`s.
        environments: Of the peers.
        threads: For each contender.
        sets: What is embedded.
        sts: Pairs with gold scores.
        work: A temporary folder.
        report: Called with a line after each step.
    """

    model: str
    folder: Path
    prepared: Path
    environments: Environments
    threads: int
    sets: Sequence[TextSet]
    sts: Sequence[Mapping[str, str]]
    work: Path
    report: Callable[[str], None]
    _references: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def run(self, contenders: Sequence[Contender], rounds: int) -> list[ContenderResult]:
        """Check the vectors of each contender, then let all take turns."""
        # The reference first: the others' vectors are compared with its.
        in_order = sorted(contenders, key=lambda contender: contender.label != REFERENCE)
        checked = {contender.label: self._check(contender) for contender in in_order}
        results = {contender.label: checked[contender.label] for contender in contenders}
        for number in range(1, rounds + 1):
            files = self._write_round(number)
            # Another order in each round: none is always the first after a pause, or after a heavy one.
            first = (number - 1) * len(contenders) // rounds
            for contender in [*contenders[first:], *contenders[:first]]:
                result = results[contender.label]
                if not result.reason:
                    try:
                        self._take_turn(contender, files, result)
                    except (ContenderFailed, NotInstalled) as error:
                        result.reason = f"round {number}: {error}"
                    self.report(f"round {number}, {_last_speeds(result)}")
        return list(results.values())

    def _check(self, contender: Contender) -> ContenderResult:
        """Installs and prepares what a contender needs; its result with the quality of its vectors, or a reason."""
        result = ContenderResult(contender.label, contender.ours)
        try:
            if contender.environment is not None:
                result.environment = contender.environment.name
                self.environments.python(contender.environment)
            if contender.prepared is not None:
                self.prepare(contender.prepared)
            self._measure_quality(contender, result)
            self.report(f"{contender.label}: ρ {result.rho:.2f}")
        except (ContenderFailed, NotInstalled) as error:
            result.reason = str(error)
            self.report(f"{contender.label}: {error}")
        return result

    def prepare(self, wanted: PreparedModel) -> Path:
        """The folder of a prepared model, which is written first if it is missing.

        Raises:
            ContenderFailed, NotInstalled: it cannot be written.
        """
        target = self.prepared / wanted.key
        if target.exists():
            return target
        self.report(f"Preparing {wanted.name} …")
        unfinished = target.with_name(f"{target.name}.{os.getpid()}")
        python = self.environments.python(wanted.environment)
        variables = self.environments.variables(wanted.environment, self.threads)
        with self._process(python, variables, wanted.name) as process:
            process.ask(
                do="prepare",
                library=wanted.library,
                source=str(self.folder),
                target=str(unfinished),
                options=wanted.options,
            )
        unfinished.rename(target)
        return target

    def _process(self, python: Path, variables: Mapping[str, str], name: str) -> ContenderProcess:
        # Without -P, modules of this folder would hide others of the same name.
        log = self.work / f"{''.join(sign if sign.isalnum() else '-' for sign in name)}.log"
        return ContenderProcess([python, "-P", Path(worker.__file__)], variables, log)

    def _start(self, contender: Contender) -> ContenderProcess:
        if contender.environment is None:
            path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
            variables = {**os.environ, **shared_variables(self.threads), "PYTHONPATH": path}
            return self._process(Path(sys.executable), variables, contender.label)
        python = self.environments.python(contender.environment)
        return self._process(python, self.environments.variables(contender.environment, self.threads), contender.label)

    def _load(self, process: ContenderProcess, contender: Contender) -> dict[str, Any]:
        if contender.ours:
            model = self.model
        else:
            model = str(self.folder if contender.prepared is None else self.prepared / contender.prepared.key)
        return process.ask(
            do="load", library=contender.library, model=model, threads=self.threads, options=contender.options
        )

    def _measure_quality(self, contender: Contender, result: ContenderResult) -> None:
        samples = {texts.name: list(texts.texts[:_COMPARED]) for texts in self.sets}
        pairs = [row[side] for side in ("sentence1", "sentence2") for row in self.sts]
        texts, vectors = self.work / "quality.json", self.work / "quality.npy"
        texts.write_text(json.dumps(pairs + [text for sample in samples.values() for text in sample]))
        with self._start(contender) as process:
            loaded = self._load(process, contender)
            result.details, result.versions = loaded["details"], loaded["versions"]
            process.ask(do="encode", texts=str(texts), vectors=str(vectors))
        found = np.load(vectors)  # (texts, dimensions)
        result.rho = sts_correlation(found[: len(pairs)], [float(row["score"]) for row in self.sts])
        start = len(pairs)
        for name, sample in samples.items():
            part = found[start : start + len(sample)]
            start += len(sample)
            if contender.label == REFERENCE:
                self._references[name] = part
            if name in self._references:
                result.cosines[name] = float(np.mean(cosines(part, self._references[name])))

    def _write_round(self, number: int) -> dict[str, Path]:
        files = {}
        # Texts of an earlier ending, so that none is measured that was embedded before in the same process.
        before = {texts.name: texts.for_round(number - 1) for texts in self.sets}
        warm_up = [
            text for name, texts in before.items() for text in texts[: _WARM_UP_TEXTS.get(name, _WARM_UP_OTHERS)]
        ]
        lists = {_FIRST: warm_up[:1], _WARM: warm_up} | {texts.name: texts.for_round(number) for texts in self.sets}
        for position, (name, texts) in enumerate(lists.items()):
            files[name] = self.work / f"texts-{position}.json"
            files[name].write_text(json.dumps(texts))
        return files

    def _take_turn(self, contender: Contender, files: Mapping[str, Path], result: ContenderResult) -> None:
        begin = time.perf_counter()
        with self._start(contender) as process:
            self._load(process, contender)
            process.ask(do="encode", texts=str(files[_FIRST]))
            start_seconds = time.perf_counter() - begin
            process.ask(do="encode", texts=str(files[_WARM]))
            speeds, others = {}, []
            for texts in self.sets:
                before = busy_seconds()
                answer = process.ask(do="encode", texts=str(files[texts.name]))
                share = others_share(before, busy_seconds(), answer["processor_seconds"], answer["seconds"])
                speeds[texts.name] = answer["texts"] / answer["seconds"]
                others += [] if share is None else [share]
            megabytes = process.ask(do="memory")["megabytes"]
        # Only a whole turn counts, so that the turns of all contenders belong to the same rounds.
        result.start_seconds.append(start_seconds)
        result.megabytes.append(megabytes)
        for name, speed in speeds.items():
            result.speeds.setdefault(name, []).append(speed)
        result.others += others


def _last_speeds(result: ContenderResult) -> str:
    if result.reason:
        return f"{result.label}: {result.reason}"
    speeds = ", ".join(f"{name} {speeds[-1]:,.0f}/s" for name, speeds in result.speeds.items())
    busy = f"; others {statistics.median(result.others):.0%}" if result.others else ""
    return f"{result.label}: {speeds}{busy}"


def cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row of one array, shape ``(texts, dimensions)``, with the same row of the other; shape ``(texts,)``."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products: NDArray[np.float32] = np.sum(left * right, axis=1) / norms
    return products


def sts_correlation(vectors: NDArray[np.float32], scores: Sequence[float]) -> float:
    """Spearman's ρ × 100 of cosines against gold scores.

    Args:
        vectors: *Shape:* ``(2 × pairs, dimensions)``, first all first sentences.
        scores: One a pair.
    """
    first, second = vectors[: len(scores)], vectors[len(scores) :]
    return float(spearmanr(cosines(first, second), scores).statistic) * 100
