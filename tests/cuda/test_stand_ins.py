"""The stand-ins for the CUDA libraries do what the tests that are built on them take for granted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cuda.build import LIBRARIES, find_tools
from tests.cuda.events import Kernel, Load, parse_log
from tests.cuda.stand_in import GraphRun, StandIns

ROWS, INNER, COLUMNS = 5, 4, 3
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
FEEDS = {"x": np.ones((ROWS, INNER), np.float32), "z": np.ones(COLUMNS, np.float32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = (x @ w) * z: (n, 4) @ (4, 3) * (3,). A sum would be fused with the product."""
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    weight = numpy_helper.from_array(np.ones((INNER, COLUMNS), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Mul", ["product", "z"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INNER]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [COLUMNS]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def two_runs(cuda_stand_ins: StandIns, model: Path) -> GraphRun:
    return cuda_stand_ins.run_graph(model, FEEDS, runs=2, provider_options={"use_tf32": "0"})


def test_provider_opens_and_takes_every_node(two_runs: GraphRun) -> None:
    assert two_runs.error is None
    assert two_runs.providers == [CUDA, CPU]
    assert two_runs.nodes_of(CUDA) == ["MatMul", "Mul"]
    assert two_runs.nodes_of(CPU) == []
    assert two_runs.outputs == [[((ROWS, COLUMNS), "float32")]] * 2


def test_run_is_one_matmul_one_kernel_and_io_copies(two_runs: GraphRun) -> None:
    for trace in two_runs.runs:
        assert [(gemm.shape, gemm.batch, gemm.types) for gemm in trace.gemms] == [
            ((ROWS, INNER, COLUMNS), 1, ("32F", "32F", "32F"))
        ], trace.summary()
        (kernel,) = trace.kernels
        assert kernel.name.startswith("_BinaryElementWise")
        assert kernel.signature.startswith("void onnxruntime::cuda::")
        assert kernel.threads >= ROWS * COLUMNS
        assert kernel.error == 0
        assert sorted(copy.bytes for copy in trace.h2d) == [4 * COLUMNS, 4 * ROWS * INNER]
        assert [(copy.bytes, copy.pinned) for copy in trace.d2h] == [(4 * ROWS * COLUMNS, False)]
        assert [sync.of for sync in trace.syncs] == ["stream", "stream"]
        assert len(trace.waits) == 3  # and the copy to pageable memory


def test_only_stand_ins_are_loaded(cuda_stand_ins: StandIns) -> None:
    """Also by onnxruntime's own search, which takes the libraries of `nvidia` packages first."""
    done = cuda_stand_ins.run(
        "import sys, onnxruntime\n"
        "from importlib.util import find_spec\n"
        "onnxruntime.preload_dlls()\n"
        "print(find_spec('nvidia'), find_spec('torch'))\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libcu' in line}, sep='\\n')"
    )
    packages, *mapped = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert packages == "None None"
    looked_for = sorted(set(LIBRARIES.values()) - {LIBRARIES["cuda"]})
    assert sorted(Path(path).name for path in mapped) == looked_for
    assert sorted(done.trace.libraries) == looked_for


def test_device_memory_keeps_copied_data(cuda_stand_ins: StandIns) -> None:
    done = cuda_stand_ins.run(
        "import onnxruntime, numpy\n"
        "value = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.arange(5, dtype='float32'), 'cuda', 0)\n"
        "print(value.device_name(), value.numpy().tolist())"
    )
    assert done.stdout.strip() == "cuda [0.0, 1.0, 2.0, 3.0, 4.0]", done.stderr
    assert [copy.direction for copy in done.trace.copies] == ["H2D", "D2H"]


@pytest.mark.usefixtures("cuda_stand_ins")
def test_missing_build_tools_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_tools() == "gcc, nm, c++filt not on PATH; install gcc and binutils"


@pytest.mark.usefixtures("cuda_stand_ins")
def test_kernel_names_are_demangled_function_names() -> None:
    launch = "1\t2\tkernel\tname={}\tgrid=1,2,3\tblock=4,5,6\tshared=7\tstream=0\terror=0\n"
    lines = "1\t1\tload\tlibrary=libcuda.so.1\n" + launch
    names = {
        "_ZN11onnxruntime4cuda12_GLOBAL__N_14gelu6kernelIfLi4EEEvPKT_": "kernel",
        "_Z5plaini": "plain",
        "extern_c": "extern_c",
    }
    for mangled, name in names.items():
        trace = parse_log(lines.format(mangled), "c++filt")
        load, kernel = trace.events
        assert load == Load(1, 1, "libcuda.so.1")
        assert isinstance(kernel, Kernel)
        assert (kernel.name, kernel.grid, kernel.block, kernel.threads) == (name, (1, 2, 3), (4, 5, 6), 6 * 120)
