"""The stand-ins for the CUDA libraries do what the tests that are built on them take for granted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cuda.build import LIBRARIES, find_tools
from tests.cuda.events import Kernel, Load, parse_log
from tests.cuda.isolation import create_environment
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


def test_environment_gets_no_folders_from_pth_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold the very packages that the environment is made without."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "nvidia").mkdir()
    (packages / "folders.pth").write_text("# others\n/usr/share/packages\n")
    (packages / "hook.pth").write_text("import sys\n")
    (packages / "kept.py").touch()
    monkeypatch.setattr(sys, "path", [str(packages)])
    python = create_environment(tmp_path / "environment")
    (made,) = python.parents[1].glob("lib/python*/site-packages")
    assert sorted(item.name for item in made.iterdir()) == ["hook.pth", "kept.py"]


def test_provider_opens_and_takes_every_node(two_runs: GraphRun) -> None:
    assert two_runs.error is None
    assert two_runs.providers == [CUDA, CPU]
    assert two_runs.nodes_of(CUDA) == ["MatMul", "Mul"]
    assert two_runs.nodes_of(CPU) == []
    assert two_runs.outputs == [[((ROWS, COLUMNS), "float32")]] * 2


def test_opening_session_copies_weights(two_runs: GraphRun) -> None:
    assert [copy.bytes for copy in two_runs.opening.h2d] == [4 * INNER * COLUMNS]
    assert not two_runs.opening.kernels


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


def test_tf32_is_visible_in_math_mode(cuda_stand_ins: StandIns, model: Path, two_runs: GraphRun) -> None:
    by_default = cuda_stand_ins.run_graph(model, FEEDS)
    assert [gemm.tf32 for gemm in by_default.runs[0].gemms] == [True]
    assert [gemm.tf32 for gemm in two_runs.runs[0].gemms] == [False]


def test_consecutive_runs_are_traced_separately(two_runs: GraphRun) -> None:
    first, second = two_runs.runs
    assert first.allocations or first.cudnn, first.summary()
    assert not second.allocations, second.summary()
    assert not second.cudnn, second.summary()


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


def test_modules_are_loaded_from_this_checkout(cuda_stand_ins: StandIns) -> None:
    done = cuda_stand_ins.run("import es_sbert.exporters.sentence_graph as build; print(build.__file__)")
    expected = Path(__file__).resolve().parents[2] / "exporters/sentence_graph.py"
    assert Path(done.stdout.strip()).resolve() == expected, done.stderr


def test_device_memory_keeps_copied_data(cuda_stand_ins: StandIns) -> None:
    done = cuda_stand_ins.run(
        "import onnxruntime, numpy\n"
        "value = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.arange(5, dtype='float32'), 'cuda', 0)\n"
        "print(value.device_name(), value.numpy().tolist())"
    )
    assert done.stdout.strip() == "cuda [0.0, 1.0, 2.0, 3.0, 4.0]", done.stderr
    assert [copy.direction for copy in done.trace.copies] == ["H2D", "D2H"]


def test_copies_record_pinned_host_memory(cuda_stand_ins: StandIns) -> None:
    done = cuda_stand_ins.run(
        "import ctypes\n"
        f"cuda = ctypes.CDLL({LIBRARIES['cudart']!r})\n"
        "size, card, pinned = ctypes.c_size_t(16), ctypes.c_void_p(), ctypes.c_void_p()\n"
        "cuda.cudaMalloc(ctypes.byref(card), size)\n"
        "cuda.cudaMallocHost(ctypes.byref(pinned), size)\n"
        "pageable = ctypes.create_string_buffer(b'sixteen letters.', 16)\n"
        "for to, source in ((card, pageable), (pinned, card), (card, pinned), (pageable, card)):\n"
        "    assert cuda.cudaMemcpyAsync(to, source, size, 4, None) == 0\n"
        "print(pageable.raw.decode())"
    )
    assert done.stdout.strip() == "sixteen letters.", done.stderr
    assert [(copy.direction, copy.pinned, copy.waits) for copy in done.trace.copies] == [
        ("H2D", False, False),
        ("D2H", True, False),
        ("H2D", True, False),
        ("D2H", False, True),
    ]
    assert [(each.memory, each.bytes) for each in done.trace.allocations] == [("device", 16), ("pinned", 16)]


def test_cudnn_calls_are_traced_by_name(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("ReduceL2", ["x"], ["y"], axes=[1])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, 1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "l2.onnx")
    opened = cuda_stand_ins.run_graph(tmp_path / "l2.onnx", {"x": FEEDS["x"]})
    assert opened.error is None
    assert "cudnnReduceTensor" in opened.runs[0].cudnn, opened.runs[0].summary()


def test_trace_lines_of_threads_do_not_mix(cuda_stand_ins: StandIns, model: Path) -> None:
    done = cuda_stand_ins.run(
        "import numpy, onnxruntime\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tests.cuda.marks import mark\n"
        f"session = onnxruntime.InferenceSession({str(model)!r}, providers=['{CUDA}'])\n"
        f"feeds = {{'x': numpy.ones(({ROWS}, {INNER}), 'f4'), 'z': numpy.ones({COLUMNS}, 'f4')}}\n"
        "mark('threads')\n"
        "with ThreadPoolExecutor(4) as pool: list(pool.map(lambda _: session.run(None, feeds), range(100)))\n"
        "mark('end')\n"
    )
    assert done.returncode == 0, done.stderr
    trace = done.trace.marked("threads")
    assert (len(trace.kernels), len(trace.gemms), len(trace.h2d), len(trace.d2h)) == (100, 100, 200, 100)
    assert {gemm.shape for gemm in trace.gemms} == {(ROWS, INNER, COLUMNS)}


@pytest.mark.parametrize("library", ["cuda", "cudart", "cublas", "cublaslt", "curand"])
def test_missing_library_prevents_provider_from_opening(cuda_stand_ins: StandIns, model: Path, library: str) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, without=(library,))
    assert opened.providers == [CPU]
    assert f"{LIBRARIES[library]}: cannot open shared object file" in opened.process.stderr
    assert not opened.process.trace.kernels


def test_provider_opens_without_cudnn_and_never_calls_it(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, without=("libcudnn.so.9",))
    assert opened.error is None
    assert opened.providers == [CUDA, CPU]
    assert opened.process.trace.cudnn == []
    assert "libcudnn.so.9" not in opened.process.trace.libraries


@pytest.mark.usefixtures("cuda_stand_ins")
def test_missing_build_tools_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_tools() == "gcc, nm, c++filt not on PATH; install gcc and binutils"


def test_left_out_library_must_be_a_stand_in(cuda_stand_ins: StandIns) -> None:
    with pytest.raises(ValueError, match="libcufft"):
        cuda_stand_ins.run("", without=("libcufft.so.12",))


def test_opening_without_gpu_fails(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, cards=0)
    assert "CUDA failure 100: no CUDA-capable device is detected" in (opened.error or "")


def test_second_gpu_can_be_selected(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, cards=2, provider_options={"device_id": "1"})
    assert opened.error is None
    assert {allocation.device for allocation in opened.process.trace.allocations} == {1}


def test_selecting_missing_gpu_fails(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, cards=2, provider_options={"device_id": "2"})
    assert opened.error
    assert opened.providers == []


def test_old_driver_prevents_provider_from_opening(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, old_driver=True)
    assert "CUDA failure 35: CUDA driver version is insufficient" in (opened.error or "")


def test_weights_larger_than_memory_prevent_opening(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, memory=16)
    assert "Failed to allocate memory" in (opened.error or "")
    assert opened.process.trace.allocations
    assert all(allocation.failed for allocation in opened.process.trace.allocations)


def test_batch_larger_than_memory_fails_at_run(cuda_stand_ins: StandIns, model: Path) -> None:
    large = {**FEEDS, "x": np.ones((1 << 20, INNER), np.float32)}
    opened = cuda_stand_ins.run_graph(model, large, memory=8 << 20)
    assert opened.providers == [CUDA, CPU]
    assert "Failed to allocate memory" in (opened.error or "")


def test_unsupported_architecture_fails_at_first_run(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, kernels=False)
    assert opened.providers == [CUDA, CPU]
    assert "no kernel image is available for execution on the device" in (opened.error or "")
    assert [kernel.error for kernel in opened.runs[0].kernels] == [209]


def test_function_fails_after_given_number_of_successes(cuda_stand_ins: StandIns, model: Path) -> None:
    copies_of_a_run = 3
    opened = cuda_stand_ins.run_graph(model, FEEDS, runs=3, fail={"cudaMemcpyAsync": (700, copies_of_a_run)})
    assert len(opened.outputs) == 1
    assert "CUDA failure 700: an illegal memory access" in (opened.error or "")


def test_failing_cublas_function_is_reported(cuda_stand_ins: StandIns, model: Path) -> None:
    opened = cuda_stand_ins.run_graph(model, FEEDS, fail={"cublasSgemm_v2": 13, "cublasGemmEx": 13})
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in (opened.error or "")


def test_invalid_launch_configuration_is_an_error(cuda_stand_ins: StandIns) -> None:
    """As for a batch without tokens: its grid has no blocks."""
    done = cuda_stand_ins.run(
        "import ctypes\n"
        "class Dimensions(ctypes.Structure): _fields_ = [(name, ctypes.c_uint) for name in 'xyz']\n"
        f"cuda = ctypes.CDLL({LIBRARIES['cudart']!r})\n"
        "for blocks, threads in ((0, 1), (1, 1025), (1, 1024)):\n"
        "    launch = (None, Dimensions(blocks, 1, 1), Dimensions(threads, 1, 1), None, ctypes.c_size_t(0), None)\n"
        "    print(cuda.cudaLaunchKernel(*launch), cuda.cudaGetLastError(), cuda.cudaGetLastError())"
    )
    assert done.stdout.splitlines() == ["9 9 0", "9 9 0", "0 0 0"], done.stderr


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
