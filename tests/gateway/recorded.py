"""Recorded requests to the engines' APIs, as scenarios: `requests/*.ndjson`, one request a line, in order.

A line has `method`, `target` and perhaps `headers`. The target goes onto the wire as it stands. The body is one of
`json` (a value), `ndjson` (a list of values), `text` or `base64`; `gzip` compresses it and `chunked` sends it without
its length.
`{prefix}` stands for the beginning of all names of a run, `{long}` and `{longer}` for very long words, and names under
`save` (name → key of the answer) for what an earlier answer held. A request that the gateway does not read, and the
engine may, is `refused`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REQUESTS = Path(__file__).parent / "requests"
# Engines take 4 kB in the first line of a request, and 512 bytes as an id.
WORDS = {"long": "x" * 3000, "longer": "y" * 5000}


@dataclass(frozen=True)
class Request:
    """A request as it goes onto the wire.

    Attributes:
        target: Path and query, encoded.
        headers: Without Host and what frames the body.
        body: Where it is empty, neither a body nor its length is sent.
        chunked: Whether the body goes in chunks of 7 bytes instead of with its length.
        save: Name → key at the top of the answer's JSON.
        refused: Whether the gateway itself refuses the request.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunked: bool = False
    save: Mapping[str, str] = field(default_factory=dict)
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.target[:200]}"


def scenarios() -> dict[str, list[dict[str, Any]]]:
    """Name of a scenario → its lines."""
    return {path.stem: list(_lines(path)) for path in sorted(REQUESTS.glob("*.ndjson"))}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def request(line: Mapping[str, Any], values: Mapping[str, str]) -> Request:
    """A line with its placeholders filled in.

    Args:
        values: `prefix` and whatever was saved so far; one that is missing stays as it stands.
    """

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
        line.get("save", {}),
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
