"""A virtual environment like that of the tests, but without NVIDIA's libraries and without torch.

onnxruntime looks for the libraries of `nvidia` packages next to itself, and takes them before those of the system;
torch loads them as well. What such packages bring has to be gone, not only hidden from `import`.
"""

from __future__ import annotations

import re
import sys
import venv
from pathlib import Path

# Editable installations are left out too: they may name another checkout than the one that is tested.
_LEFT_OUT = re.compile(r"nvidia|torch|functorch|triton|__editable__|__pycache__|_virtualenv|distutils-precedence")
_PACKAGES = ("site-packages", "dist-packages")


def create_environment(folder: Path) -> Path:
    """Create the environment; packages are links to those that are installed."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (target,) = folder.glob("lib/python*/site-packages")
    for source in (Path(entry) for entry in sys.path if Path(entry).name in _PACKAGES):
        for item in source.iterdir() if source.is_dir() else ():
            link = target / item.name
            # The first folder on the path wins, as it does for `import`.
            if not _LEFT_OUT.match(item.name) and not _adds_folders(item) and not link.exists():
                link.symlink_to(item)
    return folder / "bin/python"


def _adds_folders(item: Path) -> bool:
    """Whether it is a `.pth` file that adds folders to `sys.path`, with the packages that are left out here."""
    if item.suffix != ".pth":
        return False
    lines = item.read_text(encoding="utf-8").splitlines()
    return any(line.strip() and not line.startswith(("#", "import ", "import\t")) for line in lines)
