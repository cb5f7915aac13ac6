"""Which folders may import which, and that no modules import each other."""

from __future__ import annotations

import runpy
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Folders may import from those of earlier lines, as docs/architecture.md says.
_LEVELS = (
    {"io", "mappings"},
    {"bundle", "engines"},
    {"runtime"},
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
    pairs = {(_folder(user), _folder(module)) for module, users in _importers().items() for user in users}
    known = {(user, folder) for user, folder in pairs if user != folder and {user, folder} <= _LEVEL.keys()}
    assert ("cli", "ingest") in known
    assert not [(user, folder) for user, folder in known if _LEVEL[folder] >= _LEVEL[user]]


def test_no_folders_import_each_other() -> None:
    """Nested folders too; not the front door of es_sbert, which imports from all."""
    importers = _importers()
    modules = importers.keys() | set().union(*importers.values())
    packages = {module.rpartition(".")[0] for module in modules}
    places = {module: module if module in packages else module.rpartition(".")[0] for module in modules}
    folders: dict[str, set[str]] = {}
    for module, users in importers.items():
        for user in users - {"es_sbert", "es_sbert.__main__"}:
            folders.setdefault(places[user], set()).add(places[module])
    TopologicalSorter({user: used - {user} for user, used in folders.items()}).prepare()  # a CycleError names folders


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(_importers()).prepare()  # the CycleError names the modules


def _folder(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


@cache
def _importers() -> dict[str, set[str]]:
    """Module → the modules that import it, also inside functions and for types only."""
    size = runpy.run_path(str(ROOT / "scripts/size"))
    importers: dict[str, set[str]] = size["importers"](size["modules"](ROOT))
    return importers
