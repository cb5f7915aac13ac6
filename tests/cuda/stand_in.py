"""Run the real CUDA provider of onnxruntime-gpu without a card, on stand-ins for the CUDA libraries.

The provider opens sessions, places nodes, picks kernels and runs graphs as it does on an H100. Memory of the host
stands for memory of the card, so copies work; kernels and products compute nothing. What a test can hold is
structure: where nodes are placed, which kernels are launched with which grids, shapes and precision of products,
copies, synchronizations, and which errors come when a library is missing or a card has no memory. Values and times
mean nothing: what a kernel would compute is zero, also where the host reads it back to size an output. onnxruntime
looks for cards on the PCI bus too; its warning that no "plugin EP device" is found does not come where there is one.

The process has the packages of the tests without those of NVIDIA and without torch, so that no real CUDA library is
found in their place, and es_sbert of this checkout. Its `sys.executable` has the same. In code of a test,
`mark("x")` of `tests.cuda.marks` starts the part of the log that `run.trace.marked("x")` returns.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.build import LIBRARIES, Tools, build
from tests.cuda.events import Trace, parse_log
from tests.cuda.isolation import create_environment

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """A process that has ended."""

    returncode: int
    stdout: str
    stderr: str
    trace: Trace


@dataclass(frozen=True)
class GraphRun:
    """A graph that was opened and run, or what onnxruntime raised.

    Nodes are those of the optimized graph, with operator and provider; outputs have shape and type, by run.
    """

    providers: list[str]
    nodes: list[tuple[str, str, str]]
    outputs: list[list[tuple[tuple[int, ...], str]]]
    error: str | None
    runs: list[Trace]

    def nodes_of(self, provider: str) -> list[str]:
        """Operators that a provider runs."""
        return [operator for _, operator, ran_by in self.nodes if ran_by == provider]


class StandIns:
    """Stand-ins in a folder, and processes that run on them."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        """Build the stand-ins into an existing, empty folder."""
        self._tools = tools
        self._scratch = folder
        self._libraries = folder / "libraries"
        self._libraries.mkdir()
        build(self._libraries, tools)
        self._python = create_environment(folder / "environment")

    def run(
        self,
        program: str | Sequence[str],
        *,
        without: Sequence[str] = (),
        fail: Mapping[str, tuple[int, int]] | None = None,
        cards: int = 1,
        memory: int | None = None,
        kernels: bool = True,
        old_driver: bool = False,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 600.0,
    ) -> Run:
        """Run code, or Python with these arguments, with the stand-ins loaded."""
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        (work / "folder").mkdir()
        log = work / "log"
        log.touch()
        settings = {
            "CUDA_STAND_IN_CARDS": str(cards),
            "CUDA_STAND_IN_MEMORY": None if memory is None else str(memory),
            "CUDA_STAND_IN_NO_KERNELS": None if kernels else "1",
            "CUDA_STAND_IN_OLD_DRIVER": "1" if old_driver else None,
            "CUDA_STAND_IN_FAIL": ",".join(f"{name}={code}:{after}" for name, (code, after) in (fail or {}).items()),
            "LD_LIBRARY_PATH": str(self._folder_without(work, without)),
            "PYTHONPATH": str(_ROOT),
            "CUDA_STAND_IN_LOG": str(log),
        }
        kept = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "PYTHONHOME")}
        variables = kept | {name: value for name, value in settings.items() if value is not None} | (environment or {})
        arguments = ["-c", program] if isinstance(program, str) else list(program)
        done = subprocess.run(
            [str(self._python), *arguments],
            input=stdin,
            env=variables,
            cwd=work / "folder",
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Run(done.returncode, done.stdout, done.stderr, parse_log(log.read_text(), self._tools.demangler))

    def run_graph(
        self,
        model: Path,
        feeds: Mapping[str, np.ndarray],
        *,
        runs: int = 1,
        provider_options: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> GraphRun:
        """Run a graph in a separate process, with the CUDA provider and without fallback."""
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        request = {
            "model": str(model),
            "runs": runs,
            "provider_options": dict(provider_options or {}),
        }
        (work / "request.json").write_text(json.dumps(request))
        np.savez(work / "feeds.npz", allow_pickle=False, **feeds)
        process = self.run(["-m", "tests.cuda.run_graph", str(work)], **settings)
        assert process.returncode == 0, f"exit code {process.returncode}\n{process.stdout}{process.stderr}"
        result = json.loads((work / "result.json").read_text())
        trace = process.trace
        begun = len(result["outputs"]) + (bool(result["error"]) and bool(result["providers"]))
        return GraphRun(
            result["providers"],
            [tuple(node) for node in result["nodes"]],
            [[(tuple(shape), dtype) for shape, dtype in outputs] for outputs in result["outputs"]],
            result["error"],
            [trace.marked(f"run {number}") for number in range(min(begun, runs))],
        )

    def _folder_without(self, work: Path, without: Sequence[str]) -> Path:
        left_out = {LIBRARIES[name] for name in without}
        _skip_if_installed(left_out)
        folder = work / "libraries"
        folder.mkdir()
        for library in set(LIBRARIES.values()) - left_out:
            (folder / library).symlink_to(self._libraries / library)
        return folder


def _skip_if_installed(libraries: set[str]) -> None:
    """The loader would find a library that the system has, and the stand-in would not be missed."""
    if not libraries:
        return
    try:
        done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    except OSError:
        return
    installed = {line.split()[0] for line in done.stdout.splitlines() if "=>" in line}
    if found := libraries & installed:
        pytest.skip(f"{', '.join(sorted(found))} is installed on this system, so it cannot be left out")
