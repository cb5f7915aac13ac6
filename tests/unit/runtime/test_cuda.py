"""Where CUDA's libraries are looked for, and what a session is opened with, as far as it can be told without CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.cuda_session import (
    CudaLibrary,
    cuda_provider_options,
    missing_libraries,
    missing_library_names,
    needed_libraries,
    non_shape_operators,
    nvidia_package_folders,
    warmup_inputs,
)
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import open_session
from tests.tiny import write_tiny_bert

RAND = CudaLibrary("libcurand.so.10", "nvidia-curand")
DNN = CudaLibrary("libcudnn.so.9", "nvidia-cudnn-cu13", required=False)


def test_libraries_of_each_cuda_and_system() -> None:
    needed = needed_libraries(13, "linux")
    assert {library.name: library.package for library in needed} == {
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libcublasLt.so.13": "nvidia-cublas",
        "libcublas.so.13": "nvidia-cublas",
        "libcurand.so.10": "nvidia-curand",
        "libcudnn.so.9": "nvidia-cudnn-cu13",
    }
    names = [library.name for library in needed]
    assert names.index("libcublasLt.so.13") < names.index("libcublas.so.13"), "a library before what it needs"
    assert [library.name for library in needed if not library.required] == ["libcudnn.so.9"]
    packages = {library.package for library in needed_libraries(12, "linux")}
    assert packages == {f"nvidia-{name}-cu12" for name in ("cuda-runtime", "cublas", "curand", "cudnn", "cufft")}
    assert "cudart64_13.dll" in {library.name for library in needed_libraries(13, "win32")}


def test_nvidia_package_folders_old_and_new(tmp_path: Path) -> None:
    for folder in ("curand/lib", "cu13/lib", "cudnn/lib", "cu13/bin/x86_64", "cu13/include"):
        (tmp_path / folder).mkdir(parents=True)
    found = [folder.relative_to(tmp_path).as_posix() for folder in nvidia_package_folders([tmp_path], 13)]
    # cuRAND's file has the same name in CUDA 12 and 13: the folder of the right one comes first.
    assert found[0] == "cu13/lib"
    assert {"curand/lib", "cudnn/lib", "cu13/bin/x86_64"} < set(found)
    assert "cu13/include" not in found


def test_library_of_the_system_is_loaded_before_that_of_a_package(tmp_path: Path) -> None:
    packaged = tmp_path / RAND.name
    packaged.touch()

    def missing(*there: str) -> tuple[tuple[CudaLibrary, ...], list[str]]:
        """Where only these names or paths load: what is missing, and what was tried."""
        tried: list[str] = []

        def load(name: str) -> None:
            tried.append(name)
            if name not in there:
                raise OSError(f"{name}: cannot open shared object file")

        return missing_libraries([RAND, DNN], [tmp_path], load), tried

    assert missing(RAND.name, str(packaged)) == ((DNN,), [RAND.name, DNN.name])
    assert missing(str(packaged)) == ((DNN,), [RAND.name, str(packaged), DNN.name])
    assert missing()[0] == (RAND, DNN)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("libcurand.so.10: cannot open shared object file: No such file or directory", ["libcurand.so.10"]),
        ("libcufft.so.12: cannot open shared object file: No such file", ["libcurand.so.10", "libcufft.so.12"]),
        ("undefined symbol: cublasLtMatmul", ["libcurand.so.10"]),
    ],
)
def test_missing_library_names(problem: str, names: list[str]) -> None:
    assert missing_library_names((RAND, DNN), problem) == names


def test_padded_graph_warmup_input_is_one_text(tmp_path: Path) -> None:
    export_bundle(read_sentence_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", [Variant.FP32])
    session = open_session(tmp_path / "bundle/onnx/model_fp32.onnx", Device("cpu"))
    feed = warmup_inputs(session)
    assert {name: (array.dtype.name, array.tolist()) for name, array in feed.items()} == {
        "input_ids": ("int64", [[0, 0]]),
        "attention_mask": ("int64", [[1, 1]]),
    }
    assert session.run(None, feed)[0].shape[0] == 1


def test_non_shape_operators() -> None:
    assert non_shape_operators(["Concat", "Shape", "Gather", "Squeeze"]) == []
    assert non_shape_operators(["MatMul", "Concat", "Tan", "MatMul"]) == ["MatMul", "Tan"]


def test_cuda_provider_options() -> None:
    options = cuda_provider_options(Device("cuda", 3))
    assert options == {"device_id": 3, "enable_skip_layer_norm_strict_mode": "1", "use_tf32": "0", "sdpa_kernel": "7"}
    assert cuda_provider_options(Device("cuda"), short=True)["sdpa_kernel"] == "2"
