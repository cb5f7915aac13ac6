"""Texts of onnxruntime's exceptions on CUDA, as it writes them, and what becomes of them."""

from __future__ import annotations

import pytest

from es_sbert.runtime import cuda_session
from es_sbert.runtime.cuda_session import CudaLibrary, device_error, missing_libraries_error
from es_sbert.runtime.device import Device
from tests.raised import record

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
    "text",
    [
        NODE.format("MatMul") + ARENA,
        NODE.format("ReduceL2") + "Status Message: cuDNN is unavailable for CUDA Execution Provider: dlopen failed "
        "for libcudnn.so: libcudnn.so: cannot open shared object file: No such file or directory",
        NODE.format("Gather") + "Status Message: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is "
        "available for execution on the device",
        CALL.format(failure="CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"),
        CALL.format(failure="CUDA failure 100: no CUDA-capable device is detected"),
        CALL.format(failure="CUDA failure 46: all CUDA-capable devices are busy"),
        CALL.format(failure="CUDA failure 719: unspecified launch failure"),
        NODE.format("Gelu") + "Status Message: a novelty",
        "",
    ],
)
def test_onnxruntime_exception_becomes_error_with_remedy(text: str) -> None:
    record(device_error(CARD, RuntimeError(text)))


def test_old_gpu_error_names_the_release_that_supports_it() -> None:
    text = "CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available for execution on the device"
    record(device_error(CARD, RuntimeError(text), (7, 0)))
    record(device_error(CARD, RuntimeError(text), (12, 1)))


def test_provider_that_does_not_load_names_libraries_or_the_driver() -> None:
    missing = (CudaLibrary("libcublas.so.13", "nvidia-cublas"), CudaLibrary("libcurand.so.10", "nvidia-curand"))
    record(missing_libraries_error(CARD, missing, "libcublas.so.13: cannot open shared object file"))
    record(missing_libraries_error(CARD, (), "undefined symbol: cublasLtMatmul"))
    record(missing_libraries_error(CARD, (), "libcuda.so.1: cannot open shared object file"))
