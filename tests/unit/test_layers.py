"""Which folders may import which."""

from __future__ import annotations

import ast
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
    assert not [
        (importer, imported) for importer, imported in _folder_imports() if _LEVEL[imported] >= _LEVEL[importer]
    ]


def _folder_imports() -> set[tuple[str, str]]:
    """Pairs of a folder and another one that it imports from, also inside functions and for types only."""
    pairs: set[tuple[str, str]] = set()
    for file in [path for top in ("es_sbert", "exporters", "mappings") for path in (ROOT / top).rglob("*.py")]:
        parts = file.relative_to(ROOT).parts
        folder = parts[1] if parts[0] == "es_sbert" else parts[0]
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found = {name.split(".")[1] for name in names if name.startswith("es_sbert.")}
        pairs |= {(folder, other) for other in found if folder in _LEVEL and other in _LEVEL and folder != other}
    return pairs
