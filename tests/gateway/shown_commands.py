"""Commands as docs/clients.md shows them: blocks of sh under a heading."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/clients.md"
_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def shown_commands(heading: str) -> list[str]:
    """All blocks of a section, in order."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    return _BLOCK.findall(after.partition("\n## ")[0])
