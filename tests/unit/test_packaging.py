"""What is shipped, under which license and version, and that nothing is pinned by address."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import es_sbert
from es_sbert.runtime.cuda_session import needed_libraries

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _distribution(requirement: str) -> str:
    """Its name without version, extras and conditions, as indices of packages normalize it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def _brought_by(requirements: Iterable[str]) -> set[str]:
    """Distributions that are named, and those that each of them cannot be installed without."""
    named = {_distribution(requirement) for requirement in requirements}
    return named.union(*(_needed_by(name) for name in named & _installed()))


@cache
def _installed() -> set[str]:
    return set().union(*_modules_to_distributions().values())


@cache
def _needed_by(name: str) -> set[str]:
    """Distributions that an installed one names."""
    return {_distribution(requirement) for requirement in requires(name) or () if "extra ==" not in requirement}


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    paths = [path for folder in ("es_sbert", "exporters") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def _imports(tree: ast.Module) -> set[str]:
    """Top-level modules of others, wherever in the file they are imported."""
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"es_sbert"}


@cache
def _modules_to_distributions() -> dict[str, set[str]]:
    return {module: {_distribution(name) for name in names} for module, names in packages_distributions().items()}


def test_every_folder_with_modules_is_an_installed_package() -> None:
    found = set[str]()
    for folder, prefix in (("es_sbert", ""), ("exporters", "es_sbert."), ("mappings", "es_sbert.")):
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path
            found.add(prefix + ".".join(path.parent.relative_to(ROOT).parts))
    assert sorted(found) == PYPROJECT["tool"]["setuptools"]["packages"]


def test_version_is_defined_once() -> None:
    """In `es_sbert/version.py`, as a literal: setuptools reads it without importing the package."""
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "es_sbert.version.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", es_sbert.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == es_sbert.__version__


def test_only_the_extras_cpu_and_cuda_bring_a_runtime() -> None:
    """By themselves or by other packages: an extra that is added later would install a second build over the first."""
    project = PYPROJECT["project"]
    others = [names for extra, names in project["optional-dependencies"].items() if extra not in ("cpu", "cuda", "dev")]
    waiting = [Requirement(line) for names in (project["dependencies"], *others) for line in names]
    reached, seen = set[str](), set[tuple[str, str]]()
    while waiting:
        wanted = waiting.pop()
        name = _distribution(wanted.name)
        for extra in {"", *wanted.extras} if name != "es-sbert" else ():
            if (name, extra) not in seen and name in _installed():
                needed = map(Requirement, requires(name) or ())
                waiting += [line for line in needed if line.marker is None or line.marker.evaluate({"extra": extra})]
            seen.add((name, extra))
            reached.add(name)
    assert len(reached) > 100
    assert not [name for name in reached if name.startswith("onnxruntime")]
    assert project["optional-dependencies"]["cpu"] == ["onnxruntime>=1.22"]
    pinned = dict(re.findall("^(onnxruntime.*)==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert pinned["onnxruntime"] == pinned["onnxruntime-gpu"]


def test_cuda_extra_provides_every_onnxruntime_library() -> None:
    """By packages of its own, or by extras of `cuda-toolkit`, which pins versions that belong together."""
    named = PYPROJECT["project"]["optional-dependencies"]["cuda"]
    (toolkit,) = filter(None, (re.match(r"cuda-toolkit\[(.*)\]>=13,<14", line) for line in named))
    brought = {f"nvidia-{extra}" for extra in toolkit[1].split(",")} | {_distribution(line) for line in named}
    toolkit_names = {"nvidia-cuda-runtime": "nvidia-cudart"}
    for library in needed_libraries(13):
        assert toolkit_names.get(library.package, library.package) in brought, library
    pinned = dict(re.findall("^(.*)==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert pinned["cuda-toolkit"].startswith("13.")
    assert {library.package for library in needed_libraries(13)} <= set(pinned)


@pytest.mark.train
def test_every_import_is_provided_by_the_package_or_an_extra() -> None:
    """`dev` and `test` have more, so that a test which runs the code would not notice."""
    project = PYPROJECT["project"]
    extras = (names for extra, names in project["optional-dependencies"].items() if extra not in ("dev", "test"))
    brought = _brought_by([*project["dependencies"], *(name for names in extras for name in names)])
    known = _modules_to_distributions()
    for path, tree in _trees():
        for module in _imports(tree):
            assert known.get(module, set()) & brought, f"{path} imports {module}, which nothing brings"


@pytest.mark.train
def test_extra_named_in_a_message_provides_the_missing_module() -> None:
    known, extras = _modules_to_distributions(), PYPROJECT["project"]["optional-dependencies"]
    asked = 0
    for path, tree in _trees():
        for extra, modules in _required(tree):
            asked += 1
            brought = _brought_by(extras[extra])
            assert all(known[module] & brought for module in modules), f"{path}: {extra} does not bring {modules}"
    assert asked > 10


def _required(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Extra and modules of each call of `es_sbert.errors.require_extra`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("require_extra"), args=[ast.Constant(str(extra)), *modules]):
                yield extra, [ast.literal_eval(module) for module in modules]
