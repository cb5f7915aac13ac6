"""Which folders may import which, and that no modules import each other."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Folders may import from those of earlier lines, as docs/architecture.md says.
_LEVELS = (
    {"io", "mappings"},
    {"bundle", "engines"},
    {"runtime"},
    {"networks"},
    {"exporters"},
    {"encoder"},
    {"index"},
    {"ingest"},
    {"search", "migration"},
    {"gateway", "evaluation"},
    {"diagnostics"},
    {"training", "analysis"},
    {"cli"},
)
_LEVEL = {folder: level for level, folders in enumerate(_LEVELS) for folder in folders}


def test_folders_import_downwards_only() -> None:
    folders = {(_folder(importer), _folder(name)) for importer, names in _imports().items() for name in names}
    known = {(importer, name) for importer, name in folders if importer != name and {importer, name} <= _LEVEL.keys()}
    assert known
    assert not [(importer, name) for importer, name in known if _LEVEL[name] >= _LEVEL[importer]]


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter(_imports()).prepare()  # the CycleError names the modules


def _folder(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def _imports() -> dict[str, set[str]]:
    """Module → the modules that it imports, also inside functions and for types only."""
    files: dict[str, Path] = {}
    for top, prefix in (("es_sbert", ""), ("exporters", "es_sbert."), ("mappings", "es_sbert.")):
        for file in (ROOT / top).rglob("*.py"):
            name = prefix + ".".join(file.relative_to(ROOT).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = file
    found: dict[str, set[str]] = {}
    for module, file in files.items():
        names = set[str]()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                members = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {member if member in files else str(node.module) for member in members}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = names & files.keys() - {module}
    return found
