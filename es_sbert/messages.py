"""Settings in messages, log events, and text that is safe to print to a terminal.

One record of the standard `logging` module contains both the event name and its fields for `--log-format json`, and the
text for a terminal. Library users find the same records under the logger `es_sbert`.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Takes the name of a setting, and its value or `...` for none.
Spelling = Callable[[str, object], str]


def as_keyword(name: str, value: object) -> str:
    """Spell a setting as in Python; see `setting`."""
    if value is ...:
        return f"`{name}`"
    shown = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, str | list | dict) else repr(value)
    return f"`{name}={shown}`"


# Of this process, not of a thread: a command has threads, and they make messages too.
_spelling: Spelling = as_keyword


def setting(name: str, value: object = ...) -> str:
    """Spell a setting in a message: as a keyword argument in backticks, `device` or `device="cuda"`.

    While a command runs, it is the option of that command: --device cuda. Call it where the message is made: constants
    of modules are made before the command is known.
    """
    return _spelling(name, value)


def current_spelling() -> Spelling:
    """The spelling to use in another process, see `spell_settings`; it can be pickled."""
    return _spelling


@contextmanager
def spell_settings(spelling: Spelling) -> Iterator[None]:
    """Change how `setting` spells inside the block."""
    global _spelling
    previous, _spelling = _spelling, spelling
    try:
        yield
    finally:
        _spelling = previous


def size_text(count: int) -> str:
    """`12.3 MB`; units of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


logger = logging.getLogger("es_sbert")
# A library is silent until the program that uses it configures logging.
logger.addHandler(logging.NullHandler())


def log_event(
    event: str, message: str, level: int = logging.INFO, *, text: str | None = None, **fields: object
) -> None:
    """Log an event.

    Args:
        event: Name of the event: `load_started`, `progress`, `waiting_began`, ….
        message: One line of text.
        level: Level of `logging`.
        text: Text for a terminal; empty for none. By default the message, if it is a warning or worse.
        fields: Values that can be turned into JSON; the names time, level, event, message and logger are reserved.
    """
    logger.log(level, message, extra={"event": event, "text": text, "fields": fields})


def log_message(message: str) -> None:
    """Log a message that a terminal shows as well."""
    log_event("message", message, text=message)


# Marks that reverse the direction of text: a name shown backwards reads as a different one.
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def escape_unprintable(text: str) -> str:
    r"""Escape control characters, line ends and lone surrogates: `\x1b`, `\n`, `\udcff`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


def drop_unprintable(text: str) -> str:
    """Leave out the characters that `escape_unprintable` escapes."""
    return text if text.isprintable() else "".join(each for each in text if not _is_unprintable(each))


def escape_unprintable_lines(text: str) -> str:
    """Like `escape_unprintable`, but keeps the text's own line feeds."""
    return "\n".join(escape_unprintable(line) for line in text.split("\n"))


def shorten(text: str, limit: int = 1000) -> str:
    """Remove the middle of a text that is longer than the limit, since it may quote a client's input."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters…] {text[-half:]}"


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """`1 hit`, `1,200 hits`.

    Args:
        plural: Plural form; None adds an s.
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or f'{noun}s'}"


def be(count: int, past: bool = False) -> str:
    """`is` or `are`, or `was` or `were`, after a count."""
    return ("was" if past else "is") if count == 1 else ("were" if past else "are")


def have(count: int) -> str:
    """`has` or `have`, after a count."""
    return "has" if count == 1 else "have"


def _is_unprintable(character: str) -> bool:
    return character in _BIDI_CONTROLS or unicodedata.category(character) in _UNPRINTABLE_CATEGORIES


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if _is_unprintable(character) else character
