"""Measure what only a machine with a CUDA card can show; each step adds its section to one JSON file.

    python -m benchmarks.gpu_check --list
    python -m benchmarks.gpu_check --output gpu.json                     every step, each in its own process
    python -m benchmarks.gpu_check --output gpu.json --step speed --case minilm/15

Runs from a checkout (PYTHONPATH=checkout) or an installation. Without --model, models with random weights in the
shapes of all-MiniLM-L6 and BERT-base are made. Exit code 0: all goals met; 1: a step failed or a goal is missed; 2: no
CUDA, or nothing could be done.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.gpu_check import requirements, results
from benchmarks.gpu_check.context import DEFAULT_LIMIT, Context, say
from benchmarks.gpu_check.steps import STEPS, Step, find_step

_CHECKOUT = Path(__file__).parents[2]
_GRACE = 60.0  # seconds that the process of a step may exceed its limit
_SCRATCH = Path(tempfile.gettempdir()) / "es-sbert-gpu-check"


def main() -> int:
    """Run the steps that are asked for."""
    arguments = _parser().parse_args()
    if arguments.list:
        print(_listed())
        return 0
    if arguments.requirements:
        print("\n".join(requirements.pinned(training=arguments.requirements == "training")))
        return 0
    names = arguments.step or [step.name for step in STEPS]
    try:
        results.read(arguments.output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if len(names) == 1:
        code = _run(find_step(names[0]), arguments)
        if code == 2:
            return code
    else:
        for name in names:
            if _run_apart(name, arguments) == 2:
                return 2
    document = results.read(arguments.output)
    for line in results.summary(document, names):
        say(line)
    sections = [document.get("steps", {}).get(name, {"error": "not run"}) for name in names]
    failed = any(results.errors_of(section) for section in sections)
    return int(failed or not all(one["met"] for section in sections for one in results.goals_of(section)))


def _run(step: Step, arguments: argparse.Namespace) -> int:
    """Run one step here and add its section to the file; 2 where this machine has no CUDA."""
    started = time.monotonic()
    missing = step.missing()
    if missing:
        _add(arguments.output, step.name, {"error": f"not installed: {', '.join(missing)}"})
        return 1
    from benchmarks.gpu_check.card import load_libraries, missing_cuda, stamp

    load_libraries()
    reason = missing_cuda()
    if reason is not None:
        print(f"gpu-check needs a machine with CUDA: {reason}.", file=sys.stderr)
        return 2
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    context = Context(
        models=tuple(arguments.model),
        data=arguments.data,
        scratch=arguments.scratch,
        rounds=arguments.rounds,
        texts=arguments.texts,
        cases=tuple(arguments.case),
        limit=arguments.limit,
        started=started,
    )
    try:
        section = step.run(context)
    except Exception as error:  # the other steps run all the same, and the file says what this one met
        section = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    took = time.monotonic() - started
    without = {"left_out_without": parts} if (parts := step.missing_parts()) else {}
    _add(arguments.output, step.name, {"ran_on": stamp(), "seconds_of_step": took, **without, **section})
    return 0


def _run_apart(name: str, arguments: argparse.Namespace) -> int:
    """Run one step in its own process, which frees its GPU memory when it ends."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", *sys.argv[1:], "--only", name]
    paths = [str(_CHECKOUT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    say(f"=== {name}")
    limit = arguments.limit + _GRACE
    try:
        done = subprocess.run(command, env=environment, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        _add(arguments.output, name, {"error": f"did not end within {limit:.0f} s"})
        return 1
    if done.returncode < 0:
        _add(arguments.output, name, {"error": f"was ended by signal {-done.returncode}"})
    return done.returncode


def _add(path: Path, step: str, section: results.JSON) -> None:
    results.write(path, results.merge(results.read(path), step, section))


def _listed() -> str:
    """The steps, and what each lacks here."""
    lines = []
    for step in STEPS:
        lines.append(f"{step.name:<12} {step.summary}")
        if missing := step.missing():
            lines.append(f"{'':<12} not installed: {', '.join(missing)}")
        elif parts := step.missing_parts():
            lines.append(f"{'':<12} leaves out a part without {', '.join(parts)}")
    return "\n".join(lines)


class _Only(argparse.Action):
    """`--only NAME` after all other arguments: this step in place of those that were named."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        namespace.step = [values]


def _path(text: str) -> Path:
    """Absolute, since some steps start processes in another folder."""
    return Path(text).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [step.name for step in STEPS]
    add = parser.add_argument
    add("--list", action="store_true", help="list the steps, and what is not installed for each")
    add(
        "--requirements",
        nargs="?",
        const="steps",
        choices=["steps", "training"],
        help="list the packages to bring to a machine that has torch and sentence-transformers; 'training' adds those "
        "of the step training",
    )
    add("--step", action="append", choices=names, metavar="NAME", help="run this step; several times for several")
    add("--only", action=_Only, choices=names, metavar="NAME", help=argparse.SUPPRESS)
    add("--case", action="append", default=[], metavar="PART", help="run only cases whose name holds PART")
    add("--output", type=_path, default=Path("gpu.json"), help="the JSON file that sections are added to (gpu.json)")
    add(
        "--model",
        type=_path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="sentence-transformers folder in place of random weights; several times for several",
    )
    add("--data", type=_path, metavar="FOLDER", help="data sets; without it sentences are made up")
    add("--scratch", type=_path, default=_SCRATCH, metavar="FOLDER", help=f"keep exported models here ({_SCRATCH})")
    add("--rounds", type=int, default=5, help="repetitions of a measurement (5)")
    add("--texts", type=int, metavar="N", help="at most so many texts (or tokens, for attention) in a measurement")
    add(
        "--limit",
        type=float,
        default=DEFAULT_LIMIT,
        metavar="SECONDS",
        help=f"begin nothing new in a step that runs longer ({DEFAULT_LIMIT:.0f})",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
