"""Packages to bring to a machine without a network that has torch, transformers and sentence-transformers."""

from __future__ import annotations

import re
from pathlib import Path

_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"

# What the steps import and torch, transformers, sentence-transformers and onnx do not bring.
STEPS = (
    "onnxruntime-gpu", "flatbuffers", "pydantic", "pydantic_core", "annotated-types", "typing-inspection",
    "typing_extensions", "pydantic-settings", "python-dotenv", "click", "cloup", "orjson", "semantic-text-splitter",
    "zstandard", "rich", "markdown-it-py", "mdurl", "Pygments", "elasticsearch",
    "elastic-transport", "sniffio", "python-dateutil", "six", "urllib3", "certifi", "pytest", "pluggy", "iniconfig",
)  # fmt: skip
# `es-sbert train` needs a newer transformers than such machines may have, and that its own companions.
TRAINING = (
    "sentence-transformers", "transformers", "tokenizers", "huggingface_hub", "hf-xet", "httpx2", "httpcore2", "h11",
    "anyio", "idna", "truststore", "typer", "shellingham", "accelerate", "psutil", "datasets", "pyarrow", "pandas",
    "dill", "xxhash", "multiprocess",
)  # fmt: skip


def pinned(*, training: bool = False) -> list[str]:
    """`package==version` with the versions that were tested together.

    Raises:
        KeyError: constraints.txt has no such package.
    """
    found = re.findall(r"^(\S+)==(\S+)$", _CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    versions = {_normal(name): version for name, version in found}
    wanted = STEPS + (TRAINING if training else ())
    return [f"{name}=={versions[_normal(name)]}" for name in wanted]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
