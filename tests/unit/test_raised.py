"""How tests assert errors: `tests/raised.py` and its golden files."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import raised
from tests.raised import GOLDEN, TESTS, compare_recorded, entry_of_any_engine, read_entries, record


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Compares texts with the entry of an engine test in a temporary golden folder, and returns the golden file."""
    monkeypatch.setattr(raised, "GOLDEN", tmp_path / "golden")
    monkeypatch.setenv("ES_SBERT_UPDATE_GOLDEN", "1")
    node_id = "tests/engine/test_a.py::test_a[x-es9]"
    test: Any = SimpleNamespace(path=TESTS / "engine/test_a.py", nodeid=node_id, get_closest_marker=bool)

    def compared(*texts: str) -> str:
        with compare_recorded(test, tmp_path / "run"):
            for text in texts:
                record(text)
        return (tmp_path / "golden/engine.txt").read_text(encoding="utf-8")

    return compared


def test_texts_are_compared_without_what_varies(
    compare: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = f"{tmp_path}/run/test_a0/a.csv, row 3: b is missing\n  Ask test-0123456789ab at http://localhost:12345."
    entry = (
        "test_a.py::test_a[x-engine]\n    TMP/a.csv, row 3: b is missing\n      Ask test-ID at http://localhost:PORT."
    )
    golden = compare(first, "two\n  Do it.")
    assert golden == f"{entry}\n\n    two\n      Do it.\n"
    golden = golden.replace("row 3", "row <any>")
    (tmp_path / "golden/engine.txt").write_text(golden, encoding="utf-8")
    read_entries.cache_clear()
    assert compare(first, "two\n  Do it.") == golden
    monkeypatch.delenv("ES_SBERT_UPDATE_GOLDEN")
    assert compare(first.replace("row 3", "row 4"), "two\n  Do it.") == golden
    for wrong in ([first], [first, "two\n  Do it.", "more"], [first, "two\n  Leave it."], []):
        with pytest.raises(
            AssertionError, match=r"ES_SBERT_UPDATE_GOLDEN=1 python -m pytest -n0 'tests/engine/test_a\."
        ):
            compare(*wrong)
    monkeypatch.setenv("ES_SBERT_UPDATE_GOLDEN", "1")
    assert compare() == ""


@pytest.mark.slow
def test_each_entry_belongs_to_a_test() -> None:
    tests: dict[Path, set[str]] = {}
    for golden in GOLDEN.rglob("*.txt"):
        folder = TESTS / golden.relative_to(GOLDEN).with_suffix("")
        for entry in read_entries(golden):
            tests.setdefault(folder / entry.partition("::")[0], set()).add(entry.partition("::")[2])
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-n0", *filter(Path.exists, tests)]
    ran = subprocess.run([*collect, "-q"], cwd=TESTS.parent, capture_output=True, text=True, check=False)
    collected: dict[Path, set[str]] = {}
    for line in ran.stdout.splitlines():
        module, found, test = line.partition("::")
        if found:
            collected.setdefault(TESTS.parent / module, set()).update([test, entry_of_any_engine(test)])
    # Files of tests for which a library is missing are not collected.
    gone = {
        str(file): entries - collected.get(file, entries if file.exists() else set()) for file, entries in tests.items()
    }
    assert not {file: entries for file, entries in gone.items() if entries}, ran.stderr


def _errors_by_words(tree: ast.Module) -> Iterator[int]:
    """Lines that compare the words of errors, except those of other libraries."""
    others = set(dir(builtins))
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if not module.startswith("es_sbert"):
                others |= {name.asname or name.name for name in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="raises"), args=[kind, *_], keywords=[ast.keyword(arg="match")]):
                if {name.id for name in ast.walk(kind) if isinstance(name, ast.Name)} - others - {"openai"}:
                    yield node.lineno
            case ast.Compare(ops=[ast.In()], comparators=[text]):
                if re.fullmatch(r"\w+\.value\.(message|remedy)|str\(\w+\.value\)", ast.unparse(text)):
                    yield node.lineno


def test_words_of_errors_are_in_golden_files() -> None:
    found = {path: list(_errors_by_words(ast.parse(path.read_bytes()))) for path in TESTS.rglob("*.py")}
    assert not {str(path): lines for path, lines in found.items() if lines}
