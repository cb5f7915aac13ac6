"""The text that a query asks by, taken out of a request with all due suspicion."""

from __future__ import annotations

from es_sbert.gateway.failures import BadRequest
from es_sbert.streams.json_lines import json_type

EXAMPLE = "Write what you look for in words, as a string."


def read_text(value: object, where: str, most: int) -> str:
    """A text to search by.

    Args:
        value: As it stands in the request. Numbers and truth values are words too where engines take them as such
            (Kibana sends `semantic: 2024` as a number); the caller turns those into strings before.
        where: The part of the request, for the message.
        most: Characters that are allowed.

    Raises:
        BadRequest: not a string, empty, or too long.
    """
    if not isinstance(value, str):
        raise BadRequest(f"the text of {where} is a JSON {json_type(value)}, not a string", EXAMPLE)
    if not value.strip():
        raise BadRequest(f"the text of {where} is empty", EXAMPLE)
    if len(value) > most:
        raise BadRequest(
            f"the text of {where} has {len(value):,} characters, {most:,} are allowed",
            "Search by the sentence that matters; models read a few hundred words at most.",
        )
    if not value.isprintable() and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise BadRequest(f"the text of {where} is not valid Unicode", EXAMPLE)
    return value


def words(value: object) -> object:
    """A number or truth value as text, as engines read it in full-text queries; all else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def number(value: object, where: str, lowest: float, highest: float) -> float:
    """A number within limits.

    Raises:
        BadRequest: no number, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise BadRequest(f"{where} is {value!r}", f"Give a number from {lowest:g} to {highest:g}.")
    return value


def whole(value: object, where: str, highest: int) -> int:
    """A whole number from 1 up.

    Raises:
        BadRequest: none, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise BadRequest(f"{where} is {value!r}", f"Give a whole number from 1 to {highest:,}.")
    return value
