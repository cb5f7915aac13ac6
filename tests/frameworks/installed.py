"""The libraries of requirements.txt in a folder of their own, installed once for as long as the file stays as it is."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def installed_frameworks() -> Path:
    """The folder to put in front of the module path: 130 MB, 25 s where pip fetches them, none where they are there."""
    stamp = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / "build" / f"frameworks-{stamp}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="frameworks-", dir=folder.parent))
    # Without dependencies: what they share with es-sbert's own environment is there already.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--target", str(fresh), "--requirement", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        shutil.rmtree(fresh)
        raise RuntimeError(f"pip could not install {REQUIREMENTS}:\n{done.stdout}\n{done.stderr}")
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(fresh)  # another run of the tests was faster
    return folder
