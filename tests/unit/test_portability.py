"""Nothing but `es-sbert engine` needs a Unix-like system. For imports, see `test_imports.py`; CI runs on Windows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

# Platforms differ in the names of Python's own library: other libraries are not followed, except numpy and pydantic,
# whose types are in most signatures and models. What is wrong on every platform is found by `scripts/check-types`.
MYPY = """
[mypy]
python_version = 3.11
check_untyped_defs = True
ignore_missing_imports = True
follow_imports = skip
[mypy-es_sbert.*,numpy.*,pydantic.*,pydantic_settings.*]
follow_imports = normal
[mypy-documentation.*]
ignore_errors = True
"""


def test_types_check_on_windows(tmp_path: Path) -> None:
    """Whatever Python has not there is an error of type, as `os.killpg` is."""
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY)
    options = ["--platform", "win32", "--config-file", str(config), "--cache-dir", str(ROOT / ".mypy_cache/win32")]
    done = subprocess.run(
        ["scripts/check-types", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert errors, done.stdout  # of `es-sbert engine`, so that the others would be found too
    assert [line for line in errors if not line.startswith("es_sbert/engines/local/")] == []
