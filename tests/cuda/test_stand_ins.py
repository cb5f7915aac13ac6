"""The stand-ins for the CUDA libraries do what the tests that are built on them take for granted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cuda.build import LIBRARIES
from tests.cuda.stand_in import StandIns

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


def test_run_is_one_matmul_one_kernel_and_io_copies(cuda_stand_ins: StandIns, model: Path) -> None:
    run = cuda_stand_ins.run_graph(model, FEEDS, runs=2, provider_options={"use_tf32": "0"})
    assert (run.error, run.providers) == (None, [CUDA, CPU])
    assert (run.nodes_of(CUDA), run.nodes_of(CPU)) == (["MatMul", "Mul"], [])
    assert run.outputs == [[((ROWS, COLUMNS), "float32")]] * 2
    for trace in run.runs:
        assert [(gemm.shape, gemm.types) for gemm in trace.gemms] == [((ROWS, INNER, COLUMNS), ("32F",) * 3)]
        (kernel,) = trace.kernels
        assert kernel.name.startswith("_BinaryElementWise")
        assert kernel.threads >= ROWS * COLUMNS
        assert sorted(copy.bytes for copy in trace.copies("H2D")) == [4 * COLUMNS, 4 * ROWS * INNER]
        assert [copy.bytes for copy in trace.copies("D2H")] == [4 * ROWS * COLUMNS]


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
