"""The documentation says of every module that writes to an index what it checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Methods of `Engine` that change an index, and what calls them for others.
_WRITE = re.compile(
    r"engine\.(?:block_writes|bulk|create_index|delete_index|put_mapping|put_settings|update_aliases)\b"
    r"|\b(?:VersionedUpdates|update_mapping)\("
)


def test_every_writer_is_in_the_table_of_checks() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index("## Who writes to an index") : text.index("## What an index stores")]
    writers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "es_sbert").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in ("engines", "gateway")
        and _WRITE.search(path.read_text(encoding="utf-8"))
    }
    assert writers == set(re.findall(r"`(es_sbert/(?!gateway)[a-z_/]+\.py)`", section))
