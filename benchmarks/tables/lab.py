"""Runs es-sbert's commands once each and keeps what they print."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.baselines.open_baseline import BASELINES
from benchmarks.baselines.probing import TASKS as PAPER_TASKS
from benchmarks.common import machine
from benchmarks.tables.profiles import Profile

RESULTS = Path(__file__).parents[1] / "results"
BASELINE_KINDS = {form.partition(":")[0] for form in BASELINES}


# Returns a model for `es-sbert evaluate` or a baseline, and more options of the command.
Model = Callable[[], tuple[str | Path, Sequence[str]]]


class NotRun(Exception):
    """A figure is not at hand and the lab was asked to run nothing."""


class Lab:
    """Where models are trained and measured.

    Models stay in `work`, which may be removed at any time; results stay in the repository.

    Args:
        data: Folder of the data sets.
        work: Folder for models.
        profile: What the machine can afford.
        run: Whether to run what is missing.
    """

    def __init__(self, data: Path, work: Path, profile: Profile, *, run: bool) -> None:
        self.data = data.resolve()
        self.work = work.resolve()
        self.profile = profile
        self._run = run

    def kept(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result: read where it is kept, else made and kept with the machine and the seconds it took.

        Args:
            key: Name of the result, and of its file.
            make: Makes it.

        Raises:
            NotRun: it is not kept, and the lab runs nothing.
        """
        path = RESULTS / self.profile.name / f"{key}.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        if not self._run:
            raise NotRun(key)
        began = time.monotonic()
        result = {"result": make(), "seconds": round(time.monotonic() - began, 1), "machine": machine()}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        # Where the folders lie on this machine is nobody's business.
        path.write_text(text.replace(str(self.work), "WORK").replace(str(self.data), "DATA"), encoding="utf-8")
        return result

    def folder(self, name: str, make: Callable[[Path], None]) -> Path:
        """A model's folder or file, made where it is missing; half a model is removed and made again.

        Raises:
            NotRun: it is missing, and the lab runs nothing.
        """
        path = self.work / name
        partial = path.with_name(f"partial-{path.name}")
        if path.exists():
            return path
        if not self._run:
            raise NotRun(name)
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.parent.mkdir(parents=True, exist_ok=True)
        make(partial)
        partial.rename(path)
        return path

    def train(self, name: str, recipe: str, **settings: object) -> Path:
        """Train a recipe with changed settings (`stages_0_batch=32` for `stages.0.batch`); the log is kept as well."""
        changes = {key.replace("__", "."): value for key, value in settings.items()}
        changes.setdefault("precision", self.profile.precision)
        changes.setdefault("export.precisions", [])

        def make(folder: Path) -> None:
            options = [part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}")]
            command = ("train", recipe, "--data", self.data, "-o", folder, "--device", self.profile.device, *options)
            result = _training(self.es_sbert(*command, "--json"), folder)
            self.kept(f"train/{name}", lambda: result)

        return self.folder(name, make)

    def trained(self, name: str, run: Callable[[], object]) -> dict[str, Any]:
        """How a run of `train` went; `run` makes it where that is not kept.

        Raises:
            NotRun: it is not kept, and the lab runs nothing.
        """
        if self._run and not (RESULTS / self.profile.name / f"train/{name}.json").exists():
            shutil.rmtree(self.work / name, ignore_errors=True)
            run()
        found: dict[str, Any] = self.kept(f"train/{name}", _never)["result"]
        return found

    def report(self, task: str, name: str, model: Model, files: Sequence[Path] = ()) -> dict[str, Any]:
        """The report of `es-sbert evaluate MODEL --task TASK --json`, or of benchmarks.baselines for its tasks.

        Args:
            task: Protocol.
            name: Of the model, in tables and in the result's file.
            model: Gives what `es-sbert evaluate` takes, and further options; called only where there is no result.
            files: Measure these files only.

        Raises:
            NotRun: it is not kept, and the lab runs nothing.
        """

        def make() -> dict[str, Any]:
            spec, options = model()
            places = [part for file in files for part in ("--file", file)] or ["--data", self.data]
            is_baseline = str(spec).partition(":")[0] in BASELINE_KINDS
            by_baselines = is_baseline or task in PAPER_TASKS or "--torch" in options
            program = self.baselines if by_baselines else self.es_sbert
            printed = program("evaluate", spec, "--task", task, *places, *options, "--json")
            report: dict[str, Any] = json.loads(printed)
            return report

        result: dict[str, Any] = self.kept(f"{task}/{_slug(name)}", make)["result"]
        return result

    def onnx(self) -> tuple[str, ...]:
        """Options that measure what ingest and search run."""
        return ("--precision", self.profile.evaluation, "--device", self.profile.device)

    def es_sbert(self, *arguments: object) -> str:
        """Run `es-sbert …`; its messages go to the terminal.

        Raises:
            SystemExit: it failed.
        """
        return _run_module("es_sbert.cli.main", *arguments)

    def baselines(self, *arguments: object) -> str:
        """Run `python -m benchmarks.baselines …`.

        Raises:
            SystemExit: it failed.
        """
        return _run_module("benchmarks.baselines", *arguments)


def _run_module(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    shown = " ".join(["python", *command[1:]])
    print(f"$ {shown}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{shown} ended with exit code {done.returncode}")
    return done.stdout


def _never() -> dict[str, Any]:
    raise RuntimeError("a training run leaves its result")


def _training(printed: str, folder: Path) -> dict[str, Any]:
    """What a run printed, and its course."""
    notes = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return {
        **json.loads(printed),
        "folder": folder.name.removeprefix("partial-"),
        "recipe": notes["recipe"],
        "course": {stage["name"]: stage["course"] for stage in notes["stages"]},
    }


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def figure(report: dict[str, Any], data: str, name: str, part: str | None = None) -> float:
    """One figure of an evaluation report.

    Raises:
        KeyError: there is none of that name.
    """
    for row in report["rows"]:
        if row["data"] == data and part in (None, row["part"]):
            return float(row["figures"][name])
    raise KeyError(f"{data}, {part}: {name}")


def shown(values: Sequence[float]) -> str:
    """One figure, or mean ± standard deviation of several."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def seeded(seeds: Sequence[int], make: Callable[[int], float]) -> list[float]:
    """The figures of all seeds that are at hand.

    Raises:
        NotRun: none is.
    """
    found = []
    for seed in seeds:
        try:
            found.append(make(seed))
        except NotRun:
            continue
    if not found:
        raise NotRun(f"seeds {', '.join(map(str, seeds))}")
    return found


def cells(count: int, make: Callable[[], Sequence[str]]) -> list[str]:
    """Cells of a table, each `not run` where the result is not at hand."""
    try:
        return list(make())
    except NotRun:
        return ["not run"] * count
