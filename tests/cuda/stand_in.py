"""Run the real CUDA provider of onnxruntime-gpu without a card, on stand-ins for the CUDA libraries.

The provider opens sessions, places nodes, picks kernels and runs graphs as it does on an H100. Memory of the host
stands for memory of the card, so copies work; kernels and products compute nothing. What a test can hold is
structure: where nodes are placed, which kernels are launched with which grids, shapes and precision of products,
copies, synchronizations, and which errors come when a library is missing or a card has no memory. Values and times
mean nothing: what a kernel would compute is zero, also where the host reads it back to size an output. onnxruntime
looks for cards on the PCI bus too; its warning that no "plugin EP device" is found does not come where there is one.

    def test_one_copy_back(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
        run = cuda_stand_ins.run_graph(tmp_path / "model.onnx", {"input_ids": ids}, runs=2)
        assert run.providers[0] == "CUDAExecutionProvider"
        assert len(run.runs[1].d2h) == 1, run.runs[1].summary()

    def test_without_cudnn(cuda_stand_ins: StandIns) -> None:
        done = cuda_stand_ins.run(["-m", "es_sbert", "encode", "--device", "cuda", …], without=("cudnn",))
        assert done.returncode != 0
        assert "libcudnn.so.9" in done.stderr

Fixture (session scope, in `tests/cuda/conftest.py`): `cuda_stand_ins`. It skips where the wheel is not
onnxruntime-gpu, not on Linux x86-64, and without a C compiler, nm and c++filt.

`StandIns.run(program, …) -> Run` starts a Python process: `program` is code, or the interpreter's arguments.
    without       libraries to leave out, as `cudnn` or as `libcudnn.so.9` (see `LIBRARIES`)
    fail          {function: code} or {function: (code, n)}: the function returns the code, after n successes
    cards         number of cards: 0, 1, 2, …
    memory        bytes of memory of each card; allocations that do not fit fail with cudaErrorMemoryAllocation (2)
    kernels       False: no kernel has code for the card; launches fail with cudaErrorNoKernelImageForDevice (209)
    old_driver    True: the driver is too old; calls fail with cudaErrorInsufficientDriver (35)
    environment   variables to set, or to remove where the value is None
    stdin, folder, timeout
The process has the packages of the tests without those of NVIDIA and without torch, so that no real CUDA library is
found in their place, and es_sbert of this checkout. Its `sys.executable` has the same.
`Run` has `returncode`, `stdout`, `stderr` and `trace`.

`StandIns.run_graph(model, feeds, runs=1, provider_options=…, session_config=…, **as above) -> GraphRun` has
`providers`, `nodes` (name, operator, provider), `outputs` (shape and type), `error`, and a `Trace` of the `opening` and
of each of the `runs`.

In code of a test's own, `from tests.cuda.marks import mark; mark("search")` starts the part of the log that
`run.trace.marked("search")` returns. For the rest of `Trace` see `tests/cuda/events.py`: `kernels`, `gemms`, `copies`,
`h2d`, `d2h`, `syncs`, `waits`, `cudnn`, `libraries`, `of(kind)`, `summary()`.
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
class NodePlacement:
    """The provider that runs a node of the graph, such as `CUDAExecutionProvider`."""

    name: str
    operator: str
    provider: str


@dataclass(frozen=True)
class GraphRun:
    """A graph that was opened and run.

    Attributes:
        process: The process that did it.
        providers: Providers of the session, the preferred one first.
        nodes: All nodes of the optimized graph.
        outputs: Shape and type of each output, by run.
        error: What onnxruntime raised, `TypeName: message`; None if nothing.
        opening: Events of opening the session.
        runs: Events of each run that was begun.
    """

    process: Run
    providers: list[str]
    nodes: list[NodePlacement]
    outputs: list[list[tuple[tuple[int, ...], str]]]
    error: str | None
    opening: Trace
    runs: list[Trace]

    def nodes_of(self, provider: str) -> list[str]:
        """Operators that a provider runs."""
        return [node.operator for node in self.nodes if node.provider == provider]


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
        fail: Mapping[str, int | tuple[int, int]] | None = None,
        cards: int = 1,
        memory: int | None = None,
        kernels: bool = True,
        old_driver: bool = False,
        environment: Mapping[str, str | None] | None = None,
        stdin: str = "",
        folder: Path | None = None,
        timeout: float = 300.0,
    ) -> Run:
        """Run Python on the stand-ins. The arguments are described at the top of this module.

        Args:
            folder: Working directory; by default a new, empty one.
            timeout: In seconds; generous, for slow machines.
        """
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        (work / "folder").mkdir()
        log = work / "log"
        log.touch()
        variables = self._environment(self._folder_without(work, without), log)
        settings: dict[str, str | None] = {
            "CUDA_STAND_IN_CARDS": str(cards),
            "CUDA_STAND_IN_MEMORY": None if memory is None else str(memory),
            "CUDA_STAND_IN_NO_KERNELS": None if kernels else "1",
            "CUDA_STAND_IN_OLD_DRIVER": "1" if old_driver else None,
            "CUDA_STAND_IN_FAIL": ",".join(_failure(name, value) for name, value in (fail or {}).items()),
            **(environment or {}),
        }
        variables = {**variables, **{name: value for name, value in settings.items() if value is not None}}
        for name in (name for name, value in settings.items() if value is None):
            variables.pop(name, None)
        arguments = ["-c", program] if isinstance(program, str) else list(program)
        done = subprocess.run(
            [str(self._python), *arguments],
            input=stdin,
            env=variables,
            cwd=folder or work / "folder",
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
        session_config: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> GraphRun:
        """Open a graph with the CUDA provider, no fallback, in a process of its own and run it.

        Args:
            feeds: Inputs of each run.
            session_config: Entries of the session's configuration.
            settings: Those of `run`.

        Raises:
            AssertionError: the process ended for another reason than an error of onnxruntime.
        """
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        request = {
            "model": str(model),
            "runs": runs,
            "provider_options": dict(provider_options or {}),
            "session_config": dict(session_config or {}),
        }
        (work / "request.json").write_text(json.dumps(request))
        np.savez(work / "feeds.npz", allow_pickle=False, **feeds)
        process = self.run(["-m", "tests.cuda.run_graph", str(work)], **settings)
        assert process.returncode == 0, f"exit code {process.returncode}\n{process.stdout}{process.stderr}"
        result = json.loads((work / "result.json").read_text())
        trace = process.trace
        begun = len(result["outputs"]) + (bool(result["error"]) and bool(result["providers"]))
        return GraphRun(
            process,
            result["providers"],
            [NodePlacement(*node) for node in result["nodes"]],
            [[(tuple(shape), dtype) for shape, dtype in outputs] for outputs in result["outputs"]],
            result["error"],
            trace.marked("open"),
            [trace.marked(f"run {number}") for number in range(min(begun, runs))],
        )

    def _folder_without(self, work: Path, without: Sequence[str]) -> Path:
        left_out = {_library(name) for name in without}
        _skip_if_installed(left_out)
        folder = work / "libraries"
        folder.mkdir()
        for library in set(LIBRARIES.values()) - left_out:
            (folder / library).symlink_to(self._libraries / library)
        return folder

    def _environment(self, libraries: Path, log: Path) -> dict[str, str]:
        dropped = ("CUDA_VISIBLE_DEVICES", "PYTHONHOME")
        return {
            **{name: value for name, value in os.environ.items() if name not in dropped},
            "LD_LIBRARY_PATH": str(libraries),
            "PYTHONPATH": str(_ROOT),
            "CUDA_STAND_IN_LOG": str(log),
        }


def _library(name: str) -> str:
    library = LIBRARIES.get(name, name)
    if library not in LIBRARIES.values():
        raise ValueError(f"{name} is not one of {', '.join(LIBRARIES)} or {', '.join(LIBRARIES.values())}")
    return library


def _failure(name: str, value: int | tuple[int, int]) -> str:
    code, successes = value if isinstance(value, tuple) else (value, 0)
    return f"{name}={code}:{successes}"


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
