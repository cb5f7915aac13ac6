"""Where a search looks, for whom, and how it wants to be understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from es_sbert.gateway.rewrite.budget import SemanticBudget
from es_sbert.gateway.wire.incoming import Headers


class Mode(StrEnum):
    """What a request's header `X-Es-Sbert` asks for."""

    OFF = "off"
    ON = "on"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class Scope:
    """Where a search looks, and for whom.

    Attributes:
        expression: Of indices, percent-encoded; empty for all.
        options: The request's parameters.
        headers: The caller's.
        mode: How it wants to be understood.
        listed: Whether the engine itself has told the caller these concrete names.
        size: Bytes of the body that the search stands in.
        budget: What the request may still ask for; None where nothing is embedded.
    """

    expression: str
    options: Mapping[str, str]
    headers: Headers
    mode: Mode
    listed: bool = False
    size: int = 0
    budget: SemanticBudget | None = None
