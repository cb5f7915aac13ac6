"""The texts of PDF, Word and PowerPoint files as JSONL, for `es-sbert ingest`.

    pip install pypdf python-docx python-pptx
    python examples/extract_documents.py FOLDER > documents.jsonl
    es-sbert ingest --index files documents.jsonl --id-field id --text-template '{title}. {text}' --passages 256

One object a line: `id` (the path in FOLDER), `title`, `text`, `type`, `pages` (of PDF and PowerPoint), `modified`. With
`--by-page`, each page of a PDF and each slide is a separate object, with `page`, and `id` ends with `#PAGE`. Other
files are left out. Files that cannot be read, that are encrypted, or that hold images alone are named on stderr, and
the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import docx
import pptx
import pypdf
from docx.table import Table

logging.getLogger("pypdf").setLevel(logging.ERROR)  # its warnings name no file


class Extracted(NamedTuple):
    """What a file holds.

    Attributes:
        title: Of its metadata; empty if it has none.
        pages: The text of each page or slide; a Word file is one page.
    """

    title: str
    pages: list[str]


def read_pdf(path: Path) -> Extracted:
    """Text in its reading order, as far as the PDF has one."""
    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it is encrypted: save it without a password")
    title = reader.metadata.title if reader.metadata is not None else None
    return Extracted(title or "", [page.extract_text() for page in reader.pages])


def read_docx(path: Path) -> Extracted:
    """Paragraphs and tables in their order; a row of a table is a line."""
    document = docx.Document(str(path))
    lines: list[str] = []
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            lines += (" | ".join(dict.fromkeys(cell.text for cell in row.cells)) for row in block.rows)
        else:
            lines += (block.text, "")
    return Extracted(document.core_properties.title or "", ["\n".join(lines)])


def read_pptx(path: Path) -> Extracted:
    """Each slide with its title, its texts and tables, and the speaker's notes."""
    presentation = pptx.Presentation(str(path))
    slides: list[str] = []
    for slide in presentation.slides:
        lines: list[str] = []
        for shape in slide.shapes:
            if shape.has_text_frame:
                lines.append(shape.text_frame.text)
            elif shape.has_table:
                lines += (" | ".join(cell.text for cell in row.cells) for row in shape.table.rows)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            lines.append(slide.notes_slide.notes_text_frame.text)
        slides.append("\n".join(lines))
    return Extracted(presentation.core_properties.title or "", slides)


READERS: dict[str, Callable[[Path], Extracted]] = {".pdf": read_pdf, ".docx": read_docx, ".pptx": read_pptx}


def objects(folder: Path, path: Path, *, by_page: bool) -> Iterator[dict[str, Any]]:
    """The objects of a file.

    Raises:
        Exception: whatever the library raises for a damaged file; ValueError if it has no text.
    """
    kind = path.suffix.lower()
    found = READERS[kind](path)
    pages = [page.strip() for page in found.pages]
    if not any(pages):
        raise ValueError("it has no text; scanned pages need OCR, for example `ocrmypdf`")
    shared: dict[str, Any] = {
        "id": path.relative_to(folder).as_posix(),
        "title": found.title.strip() or path.stem,
        "type": kind.removeprefix("."),
        "modified": datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds"),
    }
    if kind != ".docx":
        shared["pages"] = len(pages)
    if not by_page or kind == ".docx":
        yield shared | {"text": "\n\n".join(filter(None, pages))}
        return
    for number, page in enumerate(pages, 1):
        if page:
            yield shared | {"id": f"{shared['id']}#{number}", "page": number, "text": page}


def main() -> int:
    parser = argparse.ArgumentParser(description="Texts of PDF, Word and PowerPoint files as JSONL.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by-page", action="store_true", help="one object for each page of a PDF and each slide")
    given = parser.parse_args()
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is not a folder")
    failed = 0
    for path in sorted(given.folder.rglob("*")):
        # Word leaves locks such as ~$report.docx next to open files.
        if path.suffix.lower() not in READERS or path.name.startswith("~$") or not path.is_file():
            continue
        try:
            lines = [json.dumps(each) for each in objects(given.folder, path, by_page=given.by_page)]
        except Exception as error:  # the libraries raise many kinds for damaged files, and the others are to be read
            print(f"{path}: {error or type(error).__name__}", file=sys.stderr)
            failed += 1
            continue
        # Escapes: output of any encoding is then valid JSON.
        print(*lines, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
