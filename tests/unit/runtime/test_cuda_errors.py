"""Texts of onnxruntime's exceptions on CUDA, as it writes them, and what becomes of them."""

from __future__ import annotations

import pytest

from es_sbert.runtime import cuda_session
from es_sbert.runtime.cuda_session import CudaLibrary, device_error, missing_libraries_error
from es_sbert.runtime.device import Device

CARD = Device("cuda", 1)
CALL = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:122 std::conditional_t<THRW, void, Status> "
    "onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const char*, int) "
    "{failure} ; GPU=1 ; hostname=h ; file=/onnxruntime_src/cuda_execution_provider.cc ; line=336 ; "
    "expr=cudaSetDevice(info_.device_id); "
)
NODE = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running {} node. Name:'n' "
ARENA = (
    "Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* "
    "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for "
    "requested buffer of size 8388608000\n"
)


@pytest.fixture(autouse=True)
def _built_for_cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever onnxruntime is installed here."""
    monkeypatch.setattr(cuda_session, "cuda_major", lambda: 13)


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (NODE.format("MatMul") + ARENA, "too little free memory for this model: MatMul: Failed", '`device="cpu"`'),
        (
            NODE.format("ReduceL2") + "Status Message: cuDNN is unavailable for CUDA Execution Provider: dlopen failed "
            "for libcudnn.so: libcudnn.so: cannot open shared object file: No such file or directory",
            "needs cuDNN, which does not load: ReduceL2: cuDNN is unavailable",
            "pip install nvidia-cudnn-cu",
        ),
        (
            NODE.format("Gather") + "Status Message: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is "
            "available for execution on the device",
            "has no code for cuda:1: Gather: CUDA error cudaErrorNoKernelImageForDevice",
            "pip install --upgrade onnxruntime-gpu",
        ),
        (
            CALL.format(failure="CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"),
            "the NVIDIA driver does not support the CUDA",
            "Update the driver",
        ),
        (CALL.format(failure="CUDA failure 100: no CUDA-capable device is detected"), "does not exist", "nvidia"),
        (CALL.format(failure="CUDA failure 46: all CUDA-capable devices are busy"), "another process", "exclusive"),
        (CALL.format(failure="CUDA failure 719: unspecified launch failure"), "cuda:1 failed: CUDA failure 719", "Xid"),
        (NODE.format("Gelu") + "Status Message: a novelty", "does not run on cuda:1: Gelu: a novelty", "doctor"),
        ("", "does not run on cuda:1: no reason given", "doctor"),
    ],
)
def test_onnxruntime_exception_becomes_error_with_remedy(text: str, message: str, remedy: str) -> None:
    error = device_error(CARD, RuntimeError(text))
    assert message in error.message
    assert remedy in error.remedy
    assert '`device="cpu"`' in error.remedy
    assert "/onnxruntime_src" not in error.message
    assert "\n" not in error.message


def test_old_gpu_error_names_the_release_that_supports_it() -> None:
    text = "CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available for execution on the device"
    old = device_error(CARD, RuntimeError(text), (7, 0))
    assert "cuda:1 (compute capability 7.0)" in old.message
    assert '"onnxruntime-gpu[cuda,cudnn]<1.27"' in old.remedy
    assert "--upgrade" in device_error(CARD, RuntimeError(text), (12, 1)).remedy


def test_provider_that_does_not_load_names_libraries_or_the_driver() -> None:
    missing = (CudaLibrary("libcublas.so.13", "nvidia-cublas"), CudaLibrary("libcurand.so.10", "nvidia-curand"))
    error = missing_libraries_error(CARD, missing, "libcublas.so.13: cannot open shared object file")
    assert error.message.endswith("CUDA provider does not load: libcublas.so.13, libcurand.so.10 not found")
    assert "pip install nvidia-cublas nvidia-curand" in error.remedy
    error = missing_libraries_error(CARD, (), "undefined symbol: cublasLtMatmul")
    assert error.message.endswith("does not load: undefined symbol: cublasLtMatmul")
    error = missing_libraries_error(CARD, (), "libcuda.so.1: cannot open shared object file")
    assert "there is no NVIDIA driver" in error.message
    assert "pip" not in error.remedy
