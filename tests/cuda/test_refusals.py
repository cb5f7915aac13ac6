"""What es-sbert says where CUDA does not run, on stand-ins for the CUDA libraries."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.sentence_graph import build_sentence_graph
from tests.cuda.stand_in import Run, StandIns
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_checkpoint

EXTRA = 'pip install "es-sbert[cuda]" installs everything that CUDA needs'
OPEN = """
import sys
from pathlib import Path
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import open_session
from es_sbert.errors import EsSbertError
try:
    session = open_session(Path({path!r}), Device("cuda"))
except EsSbertError as error:
    print(type(error).__name__, error, file=sys.stderr)
else:
    print("opened", session.get_providers()[0], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands keep the graph of `model`: the first one that runs it on the CPU writes it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    """The graph that is preferred on CUDA."""
    bundle = read_sentence_model(model)
    path = model.parent / "packed.onnx"
    onnx.save(build_sentence_graph(bundle, read_transformer_weights(bundle), Precision.FP16), path)
    return path


def write_graph(path: Path, *operators: str) -> Path:
    """Token embeddings, each of the operators in turn, and the norm over the tokens."""
    rows = numpy_helper.from_array(np.ones((8, 4), np.float32), "rows")
    nodes = [helper.make_node("Gather", ["rows", "input_ids"], ["x0"])]
    nodes += [helper.make_node(name, [f"x{n}"], [f"x{n + 1}"]) for n, name in enumerate(operators)]
    nodes.append(helper.make_node("ReduceL2", [f"x{len(operators)}"], ["sentence_embedding"], axes=[1], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 4])],
        [rows],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def opened(stand_ins: StandIns, path: Path, **settings: object) -> str:
    """What opening a graph came to; nothing may be printed to stdout."""
    done = stand_ins.run(OPEN.format(path=str(path)), **settings)  # type: ignore[arg-type]
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


def encoded(stand_ins: StandIns, model: Path, cache: Path, *options: str, **settings: object) -> Run:
    program = ["-m", "es_sbert", "encode", "--model", str(model), *options]
    environment = {"ES_SBERT_CACHE": str(cache)}
    return stand_ins.run(program, stdin="a man\nthe cat\n", environment=environment, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "roberta"])
def test_graph_opens_without_messages(cuda_stand_ins: StandIns, tmp_path: Path, architecture: str) -> None:
    bundle = read_sentence_model(write_checkpoint(tmp_path / "model", architecture))
    onnx.save(build_sentence_graph(bundle, read_transformer_weights(bundle), Precision.FP16), tmp_path / "model.onnx")
    opened_without = opened(cuda_stand_ins, tmp_path / "model.onnx", without=("cudnn",))
    assert opened_without == "opened CUDAExecutionProvider\n"


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"without": ("cudart",)},
         ("onnxruntime's CUDA provider does not load: ", "libcudart.so.13", "pip install nvidia-cuda-runtime", EXTRA)),
        ({"without": ("cublas", "cublaslt", "curand", "cudnn")},
         ("libcublasLt.so.13, libcublas.so.13, libcurand.so.10 not found", "pip install nvidia-cublas nvidia-curand;")),
        ({"memory": 1}, ("cuda:0 has too little free memory for this model: ", "nvidia-smi", '`device="cuda:N"`')),
        ({"kernels": False},
         ("has no code for cuda:0 (compute capability 9.0): ", "pip install --upgrade onnxruntime-gpu")),
        ({"old_driver": True},
         ("does not support the CUDA that onnxruntime-gpu", "CUDA failure 35", "Update the driver to 580 or newer")),
    ],
    ids=["library", "libraries", "memory", "kernels", "driver"],
)  # fmt: skip
def test_error_names_cause_and_remedy(
    cuda_stand_ins: StandIns, packed: Path, settings: dict[str, object], parts: tuple[str, ...]
) -> None:
    said = opened(cuda_stand_ins, packed, **settings)
    assert [part for part in ("DeviceError ", *parts) if part not in said] == [], said
    assert "without" not in settings or "[E:onnxruntime" not in said


