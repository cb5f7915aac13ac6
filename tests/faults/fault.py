"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.bench import Bench

EVERY_ENGINE = ("es9", "es8", "opensearch")

# Makes the fault happen to a load and brings the load to its end; gives the last command's summary.
Happening = Callable[[Bench], dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """Something that happens to a load."""

    name: str
    happen: Happening
    engines: tuple[str, ...] = ("es9",)
    server: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    shards: int = 1
    index: Mapping[str, str] = field(default_factory=dict)
