"""The findings of `es-sbert doctor`, with their severity and remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but not as well or not for long
    ERROR = "error"  # does not work


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        level: The severity.
        about: The checked part: `model`, `device`, `cuda`, `engine`, `license`, `permissions`, `disk`, `index`, ….
        message: The result of the check.
        remedy: The remedy; empty if nothing has to be done.
    """

    level: Severity
    about: str
    message: str
    remedy: str = ""

    @classmethod
    def from_error(cls, about: str, error: EsSbertError) -> Finding:
        """Convert an error to a finding."""
        return cls(Severity.ERROR, about, error.with_notes(), error.remedy)

    def as_json(self) -> Json:
        return asdict(self)


def ok(about: str, message: str) -> Finding:
    """A finding that needs no action."""
    return Finding(Severity.OK, about, message)


def warning(about: str, message: str, remedy: str) -> Finding:
    """A finding about something that works, but not as well as it could or not for long."""
    return Finding(Severity.WARNING, about, message, remedy)


def failure(about: str, message: str, remedy: str) -> Finding:
    """A finding about something that does not work."""
    return Finding(Severity.ERROR, about, message, remedy)
