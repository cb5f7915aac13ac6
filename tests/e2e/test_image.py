"""The steps of the Dockerfile, run on this machine's Debian, and the command line in the root file system they make."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts import can_mount

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_mount(), reason="mounting takes root on Linux")]
SCRIPT = Path(__file__).parents[2] / "scripts/image-root"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(disk_folder: Path) -> Run:
    """Run a command in the image `cpu`; the first one builds it, which downloads its packages."""
    folder, cache, files = (disk_folder / name for name in ("image", "cache", "files"))
    for volume in (folder, cache, files):
        volume.mkdir()
    for volume in (cache, files):
        os.chown(volume, 1000, 1000)

    def run(*arguments: str, stdin: str = "", mounted: bool = True) -> subprocess.CompletedProcess[str]:
        volumes = (f"--volume={cache}:/home/es-sbert/.cache", f"--volume={files}:/files")
        command = [sys.executable, str(SCRIPT), *(volumes if mounted else ()), str(folder), "cpu", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600, check=False)

    return run


def test_image_runs_the_command_line_as_its_user(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: es-sbert [OPTIONS] COMMAND [ARGS]...")
    assert run("--entrypoint", "id", "--", "-un").stdout == "es-sbert\n"
    folders = ("/files", "/home/es-sbert/.cache")
    owners = run("--entrypoint", "stat", "--", "--format", "%u", *folders, mounted=False)
    assert owners.stdout.split() == ["1000", "1000"]


def test_image_has_the_default_model_and_no_torch(run: Run) -> None:
    done = run("--", "encode", stdin="A cat sleeps.\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "Exporting" not in done.stderr
    assert "CUDA" not in done.stderr
    code = (
        "from importlib.metadata import distributions\n"
        "print(*(each.name for each in distributions() if each.name.startswith('onnxruntime')))\n"
        "import onnxruntime, uvicorn, es_sbert.gateway.server.app; import torch\n"
    )
    imports = run("--entrypoint", "python", "--", "-c", code)
    assert imports.stdout == "onnxruntime\n"
    assert "No module named 'torch'" in imports.stderr
    refused = run("--", "encode", "--device", "cuda", stdin="A cat sleeps.\n")
    assert refused.returncode == 2
    assert "pip uninstall --yes onnxruntime && pip install" in refused.stderr


def test_image_searches_an_engine(run: Run, es9_url: str, fresh_index: Callable[[str], str]) -> None:
    index = fresh_index(es9_url)
    documents = '{"text": "A cat sleeps."}\n{"text": "Stocks fell."}\n'
    connection = ("--url", es9_url, "--index", index)
    loaded = run("--", "ingest", *connection, "--format", "jsonl", "-", stdin=documents)
    assert loaded.returncode == 0, loaded.stderr
    found = run("--", "search", *connection, "a pet naps")
    assert found.returncode == 0, found.stderr
    assert found.stdout.index("A cat sleeps.") < found.stdout.index("Stocks fell.")
