"""The properties of this machine on which an export or a compiled model depends."""

from __future__ import annotations

import contextlib
import importlib.metadata

from es_sbert import __version__
from es_sbert.runtime.device import available_cores, processor_flags, processor_name

# Linux's names of vector instructions, on x86 and on ARM.
_MATRIX_INSTRUCTIONS = ("avx", "amx", "asimd", "sve", "i8mm", "bf16")


def describe_machine() -> dict[str, str]:
    """Return the properties on which exports and compiled models depend: the processor, the usable cores, and releases.

    The processor's instructions are included, because virtual machines often name only the family of their processor,
    whose members have different features.
    """
    versions = {"es-sbert": __version__}
    for package in ("onnxruntime", "onnxruntime-gpu", "openvino"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # left out if it is not installed
            versions[package] = importlib.metadata.version(package)
    instructions = " ".join(sorted(flag for flag in processor_flags() if flag.startswith(_MATRIX_INSTRUCTIONS)))
    cores = str(available_cores())
    return {"processor": processor_name(), "instructions": instructions, "cores": cores, **versions}
