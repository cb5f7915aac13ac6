"""Recorded requests to the engines' APIs, as scenarios: `requests/*.ndjson`, one request a line, in order.

A line has `method`, `target` and perhaps `headers`. The target goes onto the wire as it stands. The body is one of
`json` (a value), `ndjson` (a list of values), `text` or `base64`; `gzip` compresses it and `chunked` sends it without
its length.
`{prefix}` is the beginning of all names, `{long}` and `{longer}` are very long words, `{scroll}`, `{pit}` and `{point}`
ids of an earlier answer. A request that the gateway does not read, and the engine may, is `refused`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUESTS = Path(__file__).parent / "requests"
# Engines take 4 kB in the first line of a request, and 512 bytes as an id.
WORDS = {"long": "x" * 3000, "longer": "y" * 5000}


@dataclass(frozen=True)
class Request:
    """A request as it goes onto the wire."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunked: bool = False
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.target[:200]}"


def scenarios() -> dict[str, list[dict[str, Any]]]:
    return {path.stem: list(_lines(path)) for path in sorted(REQUESTS.glob("*.ndjson"))}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def request(line: Mapping[str, Any], values: Mapping[str, str]) -> Request:
    def filled(text: str) -> str:
        for name, value in (*WORDS.items(), *values.items()):
            text = text.replace(f"{{{name}}}", value)
        return text

    body, content_type = _body(line, filled)
    given = line.get("headers", {})
    headers = {"content-type": content_type} if content_type and "content-type" not in given else {}
    headers |= {name: filled(value) for name, value in given.items()}
    if line.get("gzip"):
        headers["content-encoding"] = "gzip"
        body = gzip.compress(body, mtime=0)
    return Request(
        line["method"],
        filled(line["target"]),
        tuple(headers.items()),
        body,
        line.get("chunked", False),
        line.get("refused", False),
    )


def _body(line: Mapping[str, Any], filled: Callable[[str], str]) -> tuple[bytes, str | None]:
    if "json" in line:
        return filled(json.dumps(line["json"], ensure_ascii=False)).encode(), "application/json"
    if "ndjson" in line:
        return filled(_ndjson(line["ndjson"])).encode(), "application/x-ndjson"
    if "text" in line:
        return filled(line["text"]).encode("utf-8", "surrogatepass"), "application/json"
    if "base64" in line:
        return base64.b64decode(line["base64"]), "application/octet-stream"
    return b"", None


def _ndjson(values: Iterable[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