def test_missing_cudnn_error_names_operator_and_package(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "graph.onnx")
    assert "opened CUDA" in opened(cuda_stand_ins, graph)
    said = opened(cuda_stand_ins, graph, without=("cudnn",))
    assert said.startswith("DeviceError this model has an operator that needs cuDNN, which does not load: "), said
    assert "ReduceL2" in said
    assert "pip install nvidia-cudnn-cu13" in said


def test_device_lost_between_batches_raises_device_error(cuda_stand_ins: StandIns, packed: Path) -> None:
    """`device_error` turns what a later run raises into an error with a remedy."""
    code = OPEN.format(path=str(packed)) + (
        "from es_sbert.runtime.cuda_session import device_error\n"
        "from es_sbert.runtime.cuda_session import warmup_inputs\n"
        "try:\n"
        "    for number in range(1000): session.run(None, warmup_inputs(session))\n"
        "except Exception as error: print(device_error(Device('cuda'), error), file=sys.stderr)\n"
    )
    done = cuda_stand_ins.run(code, fail={"cudaMemcpyAsync": (719, 100)})
    assert "opened CUDAExecutionProvider" in done.stderr
    assert "cuda:0 failed: CUDA failure 719" in done.stderr
    assert done.stdout == ""


def test_compute_nodes_on_cpu_are_rejected(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    said = opened(cuda_stand_ins, write_graph(tmp_path / "graph.onnx", "Tan", "Relu", "Sinh"))
    assert "would run partly on the CPU: CUDA has no kernel for its Sinh, Tan" in said, said


def test_encode_on_cuda_without_libraries_writes_nothing(cuda_stand_ins: StandIns, model: Path, tmp_path: Path) -> None:
    done = encoded(cuda_stand_ins, model, tmp_path, "-o", "-", "--device", "cuda", without=("curand",))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Error: no session on cuda:0" in done.stderr
    assert "pip install nvidia-curand" in done.stderr
    assert EXTRA in done.stderr


def test_encode_on_cuda_without_gpu_writes_nothing(cuda_stand_ins: StandIns, model: Path, tmp_path: Path) -> None:
    done = encoded(cuda_stand_ins, model, tmp_path, "-o", "-", "--device", "cuda", cards=0)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: --device cuda: there is no NVIDIA driver, or it reports no GPU" in done.stderr


def test_auto_falls_back_to_cpu_and_warns_why(cuda_stand_ins: StandIns, model: Path, cache: Path) -> None:
    done = encoded(cuda_stand_ins, model, cache, without=("curand",))
    assert done.returncode == 0, done.stderr
    assert [set(orjson.loads(line)) for line in done.stdout.splitlines()] == [{"text", "embedding"}] * 2
    assert "Warning: CUDA does not work here: no session on cuda:0" in done.stderr
    assert "pip install nvidia-curand" in done.stderr
    assert re.search(r"(CPUExecutionProvider|OpenVINO [\d.]+), cpu\)", done.stderr)


def test_doctor_names_the_card_and_the_missing_cuda_library(cuda_stand_ins: StandIns, model: Path, cache: Path) -> None:
    program = ["-m", "es_sbert", "doctor", "--model", str(model), "--url", "http://localhost:1", "--json"]
    done = cuda_stand_ins.run(program, without=("curand",), environment={"ES_SBERT_CACHE": str(cache)})
    findings = [orjson.loads(line) for line in done.stdout.splitlines()]
    [runtime] = [finding for finding in findings if finding["about"] == "runtime"]
    assert "Stand-in for an H100 (compute capability 9.0)" in runtime["message"]
    [device] = [finding for finding in findings if "libcurand.so.10" in finding["message"]]
    assert device["level"] == "warning"
    assert "nvidia-curand" in device["message"] + device["remedy"]
