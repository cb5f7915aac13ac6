"""`scripts/size` compares a small tree with its ceilings."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/size"
TREE = {
    # A docstring, a comment and blank lines are no code; the lines of a string are.
    "es_sbert/__init__.py": '"""A docstring\nof several lines."""\n\n# A comment.\nTEXT = """A\n\nB"""  # code\n',
    "docs/commands/page.md": "# A page\nOf five words.\n",
    "README.md": "One two\n",
    "scripts/size.toml": """[figures]
"code lines" = [1, 2]
"words in docs" = [1, 5]

[folders]
"the rest" = 3
""",
}


def test_check_fails_above_a_ceiling_only(tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, SCRIPT, tmp_path, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("6 words in docs are more than the ceiling of 5 in scripts/size.toml.")
    (tmp_path / "docs/commands/page.md").write_text("One\n", encoding="utf-8")
    assert subprocess.run(command, check=False).returncode == 0
