"""Requests as the pages of docs/ show them: METHOD PATH, then a body, in blocks of http."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"```http\n(?P<method>[A-Z]+) (?P<path>\S+)\n(?P<body>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class ShownRequest:
    """A request."""

    method: str
    path: str
    body: str

    def filled(self, words: dict[str, str]) -> ShownRequest:
        """With words of the page replaced, such as the ids that only an answer tells."""
        path, body = self.path, self.body
        for word, value in words.items():
            path, body = path.replace(word, value), body.replace(word, value)
        return ShownRequest(self.method, path, body)

    @property
    def content_type(self) -> str:
        return "application/x-ndjson" if "_bulk" in self.path else "application/json"


def shown_requests(page: Path) -> list[ShownRequest]:
    """All requests of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [ShownRequest(match["method"], match["path"], match["body"]) for match in found]
