"""What a measurement or an export on this machine depends on."""

from __future__ import annotations

import contextlib
import importlib.metadata

from es_sbert import __version__
from es_sbert.encoder.device import available_cores, processor_name


def describe_machine() -> dict[str, str]:
    """What figures depend on: the processor, the cores that this process may use, and releases."""
    versions = {"es-sbert": __version__}
    for package in ("onnxruntime", "onnxruntime-gpu", "openvino"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {"processor": processor_name(), "cores": str(available_cores()), **versions}
