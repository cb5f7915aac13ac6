"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but not as well or not for long
    ERROR = "error"  # does not work


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        level: How bad.
        about: What was looked at: `model`, `device`, `cuda`, `engine`, `licence`, `permissions`, `disk`, `index`, ….
        message: What was found.
        remedy: What to do; empty where there is nothing to do.
    """

    level: Level
    about: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, about: str, error: EsSbertError, level: Level = Level.ERROR) -> Finding:
        """An error as a finding."""
        return cls(level, about, error.message, error.remedy)

    def as_json(self) -> Json:
        return asdict(self)


def ok(about: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, about, message)


def warning(about: str, message: str, remedy: str) -> Finding:
    """Works, but not as well or not for long."""
    return Finding(Level.WARNING, about, message, remedy)


def failure(about: str, message: str, remedy: str) -> Finding:
    """Does not work."""
    return Finding(Level.ERROR, about, message, remedy)
