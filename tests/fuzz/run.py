"""A number of fuzzed lines in every format, loaded into a real engine and held to account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from es_sbert.encoder.encoder import Encoder
from es_sbert.io.file_formats import FileFormat
from tests.engine.ingest_support import open_engine
from tests.fuzz import lines
from tests.fuzz.check import Tally, check_jsonl, check_plain, load_fuzzed

_FILE = 1000  # lines of one source
# Half of all lines are JSON; `static` leaves alone what the mapping does not know, so that more gets into the index.
_KINDS = ("static", "csv", "dynamic", "tsv", "static", "plain", "dynamic", "packed")


def fuzz(url: str, encoder: Encoder, new_index: Callable[[str], str], folder: Path, count: int, seed: int) -> Tally:
    """Load so many fuzzed lines."""
    tally = Tally()
    for number in range(-(-count // _FILE)):
        kind = _KINDS[number % len(_KINDS)]
        size, place = min(_FILE, count - number * _FILE), seed * 1_000_003 + number
        index = new_index(url) if kind != "packed" else ""
        source = folder / f"fuzz-{number}.jsonl"
        match kind:
            case "csv" | "tsv":
                source = source.with_suffix(f".{kind}")
                source.write_bytes(lines.delimited(size, place, "," if kind == "csv" else "\t"))
                load_fuzzed(url, encoder, index, source, tally)
            case "plain":
                source = source.with_suffix(".txt")
                source.write_bytes(lines.plain(size, place))
                load_fuzzed(url, encoder, index, source, tally)
                check_plain(url, index, source, tally)
            case "packed":
                _packed(url, encoder, new_index, source, size, place, tally)
            case _:
                source.write_bytes(lines.jsonl(size, place))
                with open_engine(url) as engine:
                    engine.create_index(index, {"mappings": {"dynamic": kind == "dynamic"}})
                found = load_fuzzed(url, encoder, index, source, tally, id_field="id")
                check_jsonl(url, index, source, found, tally)
    return tally


def _packed(
    url: str, encoder: Encoder, new_index: Callable[[str], str], source: Path, count: int, seed: int, tally: Tally
) -> None:
    """Several compressed sources, most of them damaged."""
    parts = 4
    for part in range(parts):
        suffix = "gz" if part % 2 else "zst"
        packed = source.with_name(f"{source.stem}-{part}.jsonl.{suffix}")
        packed.write_bytes(lines.damaged(lines.jsonl(count // parts, seed + part), seed + part, compress=suffix))
        load_fuzzed(url, encoder, new_index(url), packed, tally, id_field="id", format=FileFormat.JSONL)
