"""`scripts/size` counts a small tree whose figures are known."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/size"

_TREE = {
    "es_sbert/__init__.py": '"""A docstring."""\n',
    "es_sbert/a.py": '''"""A docstring
of several lines."""

# A comment.
from es_sbert.inner import b, value  # code, with a comment

TEXT = """A string
that is no docstring,

with a blank line."""


class Ünique(Exception): """A docstring in the line of its class."""


def long(
    argument: int,
) -> int:
    """A docstring."""
    return argument
''',
    "es_sbert/inner/__init__.py": "value = 1\n",
    "es_sbert/inner/b.py": "def late() -> None:\n    from ..a import TEXT\n    import es_sbert.inner.c\n",
    "es_sbert/inner/c.py": "from . import b\nimport json\n",
    "exporters/__init__.py": "",
    "exporters/d.py": "from es_sbert.exporters import e\nfrom es_sbert.inner import c\n",
    "exporters/e.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in _TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def _printed(*arguments: str | Path) -> list[str]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_counts_lines_modules_packages_and_single_importers(tree: Path) -> None:
    # a.py: import 1, string 3, class 1, function 4. inner/__init__.py: 1. b.py: 3. c.py: 2. d.py: 2.
    assert _printed(tree) == ["17 code lines", "8 modules", "3 packages", "3 modules with a single importer"]


def test_lists_modules_with_a_single_importer(tree: Path) -> None:
    # b is imported by a and c, c by b and d; nothing imports d.
    assert _printed(tree, "--importers")[4:] == [
        "es_sbert.a <- es_sbert.inner.b",
        "es_sbert.exporters.e <- es_sbert.exporters.d",
        "es_sbert.inner <- es_sbert.a",
    ]
