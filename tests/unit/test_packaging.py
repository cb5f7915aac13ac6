"""pyproject.toml ships every package folder and pins nothing by address."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_folder_is_shipped() -> None:
    shipped = set(PYPROJECT["tool"]["setuptools"]["packages"])
    in_place = {path.parent.relative_to(ROOT).as_posix().replace("/", ".")
                for path in (ROOT / "es_sbert").rglob("__init__.py")}  # fmt: skip
    templates = {f"es_sbert.mappings.{path.parent.name}" for path in (ROOT / "mappings").glob("*/*.json")}
    assert shipped == in_place | templates | {"es_sbert.exporters", "es_sbert.mappings"}


def test_constraints_hold_versions_only() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line) for line in lines)


def test_core_dependencies_are_constrained_and_without_torch() -> None:
    pinned = {line.partition("==")[0].lower().replace("_", "-")
              for line in (ROOT / "constraints.txt").read_text().splitlines()}  # fmt: skip
    core = {re.split(r"[\[<>=; ]", line)[0].lower().replace("_", "-") for line in PYPROJECT["project"]["dependencies"]}
    assert core - pinned <= {"onnxruntime"}  # stands in for onnxruntime-gpu where that has no wheel
    assert not core & {"torch", "transformers", "sentence-transformers"}
