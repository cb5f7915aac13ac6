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
    "tests/test_a.py": "# A comment.\n\nassert True\n",
    "benchmarks/a.py": "print()\n",
    "docs/commands/page.md": "# A page\nOf five words.\n",
    "README.md": "One two\n",
    "scripts/size.toml": """[figures]
"code lines" = [10, 17]
"words in docs" = [1, 5]

[folders]
"exporters, inner" = 7
"the rest" = 3
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in _TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def _size(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def _printed(*arguments: str | Path) -> list[str]:
    return [" ".join(line.split()) for line in _size(*arguments).stdout.splitlines()]


def test_prints_figures_beside_goals_and_ceilings(tree: Path) -> None:
    # a.py: import 1, string 3, class 1, function 4. inner/__init__.py: 1. b.py: 3. c.py: 2. d.py: 2.
    assert _printed(tree)[4:] == [
        "figure goal ceiling",
        "17 10 17 code lines",
        "70 code tokens",
        "8 modules",
        "3 packages",
        "3 modules with a single importer",
        "3 lines of tests",
        "1 lines of benchmarks",
        "6 1 5 words in docs",
        "2 words in README.md",
    ]


def test_check_fails_above_a_ceiling_only(tree: Path) -> None:
    done = _size(tree, "--check")

    assert done.returncode == 1
    assert done.stderr.startswith("6 words in docs are more than the ceiling of 5 in scripts/size.toml.")
    (tree / "docs/commands/page.md").write_text("One\n", encoding="utf-8")
    assert _size(tree, "--check").returncode == 0
