"""examples/extract_documents.py, on files that are written here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import docx
import pptx
import pypdf
import pytest
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

ROOT = Path(__file__).parents[2]


def write_pdf(path: Path, pages: list[str]) -> None:
    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {NameObject("/Type"): NameObject("/Font"), NameObject("/Subtype"): NameObject("/Type1"),
         NameObject("/BaseFont"): NameObject("/Helvetica")}
    )  # fmt: skip
    for text in pages:
        page = writer.add_blank_page(300, 300)
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F"): font})}
        )
        content = DecodedStreamObject()
        content.set_data(f"BT /F 12 Tf 20 200 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = writer._add_object(content)
    writer.add_metadata({"/Title": "Manual"})
    writer.write(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    write_pdf(tmp_path / "in/manual.PDF", ["Turn it on.", "", "Turn it off."])
    document = docx.Document()
    document.add_paragraph("First paragraph.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"
    document.add_paragraph("Größe")
    document.save(str(tmp_path / "report.docx"))
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text_frame.text = "Plan", "One step"
    slide.notes_slide.notes_text_frame.text = "Say hello."
    slides.save(str(tmp_path / "plan.pptx"))
    (tmp_path / "readme.txt").write_text("left out")
    return tmp_path


def extract(folder: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, objects by id, and stderr."""
    command = [sys.executable, str(ROOT / "examples/extract_documents.py"), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}, done.stderr


def test_texts_of_all_files_and_pages(folder: Path) -> None:
    code, found, errors = extract(folder)
    assert (code, errors) == (0, "")
    assert {name: (each["title"], each["text"], each.get("pages")) for name, each in found.items()} == {
        "in/manual.PDF": ("Manual", "Turn it on.\n\nTurn it off.", 3),
        "plan.pptx": ("plan", "Plan\nOne step\nSay hello.", 1),
        "report.docx": ("report", "First paragraph.\n\nleft | right\nGröße", None),
    }
    _, pages, _ = extract(folder, "--by-page")
    assert {name: each.get("page") for name, each in pages.items()} == {
        "in/manual.PDF#1": 1, "in/manual.PDF#3": 3, "plan.pptx#1": 1, "report.docx": None,
    }  # fmt: skip
