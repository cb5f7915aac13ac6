"""The public API: its signatures, its page, and what the documentation shows of it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

import es_sbert
from es_sbert import errors

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/update-api"
PAGES = [ROOT / "README.md", ROOT / "es_sbert/__init__.py", *sorted((ROOT / "docs").rglob("*.md"))]
_loader = SourceFileLoader("update_api", str(SCRIPT))
api: Any = module_from_spec(spec_from_loader("update_api", _loader))  # type: ignore[arg-type]
_loader.exec_module(api)
OBJECTS: dict[str, Any] = api.public_objects()
PATHS = set(api.public_paths())
CLASSES = {each.__name__: each for each in api.public_classes()}
# Names of other libraries in signatures.
FOREIGN = {
    "ABC", "Any", "BaseModel", "BaseSettings", "Callable", "Exception", "Iterable", "Iterator", "Literal", "Mapping",
    "NotRequired",
    "NDArray", "None", "Path", "SecretStr", "Self", "Sequence", "StrEnum", "True", "False", "TypeError", "TypedDict",
    "ValueError",
}  # fmt: skip
OTHER_NAMES = {"CrossEncoder", "DeprecationWarning", "SentenceTransformer"}
# What variables in the documentation are called.
VARIABLES = {
    "encoder": ["Encoder"], "hit": ["Hit", "HybridHit"], "index": ["SemanticIndex"], "report": ["LoadReport"],
    "reranker": ["Reranker"], "result": ["SearchResult", "HybridResult"],
}  # fmt: skip


def test_signatures_and_page_are_current() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["es_sbert", "es_sbert.analysis"])
def test_names_for_type_checkers_are_those_at_run_time(package: str) -> None:
    module = import_module(package)
    in_extra = set(module._NAMES.get("es_sbert.training", "").split())
    assert module.__all__ == sorted(set(" ".join(module._NAMES.values()).split()) - in_extra)
    [block] = re.findall(r"^if _TYPE_CHECKING:\n((?:    .*\n|\n)+)", inspect.getsource(module), re.MULTILINE)
    imports = [node for node in ast.walk(ast.parse(inspect.cleandoc(block))) if isinstance(node, ast.ImportFrom)]
    found: dict[str, list[str]] = {}
    for node in imports:
        found.setdefault(str(node.module), []).extend(alias.name for alias in node.names)
    assert {place: sorted(names) for place, names in found.items()} == {
        place: sorted(names.split()) for place, names in module._NAMES.items()
    }


def test_all_names_are_imported_without_torch() -> None:
    program = f"import sys\nfor p in {api.PACKAGES}: exec(f'from {{p}} import *')\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_types_in_signatures_are_public_and_explained() -> None:
    text = re.sub(r"'[^']*'|^\S+ = .*|^\S+?(?=[(:])", "", api.snapshot(), flags=re.MULTILINE)
    page = api.PAGE.read_text(encoding="utf-8")
    explained = set(re.findall(r"`(\w+)", page.partition("## Types")[2].partition("<!--")[0]))
    known = FOREIGN | explained | {path.rpartition(".")[2] for path in PATHS}
    assert set(re.findall(r"\b[A-Z]\w+", text)) - known == set()
    assert set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)", page)) - known - OTHER_NAMES == set()


@pytest.mark.parametrize("path", OBJECTS)
def test_public_objects_are_documented(path: str) -> None:
    value = OBJECTS[path]
    members = api.members(value) if inspect.isclass(value) else {}
    functions = [getattr(each, "__func__", each) for name, each in members.items() if not name.startswith("_")]
    docstrings = [inspect.getdoc(each) or "" for each in (value, *functions)]
    assert all(docstrings)
    for docstring in docstrings:
        raised = docstring.partition("\nRaises:\n")[2].partition("\n\n")[0]
        names = re.findall(r"^    (\w[\w, ]*):", raised, re.MULTILINE)
        assert {name for each in names for name in each.split(", ")} <= {*errors.__all__, "TypeError"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_shows_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if page != api.PAGE or "import" in code:
            _check_imports(ast.parse(code))
    for name, member, call in re.findall(r"`(\w+)\.(\w+)(\()?", text):
        if name == "index" and not call:
            continue  # a setting of engines
        owners = [CLASSES[each] for each in VARIABLES.get(name, [name]) if each in CLASSES]
        known = {each for owner in owners for each in (*dir(owner), *api.attributes(owner))}
        assert not owners or member in known, f"`{name}.{member}` does not exist"
    if page.name != "architecture.md" and page != api.PAGE:
        for path in re.findall(r"`(es_sbert(?!\.json)(?:\.\w+)+)`", text):
            assert path in (*PATHS, *api.PACKAGES), f"{path} is not public"


def _check_imports(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("es_sbert"):
            assert {f"{node.module}.{alias.name}" for alias in node.names} <= PATHS, ast.unparse(node)
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.startswith("es_sbert")]
            assert set(modules) <= set(api.PACKAGES), ast.unparse(node)


def test_sync_and_async_index_have_the_same_methods() -> None:
    def methods(of: type) -> set[str]:
        return {name for name, value in vars(of).items() if callable(value) and not name.startswith("_")}

    assert methods(es_sbert.SemanticIndex) - {"create"} == methods(es_sbert.AsyncSemanticIndex) - {"create"}
