"""Numbers of bytes as people read them."""

from __future__ import annotations


def size_text(count: int) -> str:
    """`12.3 MB`; units of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
