"""The blocks of the README, run one after another in one shell, as a newcomer would, in an empty home."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from es_sbert.config import cache_folder

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALL_BLOCK, _MORE_EXTRAS = "'.[serve,cpu]'", "pip install --constraint constraints.txt '.[analysis]'"
# The dev set of the recipe and a few examples: training on all of them takes minutes.
_ALL_PAIRS, _FEW_PAIRS = "stdlib_pairs.py >", "stdlib_pairs.py | sed -n 1,500p >"
# What is no part of a clone.
_LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "*.egg-info",
    "build",
    "dist",
)

pytestmark = pytest.mark.slow


def readme_blocks() -> list[tuple[str, str]]:
    """(language, text) of each block."""
    return [(match["language"], match["text"]) for match in _BLOCK.finditer((ROOT / "README.md").read_text())]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository of the files as they are now, committed or not."""
    folder = tmp_path_factory.mktemp("origin") / "repository"
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@test.example"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "As it is"]):
        subprocess.run([*git, *command], cwd=folder, check=True, capture_output=True)
    return folder


def _environment(home: Path, **more: str) -> dict[str, str]:
    """Without anything of es-sbert's or of a virtual environment."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ES_SBERT_", "VIRTUAL_ENV", "PYTEST_", "XDG_"))
    }
    kept["PATH"] = os.pathsep.join(
        folder for folder in kept["PATH"].split(os.pathsep) if folder != str(Path(sys.executable).parent)
    )
    return kept | {"HOME": str(home)} | more


def test_all_readme_blocks_are_covered() -> None:
    assert {language for language, _ in readme_blocks()} == {"sh", "python"}
    for part in (_INSTALL_BLOCK, _ALL_PAIRS):
        assert sum(part in text for _, text in readme_blocks()) == 1


@pytest.mark.timeout(2400)
@pytest.mark.long
def test_readme_blocks_run_in_empty_home(repository: Path, disk_folder: Path, tmp_path: Path) -> None:
    """What pip would download is found in this environment: the packages are installed from it, not the commands.

    Each machine exports the model once and measures which of its variants is fastest: a minute and a half, which other
    tests try.
    """
    if taken := [port for port in (9200, 9280) if not _is_free(port)]:
        pytest.skip(f"the README's servers need the ports {taken}, which are in use")
    home = disk_folder / "home"
    home.mkdir()
    exported = cache_folder() / "bundles"
    if exported.exists():
        shutil.copytree(exported, home / ".cache/es-sbert/bundles")
    script = ["set -euo pipefail"]
    for number, (language, text) in enumerate(readme_blocks()):
        if language == "python":
            (home / f"block{number}.py").write_text(text)
            text = f"python {home}/block{number}.py\n"
        script += [f"echo '=== block {number}'", text.replace(_ALL_PAIRS, _FEW_PAIRS)]
    log = tmp_path / "log"
    with log.open("w") as output:
        run = subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(
                home, REPOSITORY=str(repository), PYTHONPATH=sysconfig.get_path("purelib"), PIP_NO_COMPILE="1"
            ),
        )
        try:
            code = run.wait(2300)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            if not _is_free(9200):
                program = [sys.executable, "-m", "es_sbert", "engine", "down", "--port", "9200", "--purge", "--yes"]
                subprocess.run(program, check=False, env=_environment(home))
    said = log.read_text()
    assert code == 0, said[-5000:]
    assert "Living on board a space station" in said
    assert '"hits"' in said
    assert _is_free(9280)
