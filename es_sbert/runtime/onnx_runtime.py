"""Import onnxruntime, or raise an error that says which package to install.

es-sbert itself requires no build of onnxruntime: the extras `cpu` and `cuda` do. All other modules import it from here.
"""

from __future__ import annotations

from es_sbert.errors import UsageError, error_summary
from es_sbert.installation import (
    CPU_EXTRA,
    CUDA_EXTRA,
    has_cuda_build,
    install_extra_command,
    installed_runtimes,
    runtime_collision,
    switch_runtime_command,
)
from es_sbert.runtime.device import cuda_devices

__all__ = ["onnxruntime"]


def runtime_error(cause: str) -> UsageError:
    """Create the error to raise if onnxruntime cannot be imported.

    Args:
        cause: The message of Python or the system's loader.
    """
    installed, cards = installed_runtimes(), cuda_devices()
    collision = runtime_collision(cards)
    if collision is not None:
        return UsageError(*collision)
    if installed:
        (package,) = installed
        extra = CUDA_EXTRA if package == "onnxruntime-gpu" else CPU_EXTRA
        return UsageError(
            f"{package} {installed[package]} is installed, but cannot be imported: {cause}",
            f"Remove it and install it again: {switch_runtime_command(extra)}",
        )
    gpu = f"; for an NVIDIA GPU: {install_extra_command(CUDA_EXTRA)}" if has_cuda_build() else ""
    return UsageError(
        "onnxruntime, which runs the models, is not installed",
        f"Install its build for CPUs: {install_extra_command(CPU_EXTRA)}{gpu}",
    )


try:
    import onnxruntime
except (ImportError, OSError) as error:
    raise runtime_error(error_summary(error)) from error

# After one of two packages was removed, the rest of its folder looks like an empty module to Python.
if not hasattr(onnxruntime, "InferenceSession"):
    raise runtime_error("its files are gone")
