"""A source with every kind of record in it, and what must have become of each when its load has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.engine.ingest_support import sentences

# Written by the test, so that it does not depend on which document comes first whether `price` is a number.
MAPPING = {"properties": {"price": {"type": "double"}}}


@dataclass(frozen=True)
class Corpus:
    """A source and its expected end."""

    size: int
    lines: Sequence[bytes]
    wanted: dict[str, dict[str, Any]]
    dead: set[str]
    broken: int
    empty: int
    repeated: int

    def write(self, path: Path) -> None:
        path.write_bytes(b"".join(line + b"\n" for line in self.lines))


def corpus(count: int, *, changed: bool = False, filler: int = 0) -> Corpus:
    """`count` documents and a few more records.

    One document in a hundred is refused by the mapping, one in 200 has no text, and for one in 200 a copy of it or a
    line that is no JSON follows.
    """
    documents = [document | ({"filler": "x" * filler} if filler else {}) for document in sentences(count)]
    if changed:
        for document in documents[::3]:
            document["text"] += " Since then it has changed."
        for document in documents[1::3]:
            document["price"] += 1
        documents.append({"id": "new", "text": "A new one.", "price": 1.0})
        documents.reverse()
    lines: list[bytes] = []
    wanted: dict[str, dict[str, Any]] = {}
    dead: set[str] = set()
    broken = empty = repeated = 0
    for document in documents:
        number = document["nested"]["rank"] if "nested" in document else -1
        if number % 100 == 50:
            document["price"] = "not a number"
            dead.add(document["id"])
        elif number % 200 == 7:
            # Missing, null and blank are the same.
            if number % 600 == 7:
                del document["text"]
            else:
                document["text"] = None if number % 600 == 207 else ""
            empty += 1
        else:
            wanted[document["id"]] = document
        lines.append(orjson.dumps(document))
        if number % 200 == 13:
            lines.append(lines[-1])
            repeated += 1
        if number % 200 == 113:
            lines.append(b'{"id": "broken", "text": "no end')
            broken += 1
    return Corpus(count, lines, wanted, dead, broken, empty, repeated)
